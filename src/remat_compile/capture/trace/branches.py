"""Reads of numbers from tensors by the Python of a forward, while it is traced.

A branch on `bool((positions == 0).all())` needs a number, and a traced tensor has none. Many models
leave such a branch out while they are compiled, and then compute something else than in eager. So
they are traced as eager runs them, and what they read is answered:

* a number that comes of sizes and literals alone is a constant of the step;
* one that hangs on arguments too is what the sample's arguments make it, and the step is one for
  calls that make it the same: what leads to it is kept, and computed before each (`HostRead`);
* what hangs on parameters, buffers, random numbers or dynamic sizes is not answered.

Example: in `mask = attention_mask.to(torch.bool)`, `if mask.all():` the read is
`_local_scalar_dense(all(_to_copy(argument 1)))`, True for a sample without padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from ...ir.diagnostics import Diagnostic
from ...operators import PURE
from ...operators.instances import plain_mode
from ...operators.overloads import OpOverload
from ...operators.schema import effects_of
from .places import Place, paths_of, place_of_caller

SHOWN = 3
"""Places in a message; of more, the number is told."""

UNANSWERED = object()
"""In the place of a number that is not known here."""


@dataclass(frozen=True, eq=False)
class _Argument:
    """The tensor at a place of the flat arguments."""

    place: int


@dataclass(frozen=True, eq=False)
class _Call:
    """An operator with its flat arguments; in the place of tensors stands where they come from.

    `nbytes` is what it makes, `of_arguments` says that an argument leads to it.
    """

    func: OpOverload
    leaves: tuple[Any, ...]
    spec: TreeSpec
    nbytes: int
    of_arguments: bool


@dataclass(frozen=True, eq=False)
class _Result:
    """Result of a call; one of several where it has an index."""

    call: _Call
    index: int | None


@dataclass(frozen=True, eq=False)
class _Literal:
    """A tensor that the forward makes of Python numbers."""

    tensor: Tensor


_Origin = _Argument | _Result | _Literal


@dataclass(frozen=True, eq=False)
class HostRead:
    """A number that hangs on arguments, as the sample's make it, and where the forward reads it."""

    call: _Call
    number: bool | int
    place: Place


class ReadTracker:
    """Follows where the tensors of one forward come from, and answers what is read of them.

    `sample` are the flat arguments. Numbers that hang on them are not answered where computing them
    takes more than `trained_bytes`. Nothing is answered of a sample without values.
    """

    def __init__(self, sample: Sequence[object], device: torch.device, model: nn.Module):
        self.reads: list[HostRead] = []
        self._sample = sample
        self._device = device
        self._limit_bytes = trained_bytes(model)
        self._paths = paths_of(model)
        self._has_values = all(map(_has_values, sample))
        self._origins: dict[int, tuple[Tensor, _Origin]] = {}
        self._shared: dict[int, set[int]] = {}
        self._calls: dict[tuple[Any, ...], _Call] = {}
        self._read_of: dict[_Call, HostRead] = {}

    def begin(self, leaves: Sequence[object]) -> None:
        """Forgets what was; `leaves` are what stands for the sample in the forward that comes."""
        for held in (self._origins, self._shared, self._calls, self._read_of, self.reads):
            held.clear()
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor) and self._has_values:
                self._origins[id(leaf)] = (leaf, _Argument(place))

    @contextmanager
    def watching(self, leaves: Sequence[object]) -> Iterator[None]:
        """Inside, what a traced forward reads is answered."""
        self.begin(leaves)
        with _ReadMode(self):
            yield

    def answer(self, func: OpOverload, leaves: Sequence[Any], spec: TreeSpec) -> Any:
        """The number that an operator gives; UNANSWERED where it gives none, or it is not known."""
        if torch.Tag.data_dependent_output not in func.tags or _gives_tensors(func):
            return UNANSWERED
        call = self._call(func, leaves, spec, 0)
        if call is None:
            return UNANSWERED
        if not call.of_arguments:
            return self._computed(call)
        if call not in self._read_of:
            number = self._number(call)
            if type(number) not in (bool, int):  # one of another type is another at each call
                return UNANSWERED
            read = HostRead(call, number, place_of_caller(self._paths))
            self._read_of[call] = read
            self.reads.append(read)
        return self._read_of[call].number

    def note(self, func: OpOverload, leaves: Sequence[Any], spec: TreeSpec, made: Any) -> None:
        """Note a call of an operator, which `made` this."""
        if func._schema.is_mutable:
            self._forget_written(func, leaves, spec)
            return
        parts = list(made) if isinstance(made, tuple | list) else [made]
        tensors = [part for part in parts if isinstance(part, Tensor)]
        is_view = any(returned.alias_info is not None for returned in func._schema.returns)
        nbytes = (
            0 if is_view else sum(t.numel() * t.element_size() for t in tensors if _is_sized(t))
        )
        if is_view:
            self._share([*leaves, *tensors])
        call = self._call(func, leaves, spec, nbytes)
        if call is None or not all(map(_is_sized, tensors)):
            return
        for index, part in enumerate(parts):
            if isinstance(part, Tensor) and id(part) not in self._origins:
                origin = _Result(call, index if isinstance(made, tuple | list) else None)
                self._origins[id(part)] = (part, origin)

    def _share(self, leaves: Sequence[Any]) -> None:
        """Note tensors that lie in the same memory, of which one may be followed."""
        keys = {id(leaf) for leaf in leaves if isinstance(leaf, Tensor)}
        together = keys.union(*(self._shared.get(key, ()) for key in keys))
        for key in together:
            self._shared[key] = together

    def _forget_written(self, func: OpOverload, leaves: Sequence[Any], spec: TreeSpec) -> None:
        """Stop following what is written to, and what lies in the same memory."""
        args, kwargs = tree_unflatten(list(leaves), spec)
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        for argument in func._schema.arguments:
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for tensor in tree_flatten(given.get(argument.name))[0]:
                for key in (id(tensor), *self._shared.get(id(tensor), ())):
                    self._origins.pop(key, None)

    def _call(
        self, func: OpOverload, leaves: Sequence[Any], spec: TreeSpec, nbytes: int
    ) -> _Call | None:
        """The call, the same for the same arguments; None where it cannot be made again."""
        known = effects_of(func)
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        if func.namespace not in PURE or is_random or known.is_unwritten:
            return None
        is_literal = func is torch.ops.aten.lift_fresh.default
        origins = [self._origin(leaf, is_literal=is_literal) for leaf in leaves]
        if None in origins:
            return None
        key = (func, str(spec), *map(_key, origins))
        if key not in self._calls:
            of_arguments = any(map(_hangs_on_arguments, origins))
            self._calls[key] = _Call(func, tuple(origins), spec, nbytes, of_arguments)
        return self._calls[key]

    def _origin(self, leaf: Any, *, is_literal: bool) -> Any:
        """Where a tensor comes from, or what is no tensor, in a tuple; None where it is unknown."""
        if not isinstance(leaf, Tensor):
            is_dynamic = isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool)
            return None if is_dynamic else (leaf,)
        if is_literal and type(leaf) is Tensor:
            return _Literal(leaf)
        known = self._origins.get(id(leaf))
        return None if known is None else known[1]

    def _number(self, call: _Call) -> Any:
        """Return the number that the sample's arguments give."""
        if sum(each.nbytes for each in _in_order(call)) > self._limit_bytes:
            return UNANSWERED
        return self._computed(call)

    def _computed(self, call: _Call) -> Any:
        try:
            return _evaluated(call, self._sample, self._device, {})
        except Exception:  # of PyTorch: on a device that is not there
            return UNANSWERED


class _ReadMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, tracker: ReadTracker):
        super().__init__()  # type: ignore[no-untyped-call]
        self._tracker = tracker

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        leaves, spec = tree_flatten((args, kwargs))
        number = self._tracker.answer(func, leaves, spec)
        if number is not UNANSWERED:
            return number
        made = func(*args, **kwargs)
        self._tracker.note(func, leaves, spec, made)
        return made


def trained_bytes(model: nn.Module) -> int:
    """Return the bytes of all gradients. They live together at the end of a step, and nothing of it
    before: what is computed then and takes no more is within the bound of the step."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return sum(p.numel() * p.element_size() for p in trained)


def changed_reads(
    reads: Sequence[HostRead], arguments: Sequence[object], device: torch.device
) -> list[str]:
    """The first number that is another than the sample's, for these flat arguments; in words.

    One after the other, as the forward reads them: what it computes for a later one may fail where
    an earlier one sends it another way (an index that only then is out of range).
    """
    values: dict[_Call, Any] = {}
    for read in reads:
        number = _evaluated(read.call, arguments, device, values)
        if (type(number), number) != (type(read.number), read.number):
            return [
                f"the forward would go another way: a value of its inputs is {number}"
                f"{_at(read.place)}; in the sample it is {read.number}"
            ]
    return []


def warnings_of_reads(reads: Sequence[HostRead]) -> tuple[Diagnostic, ...]:
    """FB0524 where a step is one for the numbers of its sample."""
    if not reads:
        return ()
    places = list(dict.fromkeys(str(read.place) for read in reads if str(read.place)))
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    at = f" ({', '.join(places[:SHOWN])}{more})" if places else ""
    message = (
        f"the forward branches on values of its inputs{at}: the plan holds while those branches "
        "go the same way"
    )
    hint = 'on_change="replan" plans other calls once for each way, "eager" runs them unplanned'
    return (Diagnostic("FB0524", message, hint=hint),)


def warnings_of_way(*, compiling: bool) -> tuple[Diagnostic, ...]:
    """FB0525 where a step is traced as if it were compiled: what eager reads is not guarded."""
    if not compiling:
        return ()
    message = (
        "the forward reads a number that no plan knows, and is captured as torch.compile sees it: "
        "the plan is checked against eager at the sample alone"
    )
    hint = "decide on tensors (torch.where), or on whole numbers of the inputs"
    return (Diagnostic("FB0525", message, hint=hint),)


def _at(place: Place) -> str:
    return f" ({place})" if str(place) else ""


def _evaluated(
    call: _Call, arguments: Sequence[object], device: torch.device, values: dict[_Call, Any]
) -> Any:
    """Return the result of a call; `values` are those of calls that were made before, and are added
    to."""

    def value(origin: Any) -> Any:
        match origin:
            case _Argument(place):
                return arguments[place]
            case _Literal(tensor):
                return tensor
            case _Result(call, index):
                return values[call] if index is None else values[call][index]
            case (plain,):
                return plain

    with plain_mode(device):
        for each in _in_order(call):
            if each not in values:
                args, kwargs = tree_unflatten(list(map(value, each.leaves)), each.spec)
                values[each] = each.func(*args, **kwargs)
    return values[call]


def _in_order(call: _Call) -> list[_Call]:
    """Return the call and all that lead to it, each once, behind what it needs."""
    order: dict[_Call, None] = {}
    waiting = [call]
    while waiting:
        call = waiting[-1]
        needs = [o.call for o in call.leaves if isinstance(o, _Result) and o.call not in order]
        if needs:
            waiting += needs
        else:
            order[waiting.pop()] = None
    return list(order)


def _hangs_on_arguments(origin: Any) -> bool:
    if isinstance(origin, _Result):
        return origin.call.of_arguments
    return isinstance(origin, _Argument)


def _key(origin: Any) -> Any:
    match origin:
        case (plain,):
            return f"{type(plain).__name__} {plain!r}"
        case _Result(call, index):
            return (call, index)
        case _Argument(place):
            return ("argument", place)
        case _:
            return origin


def _gives_tensors(func: OpOverload) -> bool:
    return any("Tensor" in str(returned.type) for returned in func._schema.returns)


def _is_sized(tensor: Tensor) -> bool:
    return all(isinstance(size, int) for size in tensor.shape)


def _has_values(leaf: object) -> bool:
    if not isinstance(leaf, Tensor):
        return True
    return type(leaf) in (Tensor, nn.Parameter) and not leaf.is_meta
