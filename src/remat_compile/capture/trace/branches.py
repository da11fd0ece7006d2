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

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ...ir.diagnostics import Diagnostic, listed
from ...operators import PURE
from ...operators.instances import plain_mode
from ...operators.overloads import OpOverload
from ...operators.schema import effects_of
from .places import Place, paths_of, place_of_caller

UNANSWERED = object()
"""In the place of a number that is not known here."""


class _Unknown(Exception):
    """A tensor that no argument and no literal leads to, or a size that is dynamic."""


@dataclass(frozen=True, eq=False)
class HostRead:
    """A number that hangs on arguments, as the sample's make it, and where the forward reads it.

    The last of `nodes` gives it, the others lead to it: `placeholder`s are places of the flat
    arguments, each `get_attr` is a tensor that the forward makes of Python numbers.
    """

    nodes: tuple[fx.Node, ...]
    number: bool | int
    place: Place

    def __deepcopy__(self, memo: dict[int, Any]) -> HostRead:
        return self


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
        self._begin(())

    def _begin(self, leaves: Sequence[object]) -> None:
        """Forgets what was; `leaves` are what stands for the sample in the forward that comes."""
        self.reads.clear()
        self._graph = fx.Graph()
        self._origins: dict[int, tuple[Tensor, fx.Node]] = {}
        self._shared: dict[int, set[int]] = {}
        self._calls: dict[str, fx.Node] = {}
        self._read_of: dict[fx.Node, HostRead] = {}
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor) and self._has_values:
                node = self._graph.placeholder(f"argument{place}")
                node.meta.update(place=place, nbytes=0, of_arguments=True)
                self._origins[id(leaf)] = (leaf, node)

    @contextmanager
    def watching(self, leaves: Sequence[object]) -> Iterator[None]:
        """Inside, what a traced forward reads is answered."""
        self._begin(leaves)
        with _ReadMode(self):
            yield
        self._graph.output([read.nodes[-1] for read in self.reads])
        self._graph.eliminate_dead_code()  # the reads hold the graph

    def answer(self, func: OpOverload, args: Any, kwargs: Any) -> Any:
        """The number that an operator gives; UNANSWERED where it gives none, or it is not known."""
        if torch.Tag.data_dependent_output not in func.tags or _gives_tensors(func):
            return UNANSWERED
        node = self._call(func, args, kwargs, 0)
        if node is None:
            return UNANSWERED
        if node not in self._read_of:
            nodes = _leading_to(node)
            is_constant = not node.meta["of_arguments"]
            if not is_constant and sum(n.meta["nbytes"] for n in nodes) > self._limit_bytes:
                return UNANSWERED
            try:
                number = _evaluated(nodes, self._sample, self._device, {})
            except Exception:  # of PyTorch: on a device that is not there
                return UNANSWERED
            if is_constant:
                return number
            if type(number) not in (bool, int):  # one of another type is another at each call
                return UNANSWERED
            self._read_of[node] = HostRead(nodes, number, place_of_caller(self._paths))
            self.reads.append(self._read_of[node])
        return self._read_of[node].number

    def note(self, func: OpOverload, args: Any, kwargs: Any, made: Any) -> None:
        """Note a call of an operator, which `made` this."""
        if func._schema.is_mutable:
            self._forget_written(func, args, kwargs)
            return
        parts = list(made) if isinstance(made, tuple | list) else [made]
        tensors = [part for part in parts if isinstance(part, Tensor)]
        is_view = any(returned.alias_info is not None for returned in func._schema.returns)
        if is_view:
            self._share([*tree_leaves((args, kwargs)), *tensors])
        if not all(map(_is_sized, tensors)):
            return
        nbytes = 0 if is_view else sum(t.numel() * t.element_size() for t in tensors)
        node = self._call(func, args, kwargs, nbytes)
        if node is None:
            return
        for index, part in enumerate(parts):
            if isinstance(part, Tensor) and id(part) not in self._origins:
                of_one = node
                if isinstance(made, tuple | list):
                    of_one = self._graph.call_function(operator.getitem, (node, index))
                    of_one.meta.update(node.meta, nbytes=0)
                self._origins[id(part)] = (part, of_one)

    def _share(self, leaves: Sequence[Any]) -> None:
        """Note tensors that lie in the same memory, of which one may be followed."""
        keys = {id(leaf) for leaf in leaves if isinstance(leaf, Tensor)}
        together = keys.union(*(self._shared.get(key, ()) for key in keys))
        for key in together:
            self._shared[key] = together

    def _forget_written(self, func: OpOverload, args: Any, kwargs: Any) -> None:
        """Stop following what is written to, and what lies in the same memory."""
        names = [argument.name for argument in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        for argument in func._schema.arguments:
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for tensor in tree_leaves(given.get(argument.name)):
                for key in (id(tensor), *self._shared.get(id(tensor), ())):
                    self._origins.pop(key, None)

    def _call(self, func: OpOverload, args: Any, kwargs: Any, nbytes: int) -> fx.Node | None:
        """The call, the same for the same arguments; None where it cannot be made again."""
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        if func.namespace not in PURE or is_random or effects_of(func).is_unwritten:
            return None
        origin = self._literal if func is torch.ops.aten.lift_fresh.default else self._origin
        try:
            args, kwargs = tree_map(origin, (args, kwargs))
        except _Unknown:
            return None
        key = f"{func} {args!r} {kwargs!r}"
        if key not in self._calls:
            node = self._calls[key] = self._graph.call_function(func, args, kwargs)
            of_arguments = any(n.meta["of_arguments"] for n in node.all_input_nodes)
            node.meta.update(nbytes=nbytes, of_arguments=of_arguments)
        return self._calls[key]

    def _origin(self, leaf: Any) -> Any:
        """Where a tensor comes from, or what is no tensor."""
        if isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise _Unknown
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in self._origins:
            raise _Unknown
        return self._origins[id(leaf)][1]

    def _literal(self, leaf: Any) -> Any:
        if type(leaf) is not Tensor:
            return self._origin(leaf)
        node = self._graph.create_node("get_attr", "literal")
        node.meta.update(tensor=leaf, nbytes=0, of_arguments=False)
        return node


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
        number = self._tracker.answer(func, args, kwargs)
        if number is not UNANSWERED:
            return number
        made = func(*args, **kwargs)
        self._tracker.note(func, args, kwargs, made)
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
    values: dict[fx.Node, Any] = {}
    for read in reads:
        number = _evaluated(read.nodes, arguments, device, values)
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
    at = f" ({listed(places, 3)})" if places else ""
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
    nodes: Sequence[fx.Node],
    arguments: Sequence[object],
    device: torch.device,
    values: dict[fx.Node, Any],
) -> Any:
    """Return the value of the last node; `values` are those that are known, and are added to."""
    with plain_mode(device):
        for node in nodes:
            if node in values:
                continue
            if node.op == "placeholder":
                values[node] = arguments[node.meta["place"]]
            elif node.op == "get_attr":
                values[node] = node.meta["tensor"]
            else:
                function: Any = node.target
                args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = function(*args, **kwargs)
    return values[nodes[-1]]


def _leading_to(node: fx.Node) -> tuple[fx.Node, ...]:
    """Return the node and all that lead to it, each behind what it needs."""
    needed = {node}
    waiting = [node]
    while waiting:
        fresh = [n for n in waiting.pop().all_input_nodes if n not in needed]
        needed.update(fresh)
        waiting += fresh
    return tuple(sorted(needed))


def _gives_tensors(func: OpOverload) -> bool:
    return any("Tensor" in str(returned.type) for returned in func._schema.returns)


def _is_sized(tensor: Tensor) -> bool:
    return all(isinstance(size, int) for size in tensor.shape)


def _has_values(leaf: object) -> bool:
    if not isinstance(leaf, Tensor):
        return True
    return type(leaf) in (Tensor, nn.Parameter) and not leaf.is_meta
