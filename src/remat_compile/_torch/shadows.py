"""What a forward and its backward compute, seen without computing it, and fast.

`FakeTensorMode` knows more, and imports TorchDynamo and SymPy, which take longer than all the rest
of a second start. A shadow has the shape, the dtype and the device of a tensor, and no numbers.
`behaviour` runs a model on shadows, forward and backward, and condenses every operator that is
called, with all that is given to it and where that comes from, into one digest. Two models of one
digest call the same operators on the same things. What shape an operator gives is found on `meta`
once, where it is not among the `known`, and kept.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from ..ir.diagnostics import Diagnostic
from .attributes import attributes_of, changed_attributes, state_warnings
from .callable import PURE
from .hooks import Hook, hooks_of
from .kernel_strides import kernel_orders, laid_out
from .numberless import NoLooking, NoNumbers, Numberless, number_of
from .results import Results, asks_for_cache, read_results, what_to_know
from .wanted import ALL_RESULTS, Wanted
from .whole import WholeModel, as_if_compiling, unchanged

__all__ = ["Behaviour", "Shapes", "Unseen", "behaviour", "content"]

_PLAIN = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout)
_SETTINGS = (torch.memory_format, slice, type(None), type(...))


NO_SHAPES = ["nothing"]
"""Of a call that needs numbers."""

OTHER_STORAGE = frozenset(("set_", "resize_", "resize_as_"))
"""Operators that give a tensor another shape in place, and with it other memory."""


class Unseen(Exception):
    """The model cannot be run on shadows; why."""


@dataclass(frozen=True)
class Behaviour:
    """What one call of a model shows, `compiling` or not. `literals` are the contents of tensors
    that it makes from Python numbers, `shapes` what the operators gave; the rest is that of
    `Exported`."""

    digest: str
    compiling: bool
    results: Results
    warnings: tuple[Diagnostic, ...]
    changing: frozenset[str]
    own_hooks: frozenset[Hook]
    literals: frozenset[str]
    shapes: Mapping[str, list[Any]]


Shapes = Mapping[str, list[Any]]
"""Of a call as text: what it gives, as `json` has it."""


def behaviour(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: torch.device,
    wanted: Wanted = ALL_RESULTS,
    known: Shapes | None = None,
) -> Behaviour:
    """Of one step at a sample; nothing of the model changes. Unseen where Python must see numbers,
    draws from its own or NumPy's generators, or uses tensors or operators that are not told here,
    and where an operator's shapes are not among the `known` of an earlier run.

    A forward that asks for numbers unless it is compiled runs a second time, as if compiling; its
    first run belongs to what is known, up to where it asked.
    """
    shapes: dict[str, list[Any]] = {}
    for compiling in (False, True):
        with unchanged(model), as_if_compiling() if compiling else nullcontext():
            before, hooks_before = attributes_of(model), hooks_of(model)
            recorder = _ShadowMode(device, known, shapes)
            drawn = _generators()
            try:
                with recorder, recorder.made, NoLooking(recorder.refuse), torch.enable_grad():
                    results, notes = _run(recorder, model, args, kwargs, wanted)
            except Unseen:
                raise
            except Exception as error:  # whatever the model's Python raises without numbers
                failed = error
                continue
            if recorder.refused is not None:  # and the model's Python went on from there
                raise Unseen(recorder.refused)
            if _generators() != drawn:
                raise Unseen("the forward draws from Python's or NumPy's generators")
            after = attributes_of(model)
            diagnostics = (*state_warnings(before, after), *notes)
            changing = frozenset(changed_attributes(before, after))
            own = hooks_of(model) - hooks_before
            return Behaviour(
                recorder.digest(compiling),
                compiling,
                results,
                diagnostics,
                changing,
                own,
                frozenset(recorder.literals),
                shapes,
            )
    raise Unseen(f"the forward does not run without numbers ({type(failed).__name__})")


def content(tensor: Tensor) -> str:
    """The dtype, the shape and the bits of a tensor, condensed."""
    bits = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return f"{tensor.dtype}{[*tensor.shape]} {hashlib.sha256(bits).hexdigest()}"


def _run(
    recorder: _ShadowMode,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    wanted: Wanted,
) -> tuple[Results, tuple[Diagnostic, ...]]:
    made: dict[int, Tensor] = {}

    def shadow(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = recorder.made.like(tensor)
        return made[id(tensor)]

    state = {name: shadow(tensor) for name, tensor in _state(model)}
    given, named = tree_map_only(Tensor, shadow, (args, kwargs))
    called = WholeModel(model)
    returned = torch.func.functional_call(called, state, given, named)
    results = read_results(returned, wanted)
    trained = [t for t in results.tensors(returned) if t.requires_grad]
    sources = [t for t in made.values() if t.requires_grad]
    # Of scalars: for others PyTorch imports SymPy.
    ends = [t.sum() if t.dim() else t for t in trained]
    gradients = torch.autograd.grad(ends, sources, allow_unused=True)
    recorder.note("results", [*results.tensors(returned)], results.trained, results.detached)
    recorder.note("gradients", list(gradients))
    notes = what_to_know(results, returned)
    if asks_for_cache(model):
        called = WholeModel(model, with_cache=True)
        notes = what_to_know(results, torch.func.functional_call(called, state, given, named))
    return results, notes


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _generators() -> tuple[Any, ...]:
    """The states of Python's and NumPy's generators, comparable."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return (random.getstate(),)
    name, words, *rest = numpy.random.get_state()
    return (random.getstate(), name, words.tobytes(), *rest)


class _ShadowMode(TorchDispatchMode):
    """Gives shadows for what operators give, and notes each call."""

    def __init__(self, device: torch.device, known: Shapes | None, shapes: dict[str, list[Any]]):
        super().__init__()  # type: ignore[no-untyped-call]
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
            raise Unseen(f"{func} is an operator of a library")
        leaves, spec = tree_flatten((args, kwargs))
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
        return made[0] if kind == "one" else tuple(made) if kind == "tuple" else made

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
