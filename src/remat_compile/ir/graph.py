"""The forward-backward graph: cNodes compute, aNodes hold storage, views look at it.

Everything here is frozen data. A graph owns its nodes in declaration order and
offers the few look-ups that every consumer needs; analyses live beside it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Literal, get_args

from .expr import Const, Expr
from .span import Loc, Span

ANodeKind = Literal[
    "input",
    "param",
    "buffer",
    "const",
    "tangent",
    "act",
    "phantom",
    "grad",
    "param_grad",
    "output",
    "pending",
    "rng",
    "opt_state",
    "updated",
]
ANODE_KINDS: tuple[str, ...] = get_args(ANodeKind)

CALLER_KINDS: frozenset[str] = frozenset(("input", "param", "buffer", "const", "opt_state"))
"""Storage that the caller holds: alive from the first step to the last, never freed."""

Phase = Literal["fwd", "loss", "bwd", "opt"]
PHASES: tuple[str, ...] = get_args(Phase)

AtomKind = Literal["dtype", "device", "layout", "format", "complex"]
ATOM_KINDS: tuple[str, ...] = get_args(AtomKind)

LOSS_OP = "loss"
"""The operator name of the one cNode that stands for what lies between outputs and tangents."""

ACCUMULATE_OP = "accumulate"
"""The operator name of `%g2 = accumulate %g1 += %c`."""

UPDATE_OP = "update"
"""The operator name of `%w2, %m2 = update(%w, %m, %dw)`: one step of an optimizer."""

FUSED_OP = "fused"
"""The operator name of a region of calls that runs as one kernel."""

OWN_OPS = frozenset((LOSS_OP, ACCUMULATE_OP, UPDATE_OP, FUSED_OP))
"""Operators that the language defines; all others are a framework's."""

DTYPE_BYTES: dict[str, int] = {
    "f64": 8,
    "f32": 4,
    "f16": 2,
    "bf16": 2,
    "f8e4m3": 1,
    "f8e5m2": 1,
    "i64": 8,
    "i32": 4,
    "i16": 2,
    "i8": 1,
    "u8": 1,
    "u16": 2,
    "u32": 4,
    "u64": 8,
    "bool": 1,
    "c64": 8,
    "c128": 16,
}


_NOTHING = Const(0)


@dataclass(frozen=True, slots=True)
class Ref:
    """A use of an aNode or a view by name (without the `%`)."""

    name: str


@dataclass(frozen=True, slots=True)
class Atom:
    """A named constant of the framework: `dtype:f32`, `device:cpu`, `layout:strided`,
    `format:contiguous_format`; or a complex number, `complex:2+1j`."""

    kind: AtomKind
    value: str


Arg = Ref | Atom | Expr | bool | int | float | str | None | tuple["Arg", ...]
"""An argument of an operator. Plain integers stay `int`; an `Expr` has a symbol in it."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operator (`aten.addmm.default`) applied to arguments.

    `region` is what the operator `fused` runs: a function of its arguments, each a `Ref`, whose
    results are those names of the cNode's that the region's calls write.
    """

    op: str
    args: tuple[Arg, ...] = ()
    kwargs: tuple[tuple[str, Arg], ...] = ()
    region: tuple[InnerCall, ...] = ()

    def parts(self) -> Iterator[Call]:
        """The call itself, then those of its region."""
        yield self
        for inner in self.region:
            yield inner.call

    def refs(self) -> tuple[str, ...]:
        """Names read, in order of appearance, each once."""
        names: dict[str, None] = {}
        for arg in self.args:
            _collect(arg, names)
        for _, arg in self.kwargs:
            _collect(arg, names)
        return tuple(names)


@dataclass(frozen=True, slots=True)
class InnerCall:
    """A call inside a region; its names are the region's own, and have no storage outside.

    `index` picks one result of an operator that returns several, as in a view.
    """

    writes: tuple[str | None, ...]
    call: Call
    index: int | None = None


def _collect(arg: Arg, names: dict[str, None]) -> None:
    if isinstance(arg, Ref):
        names[arg.name] = None
    elif isinstance(arg, tuple):
        for part in arg:
            _collect(part, names)


@dataclass(frozen=True, slots=True)
class ANode:
    """One storage with exactly one writer (none for what the caller holds).

    `dtype` and `shape` describe the tensor its writer returns; `size` is the whole
    storage in bytes, before rounding to the target's granularity.
    """

    name: str
    kind: ANodeKind
    dtype: str
    shape: tuple[Expr, ...]
    size: Expr
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class View:
    """A pure function of the current instance of `base`; never saved, never freed.

    `call` reads `base` or other views of it. `index` picks one result of an operator
    that returns several (`split`, `unbind`).
    """

    name: str
    base: str
    call: Call
    index: int | None = None
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Replay:
    """The call that every execution after the first runs instead, free of effects.

    `writes` is a subset of the cNode's writes (`None` for unused results).
    """

    writes: tuple[str | None, ...]
    call: Call
    workspace: Expr = _NOTHING
    time_ns: int | None = None


@dataclass(frozen=True, slots=True)
class CNode:
    """One allocating operation.

    `writes` holds an aNode name or None (`_`, an unused result: the bytes of such
    results count as workspace) per result. For `accumulate`, `call.args` is
    `(Ref(g1), Ref(c))` and `writes` is `(g2,)`: g1 ends and its storage is named g2. The results of
    an `update` take over the storages of as many first arguments in the same way. `host_time_ns` is
    the time of an update on the host.
    `token` names the rng aNode of a random operator. `of` names the forward cNodes
    that a backward one belongs to. Time is None until a cost source has filled it.
    """

    name: str
    phase: Phase
    writes: tuple[str | None, ...]
    call: Call
    replay: Replay | None = None
    token: str | None = None
    of: tuple[str, ...] = ()
    workspace: Expr = _NOTHING
    time_ns: int | None = None
    loc: Loc | None = None
    span: Span | None = field(default=None, compare=False, repr=False)
    host_time_ns: int | None = None

    @property
    def is_loss(self) -> bool:
        return self.phase == "loss"

    @property
    def is_accumulate(self) -> bool:
        return self.call.op == ACCUMULATE_OP

    @property
    def is_update(self) -> bool:
        return self.call.op == UPDATE_OP

    @property
    def operands(self) -> tuple[str, ...]:
        """The names among the arguments in order, repeats included."""
        return tuple(arg.name for arg in self.call.args if isinstance(arg, Ref))

    @property
    def takes_over(self) -> tuple[tuple[str, str], ...]:
        """Each argument whose storage goes on as a result, with that result."""
        if not self.is_accumulate and not self.is_update:
            return ()
        return tuple(zip(self.call.refs(), self.results, strict=False))

    @property
    def is_fused(self) -> bool:
        return self.call.op == FUSED_OP

    @property
    def results(self) -> tuple[str, ...]:
        """The aNodes written, unused results left out."""
        return tuple(name for name in self.writes if name is not None)

    @property
    def replays_otherwise(self) -> bool:
        """True if executions after the first run another call (`1`, `1.0` and `true` differ)."""
        return self.replay is not None and repr(self.replay.call) != repr(self.call)

    def call_at(self, execution: int) -> Call:
        """The call of the n-th execution (from 1)."""
        return self.call if execution == 1 or self.replay is None else self.replay.call

    def results_at(self, execution: int) -> tuple[str, ...]:
        """The aNodes that the n-th execution (from 1) writes; the token not included."""
        if execution == 1 or self.replay is None:
            return self.results
        return tuple(name for name in self.replay.writes if name is not None)

    def workspace_at(self, execution: int) -> Expr:
        return self.workspace if execution == 1 or self.replay is None else self.replay.workspace

    def time_ns_at(self, execution: int) -> int:
        """Nanoseconds of the n-th execution; 0 where no cost source has filled it."""
        if execution > 1 and self.replay is not None and self.replay.time_ns is not None:
            return self.replay.time_ns
        return self.time_ns or 0


@dataclass(frozen=True)
class Graph:
    """One training step. Nodes stand in the order of capture, which is topological."""

    name: str
    anodes: tuple[ANode, ...]
    views: tuple[View, ...]
    cnodes: tuple[CNode, ...]

    @cached_property
    def anode(self) -> dict[str, ANode]:
        return {a.name: a for a in self.anodes}

    @cached_property
    def view(self) -> dict[str, View]:
        return {v.name: v for v in self.views}

    @cached_property
    def cnode(self) -> dict[str, CNode]:
        return {c.name: c for c in self.cnodes}

    @cached_property
    def writer(self) -> dict[str, CNode]:
        """The cNode that writes each aNode, tokens included."""
        writers: dict[str, CNode] = {}
        for c in self.cnodes:
            for name in c.results:
                writers[name] = c
            if c.token is not None:
                writers[c.token] = c
        return writers

    @cached_property
    def loss(self) -> CNode:
        """The one loss cNode."""
        return next(c for c in self.cnodes if c.is_loss)

    @cached_property
    def storage(self) -> dict[str, str]:
        """The aNode under every name that can be read: itself, or the base of the view."""
        storages = {a.name: a.name for a in self.anodes}
        storages.update({v.name: v.base for v in self.views})
        return storages

    def calls(self) -> Iterator[Call]:
        """The calls of views and cNodes, of the insides of regions, and of replay forms."""
        yield from (view.call for view in self.views)
        for c in self.cnodes:
            yield from (*c.call.parts(), c.call_at(2))

    def views_below(self, name: str, known: Container[str] = ()) -> tuple[View, ...]:
        """The view `name` and the views that it is a view of, in the order in which they can be
        derived; none of the `known`. Not by recursion: a model may have thousands in a row."""
        below: dict[str, View] = {}
        stack = [name]
        while stack:
            view = self.view.get(stack[-1])
            if view is None or view.name in known or view.name in below:
                stack.pop()
                continue
            sources = (r for r in view.call.refs() if r in self.view and r not in known)
            first = next((source for source in sources if source not in below), None)
            if first is None:
                below[view.name] = view
                stack.pop()
            else:
                stack.append(first)
        return tuple(below.values())

    @cached_property
    def parts(self) -> dict[str, dict[int, str]]:
        """For each view that is a part (of a `split`): all parts of one call, by their indices.
        Two of one call and index are taken from a call each."""
        calls: dict[tuple[str, Call], list[dict[int, str]]] = {}
        parts = {}
        for view in self.views:
            if view.index is None:
                continue
            of_call = calls.setdefault((view.base, view.call), [])
            free = next((given for given in of_call if view.index not in given), None)
            if free is None:
                of_call.append(free := {})
            free[view.index] = view.name
            parts[view.name] = free
        return parts

    @cached_property
    def _reads(self) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        """The reads of the first execution and of later ones: mostly one tuple."""
        reads_of = {}
        for c in self.cnodes:
            again = first = self._of_call(c.call)
            if c.replay is not None:
                again = self._of_call(c.replay.call)
            reads_of[c.name] = first, again
        return reads_of

    def _of_call(self, call: Call) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.storage[name] for name in call.refs()))

    def reads(self, cnode: CNode, execution: int = 1) -> tuple[str, ...]:
        """The aNodes that the n-th execution reads, through views; the token not included."""
        return self._reads[cnode.name][0 if execution == 1 else 1]

    @cached_property
    def readers(self) -> dict[str, tuple[CNode, ...]]:
        """The cNodes whose first execution reads each aNode, in order of capture."""
        readers_of: dict[str, list[CNode]] = {a.name: [] for a in self.anodes}
        for c in self.cnodes:
            for name in self.reads(c):
                readers_of[name].append(c)
        return {name: tuple(cs) for name, cs in readers_of.items()}

    def forget(self) -> None:
        """Lets go of the look-ups above, which take as much memory as half of a large graph. They
        are made again when they are asked for."""
        for name in vars(self).keys() - {own.name for own in fields(self)}:
            vars(self).pop(name, None)  # another thread may forget too

    def in_phase(self, phase: Phase) -> Iterator[CNode]:
        return (c for c in self.cnodes if c.phase == phase)
