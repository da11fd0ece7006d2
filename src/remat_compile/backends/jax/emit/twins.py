"""Computations that a model makes twice: XLA would merge them, and keep what a plan frees."""

from __future__ import annotations

from ....ir.graph import CALLER_KINDS, Arg, Call, Graph, Ref
from .executions import constants

__all__ = ["twins"]


def twins(graph: Graph) -> dict[str, str]:
    """cNodes that apply the same operator to the same values as one before, each with the aNode
    among what it reads that is to be told apart for it: not a parameter, where there is another.

        F34: fwd %k0 = clone(%m)     F62: fwd %k1 = clone(%m)     gives F62 -> m
    """
    values = _Values(graph)
    fixed, seen, repeats = constants(graph), set[int](), dict[str, str]()
    for c in graph.cnodes:
        if c.is_loss or c.is_accumulate or c.token is not None:
            values.write(c.results, values.number(("own", c.name)))
            continue
        made = values.call(c.call)
        reads = graph.reads(c)
        if made in seen and reads and c.name not in fixed:
            repeats[c.name] = min(reads, key=lambda name: graph.anode[name].kind == "param")
        seen.add(made)
        for place, name in enumerate(c.writes):
            if name is not None:
                values.write((name,), values.number(("result", made, place)))
    return repeats


class _Values:
    """Numbers values: equal ones, as far as their operators and operands tell, alike."""

    def __init__(self, graph: Graph):
        self._graph = graph
        self._numbers: dict[object, int] = {}
        self._of: dict[str, int] = {}
        for a in graph.anodes:
            if a.kind in CALLER_KINDS:
                self.write((a.name,), self.number(("given", a.name)))

    def number(self, value: object) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def write(self, names: tuple[str, ...], number: int) -> None:
        self._of.update((name, self.number((number, place))) for place, name in enumerate(names))

    def call(self, call: Call) -> int:
        kwargs = tuple((key, self._arg(arg)) for key, arg in call.kwargs)
        return self.number(("call", call.op, tuple(map(self._arg, call.args)), kwargs))

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
            self._of[name] = self.number(("view", self.call(view.call), view.index))
        return self._of[name]
