"""Tensors without numbers, and fast: what a forward and its backward compute, seen only.

`FakeTensorMode` knows more, and imports TorchDynamo and SymPy, which take longer than all the rest
of a second start. A shadow has the shape, the dtype and the device of a tensor, and no numbers.
`ShadowMode` condenses every operator that is called on shadows, with all that is given to it and
where that comes from, into one digest. What shape an operator gives is found on `meta`
once, where it is not among the `known`, and kept.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..operators import PURE
from .host_reads import UNANSWERED, ReadTracker
from .kernel_strides import kernel_orders, laid_out
from .libraries import is_library, stamp
from .numberless import NoNumbers, Numberless, number_of

__all__ = ["ShadowMode", "Shapes", "Unseen", "content"]

_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout)
_SETTINGS = (torch.memory_format, slice, type(None), type(...))


NO_SHAPES = ["nothing"]
"""Of a call that needs numbers."""

OTHER_STORAGE = frozenset(("set_", "resize_", "resize_as_"))
"""Operators that give a tensor another shape in place, and with it other memory."""


class Unseen(Exception):
    """The model cannot be run on shadows; why."""


Shapes = Mapping[str, list[Any]]
"""Of a call as text: what it gives, as `json` has it."""


def content(tensor: Tensor) -> str:
    """The dtype, the shape and the bits of a tensor, condensed."""
    bits = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return f"{tensor.dtype}{[*tensor.shape]} {hashlib.sha256(bits).hexdigest()}"


class ShadowMode(TorchDispatchMode):
    """Gives shadows for what operators give, and notes each call. `reads` answers what Python reads
    of numbers, where it can."""

    def __init__(
        self,
        device: torch.device,
        known: Shapes | None,
        shapes: dict[str, list[Any]],
        reads: ReadTracker,
    ):
        super().__init__()  # type: ignore[no-untyped-call]
        self.reads = reads
        self.shapes = shapes
        self.literals: set[str] = set()
        self._device = device
        self._known = known
        self.made = Numberless()
        self._hash = hashlib.sha256()
        self.refused: str | None = None

    def refuse(self, why: str) -> NoNumbers:
        """Notes that the model asked for numbers, which its Python may hide by an `except`."""
        self.refused = self.refused or why
        return NoNumbers(why)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else PyTorch imports TorchDynamo to keep out of the method below."""
        return False

    def digest(self, compiling: bool) -> str:
        self.note("compiling", compiling)
        return self._hash.hexdigest()

    def note(self, *what: Any) -> None:
        leaves, spec = tree_flatten(what)
        texts = [f"{number_of(leaf)} {_text(leaf)}" for leaf in leaves]
        self._hash.update(f"{spec}{texts}\n".encode())

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        try:
            return self._called(func, args, kwargs or {})
        except Exception as error:
            self.refuse(str(error))
            raise

    def _called(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func.namespace not in PURE and func.namespace != "prim":
            self._hash.update(f"{code_of(func)}\n".encode())
        leaves, spec = tree_flatten((args, kwargs))
        number = self.reads.answer(func, leaves, spec)
        if number is not UNANSWERED:
            return number
        is_literal = func is torch.ops.aten.lift_fresh.default
        texts = [self._argument(leaf, is_literal=is_literal) for leaf in leaves]
        call = f"{func} {spec} {texts}"
        grads = torch.is_grad_enabled(), [number_of(leaf) for leaf in leaves]
        self._hash.update(f"{call} {grads}\n".encode())
        if call not in self.shapes:
            if self._known is not None and call not in self._known:
                raise Unseen(f"{func} was not called in that way before")
            known = None if self._known is None else self._known[call]
            self.shapes[call] = known or _shapes(func, leaves, spec)
        if self.shapes[call] == NO_SHAPES:
            raise NoNumbers(f"{func} has no result without numbers")
        if _is_relaid(func):
            with no_dispatch():
                func(*args, **kwargs)
        kind, *parts = self.shapes[call]
        arguments = func._schema.arguments
        device = kwargs.get("device") if any(a.name == "device" for a in arguments) else None
        made = [self._made(part, leaves, device or self._device) for part in parts]
        result = made[0] if kind == "one" else tuple(made) if kind == "tuple" else made
        self.reads.note(func, leaves, spec, result)
        return result

    def _made(self, part: Any, leaves: list[Any], device: torch.device) -> Any:
        match part:
            case ["new", list(shape), list(stride), str(dtype)]:
                return self.made.new(shape, stride, _DTYPES[dtype], device)
            case ["given", int(place)]:
                given = leaves[place]
                return given if number_of(given) else self._literal(given)
            case ["plain", value]:
                return value
        raise Unseen("what is known of shapes is damaged")

    def _literal(self, tensor: Tensor) -> Tensor:
        return self.made.new(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)

    def _argument(self, leaf: Any, *, is_literal: bool) -> str:
        if isinstance(leaf, Tensor) and not number_of(leaf):
            if not is_literal:
                raise Unseen("it uses a tensor that is no parameter, buffer or argument")
            text = content(leaf)
            self.literals.add(text)
            return text
        return _text(leaf)


def code_of(func: OpOverload) -> list[tuple[Any, ...]]:
    """Of an operator of an installed library, made by `torch.library.custom_op`, the places and
    files of all its functions. Unseen for one that is written otherwise, or by the user, and for
    one that writes to its arguments or gives views: `meta` does not tell all that those do."""
    known = sys.modules.get("torch._library.custom_ops")
    made = None if known is None else known.OPDEFS.get(func._schema.name)
    aliased = [a for a in (*func._schema.arguments, *func._schema.returns) if a.alias_info]
    if made is None or aliased or func._overloadname != "default":
        raise Unseen(f"{func} is an operator of a library")
    functions = [
        *(made._init_fn, made._abstract_fn, made._setup_context_fn, made._backward_fn),
        *made._backend_fns.values(),  # in a function of PyTorch's
        *made._torch_dispatch_fns.values(),
    ]
    codes = [code for f in functions if f is not None for code in _codes_in(inspect.unwrap(f))]
    if not all(is_library(code.co_filename) for code in codes):
        raise Unseen(f"{func} is an operator of the user's own")
    return [(c.co_name, c.co_firstlineno, *stamp(c.co_filename)) for c in codes]


def _codes_in(function: types.FunctionType) -> Iterator[types.CodeType]:
    """Of a function, and of those in its closure."""
    yield function.__code__
    for cell in function.__closure__ or ():
        if isinstance(cell.cell_contents, types.FunctionType):
            yield inspect.unwrap(cell.cell_contents).__code__


_DTYPES = {str(x): x for x in vars(torch).values() if isinstance(x, torch.dtype)}


def _shapes(func: OpOverload, leaves: list[Any], spec: Any) -> list[Any]:
    """What a call gives, as `meta` tells it and the kernel lays it out; `NO_SHAPES` where `meta`
    cannot."""
    on_meta = [_on_meta(leaf) for leaf in leaves]
    args, options = tree_unflatten(on_meta, spec)
    if any(a.name == "device" for a in func._schema.arguments):
        options["device"] = torch.device("meta")
        options.pop("pin_memory", None)
    try:
        made = func(*args, **options)
    except Exception:  # of PyTorch, where numbers decide
        return NO_SHAPES
    given, named = tree_unflatten(leaves, spec)
    made = laid_out(made, kernel_orders(func, given, named, made))
    parts = list(made) if isinstance(made, tuple | list) else [made]
    kind = "tuple" if isinstance(made, tuple) else "list" if isinstance(made, list) else "one"
    return [kind, *(_part(func, part, on_meta, leaves) for part in parts)]


def _is_relaid(func: OpOverload) -> bool:
    """Whether an operator gives the tensor that it is called on another shape or other strides,
    as adaptive pooling to one pixel does."""
    is_view = torch.Tag.inplace_view in func.tags
    return is_view and func.overloadpacket.__name__ not in OTHER_STORAGE


def _part(func: OpOverload, part: Any, on_meta: list[Any], leaves: list[Any]) -> list[Any]:
    if not isinstance(part, Tensor):
        if part is None or isinstance(part, bool | int | float):
            return ["plain", part]
        raise Unseen(f"an operator gives a {type(part).__name__}")
    for place, given in enumerate(on_meta):
        if part is given:
            old = leaves[place]
            if (old.shape, old.stride()) != (part.shape, part.stride()) and not _is_relaid(func):
                raise Unseen("an operator gives a tensor another shape")
            return ["given", place]
    return ["new", list(part.shape), list(part.stride()), str(part.dtype)]


def _on_meta(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        shape, stride, dtype = tuple(leaf.shape), leaf.stride(), leaf.dtype
        return torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    return torch.device("meta") if isinstance(leaf, torch.device) else leaf


def _text(leaf: Any) -> str:
    if number_of(leaf):
        return f"{leaf.dtype}{[*leaf.shape]}{leaf.stride()}{leaf.device}{leaf.requires_grad}"
    if isinstance(leaf, (*_PLAIN, *_SETTINGS)):
        return f"{type(leaf).__name__} {leaf!r}"
    raise Unseen(f"an operator is given a {type(leaf).__name__}")
