"""Codecs as operators of PyTorch: `torch.ops.remat_compile.pack_bits` and its like.

They are for the CPU: an axiom is of a device's kernels, and `tests/operators` holds all of them
there only. Kernels of a codec that declares its bytes are held to its declaration at each call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint
from typing import Any

import torch
from torch import Tensor

from ...ir.codecs import NAMESPACE, READS, Codec
from ...ir.codecs.registry import GROUP, own, plugins
from ...ir.diagnostics import Diagnostic, FBError
from ...ir.expr import Const, evaluate

Kernel = Callable[..., Tensor]
GIVEN = {"shape": "SymInt[] shape", "dtype": "ScalarType dtype"}
_registered: set[str] = set()


def register(codec: Codec) -> None:
    """Makes operators of a codec's kernels, once. FB0558 where they do not load."""
    if codec.name in _registered:
        return
    try:
        pack, unpack = EntryPoint(codec.name, codec.kernels, GROUP).load()
    except Exception as error:  # a plug-in may raise anything at all
        message = f'the kernels of codec "{codec.name}" ({codec.kernels}) do not load: {error}'
        hint = "repair or uninstall the package that the codec is of"
        raise FBError(Diagnostic("FB0558", message, hint=hint)) from error
    if codec.form == "bytes":
        pack, unpack = _Held(codec, pack).pack, _Held(codec, unpack).unpack
    _define(f"pack_{codec.name}(Tensor x{', int seed' * codec.is_random}) -> Tensor", pack)
    if codec.is_read:
        for op, (own_codec, *_) in READS.items():
            if own_codec is codec:
                name = op.split(".")[1]
                _define(f"{name}(Tensor g, Tensor packed) -> Tensor", unpack)
    elif codec.form != "single":
        given = "".join(f", {GIVEN[what]}" for what in codec.gives)
        _define(f"unpack_{codec.name}(Tensor packed{given}) -> Tensor", unpack)
    _registered.add(codec.name)


def _define(schema: str, kernel: Kernel) -> None:
    _LIBRARY.define(schema)  # type: ignore[no-untyped-call]
    _LIBRARY.impl(schema.partition("(")[0], kernel, "CPU")  # type: ignore[no-untyped-call]


class _Held:
    """A kernel of a codec, held to what the codec declares: FB0559 for other bytes, a result of
    another kind, or a tensor that was written to; FB0560 where it fails."""

    def __init__(self, codec: Codec, kernel: Kernel):
        self.codec, self.kernel = codec, kernel

    def pack(self, x: Tensor, *seed: int) -> Tensor:
        if not x.is_contiguous():
            raise self.refusal("FB0560", "it packs contiguous tensors, and this one is not")
        shape = tuple(Const(n) for n in x.shape)
        size = None if self.codec.size is None else self.codec.size(shape, x.itemsize)
        if size is None:
            raise self.refusal("FB0560", f"it does not take the shape {list(x.shape)}")
        version = x._version
        packed = self.called("pack", x, *seed)
        self.held(packed, [evaluate(size, {})], torch.uint8)
        if x._version != version:
            raise self.refusal("FB0559", "its kernel writes to the tensor that it packs")
        return packed

    def unpack(self, packed: Tensor, *given: Any) -> Tensor:
        told = dict(zip(self.codec.gives, given, strict=True))
        made = self.called("unpack", packed, *given)
        self.held(made, told.get("shape", made.shape), told.get("dtype", made.dtype))
        return made

    def called(self, what: str, *args: Any) -> Tensor:
        try:
            return self.kernel(*args)
        except Exception as error:
            raise self.refusal(
                "FB0560", f"its kernel to {what} fails: {type(error).__name__}: {error}"
            ) from error

    def held(self, made: Tensor, shape: Sequence[int], dtype: torch.dtype) -> None:
        if not isinstance(made, Tensor) or (made.dtype, [*made.shape]) != (dtype, [*shape]):
            of = f"{made.dtype}{[*made.shape]}" if isinstance(made, Tensor) else type(made).__name__
            raise self.refusal(
                "FB0559", f"it declares {dtype}{[*shape]}, and its kernel gives {of}"
            )
        if not made.is_contiguous() or made.untyped_storage().nbytes() != made.nbytes:
            held = made.untyped_storage().nbytes()
            why = f"its kernel gives {made.nbytes} bytes that lie in a storage of {held}"
            raise self.refusal("FB0559", why)

    def refusal(self, code: str, why: str) -> FBError:
        hint = "leave the codec away, or repair the package that it is of"
        return FBError(Diagnostic(code, f'codec "{self.codec.name}": {why}', hint=hint))


def _register_all() -> None:
    """Plug-ins that cannot be taken are refused where one is named."""
    for codec in own().values():
        register(codec)
    for plugin in plugins().values():
        if isinstance(plugin, Codec):
            try:
                register(plugin)
            except FBError as error:
                plugins()[plugin.name] = error


# Operators go when their library goes.
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
if sys.byteorder == "little":  # elsewhere there are none, and plans with codecs are refused: FB0901
    _register_all()
