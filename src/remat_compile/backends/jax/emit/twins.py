"""Computations that a plan makes twice: XLA would merge them, and keep what the plan frees."""

from __future__ import annotations

from ....ir.graph import CALLER_KINDS, Arg, Call, CNode, Graph, Ref
from .executions import constants


def twins(graph: Graph) -> dict[str, tuple[str, ...]]:
    """cNodes that apply an operator to the same values as one before, each with the aNodes
    among what it reads that are to be told apart for it: no constants, and no parameters, where
    there is another.

        F34: fwd %k0 = clone(%m)     F62: fwd %k1 = clone(%m)     gives F62 -> m

    The calls of a region are looked at as if they stood alone, and held against those before it,
    views outside of regions among them. All that it reads is told apart, parameters where nothing
    else does.
    """
    values = _Values(graph)
    fixed, seen, repeats = constants(graph), set[int](), dict[str, tuple[str, ...]]()
    constant = {name for c in graph.cnodes if c.name in fixed for name in c.results}
    for c in graph.cnodes:
        if c.is_loss or c.is_accumulate or c.token is not None:
            values.write(c.results, values.number(("own", c.name)))
            continue
        reads = graph.reads(c)
        if c.is_fused:
            made = values.region(c)
        else:
            made = {values.call(c.call): reads}
            values.results(c.writes, *made)
        before = seen | values.views if c.is_fused else seen
        again = [of for number, of in made.items() if number in before]
        if again and reads and c.name not in fixed:
            held = [name for name in reads if graph.anode[name].kind == "param"]
            others = [name for name in reads if name not in held]
            alone = {name for of in again if {*of} <= {*held} for name in of}
            whole = (*others, *(name for name in held if name in alone))
            varied = [name for name in others if name not in constant]
            repeats[c.name] = whole if c.is_fused else tuple(varied or held or reads)
        seen.update(made)
    return repeats


class _Values:
    """Numbers values: equal ones, as far as their operators and operands tell, alike."""

    def __init__(self, graph: Graph):
        self._graph = graph
        self._numbers: dict[object, int] = {}
        self._of: dict[str, int] = {}
        self.views: set[int] = set()
        """Calls of views outside of regions that were read."""
        for a in graph.anodes:
            if a.kind in CALLER_KINDS:
                self.write((a.name,), self.number(("given", a.name)))

    def number(self, value: object) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def write(self, names: tuple[str, ...], number: int) -> None:
        self._of.update((name, self.number((number, place))) for place, name in enumerate(names))

    def results(self, writes: tuple[str | None, ...], made: int, first: int = 0) -> None:
        """Notes what a call has written."""
        for place, name in enumerate(writes, first):
            if name is not None:
                self.write((name,), self.number(("result", made, place)))

    def call(self, call: Call) -> int:
        kwargs = tuple((key, self._arg(arg)) for key, arg in call.kwargs)
        return self.number(("call", call.op, tuple(map(self._arg, call.args)), kwargs))

    def region(self, c: CNode) -> dict[int, tuple[str, ...]]:
        """The calls of a region with what they depend on of all that it reads, where they do;
        parts of views left out. Its results are noted; other names end with it."""
        storage = self._graph.storage
        of = {name: self._value(name) for name in c.call.refs()}
        depends: dict[str, tuple[str, ...]] = {name: (storage[name],) for name in of}
        around, self._of = self._of, of
        made: dict[int, tuple[str, ...]] = {}
        for inner in c.call.region:
            number = self.call(inner.call)
            reads = dict.fromkeys(r for name in inner.call.refs() for r in depends.get(name, ()))
            if reads and inner.index is None:
                made.setdefault(number, tuple(reads))
            depends.update((name, tuple(reads)) for name in inner.writes if name is not None)
            self.results(inner.writes, number, inner.index or 0)
        self._of = around | {name: of[name] for name in c.results}
        return made

    def _arg(self, arg: Arg) -> object:
        match arg:
            case Ref(name):
                return ("value", self._value(name))
            case tuple():
                return tuple(map(self._arg, arg))
            case _:
                return repr(arg)

    def _value(self, name: str) -> int:
        """A view has its value when it is first read: what it is of has been written then."""
        if name not in self._of:
            view = self._graph.view[name]
            call = self.call(view.call)
            self.views.add(call)
            self._of[name] = self.number(("view", call, view.index))
        return self._of[name]
