"""Classes of parts of a graph that are identical up to names, so each is planned once.

Two parts are identical when their cNodes agree one by one in phase, operator, arguments,
sizes and workspace, with the names of one renamed to those of the other. Times are not
compared: a cost source gives equal ones to equal cNodes.

Two parts that look alike inside may be of different use to what stands around them (a value that
is read outside, one that is kept): `uses` says so, for whom that matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256

from ..expr import Expr
from ..graph import Arg, Call, CNode, Graph, Ref
from .regions import region_function

Key = tuple[object, ...]


_NO_USES: Mapping[str, str] = {}


def fingerprint(graph: Graph, *parts: Iterable[str], uses: Mapping[str, str] = _NO_USES) -> str:
    """A hash of the structure of these cNodes, by name and in this order, names left out.

    Where a part ends and the next one begins (forward, backward) counts too, and what `uses`
    says of an aNode.
    """
    shape = _Shape(graph, uses)
    keys = tuple(tuple(shape.of_cnode(graph.cnode[name]) for name in part) for part in parts)
    return sha256(repr(keys).encode()).hexdigest()


class _Shape:
    """Replaces names by numbers in order of first mention. cNodes have names of their own:
    `F1` computes, `%F1` is stored."""

    def __init__(self, graph: Graph, uses: Mapping[str, str]):
        self.graph = graph
        self.uses = uses
        self.numbers: dict[tuple[bool, str], str] = {}

    def of_cnode(self, c: CNode) -> Key:
        call = self._call(c.call)
        writes = tuple(self._storage(name) for name in c.writes)
        replay: Key | None = None
        if c.replay is not None:
            again = tuple(self._storage(name) for name in c.replay.writes)
            replay = (self._call(c.replay.call), again, c.replay.workspace)
        token = self._storage(c.token)
        number, _ = self._number("cnode", c.name)
        region = repr(region_function(c)) if c.is_fused else None
        return (number, c.phase, call, writes, replay, token, c.workspace, region)

    def _number(self, kind: str, name: str) -> tuple[str, bool]:
        """The number of a name, and whether this is its first mention."""
        key = (kind == "cnode", name)
        if key in self.numbers:
            return self.numbers[key], False
        self.numbers[key] = f"{kind}{len(self.numbers)}"
        return self.numbers[key], True

    def _call(self, call: Call) -> Key:
        args = tuple(self._arg(arg) for arg in call.args)
        kwargs = tuple((name, self._arg(arg)) for name, arg in call.kwargs)
        return (call.op, args, kwargs)

    def _arg(self, arg: Arg) -> object:
        if isinstance(arg, Ref):
            return self._ref(arg.name)
        if isinstance(arg, tuple):
            return tuple(self._arg(part) for part in arg)
        if isinstance(arg, bool | int | float | str | None):
            return (type(arg).__name__, repr(arg))
        return arg

    def _ref(self, name: str) -> Key:
        view = self.graph.view.get(name)
        if view is None:
            return self._storage(name)
        number, new = self._number("view", name)
        if not new:
            return (number,)
        return (number, view.index, self._storage(view.base), self._call(view.call))

    def _storage(self, name: str | None) -> Key:
        if name is None:
            return ("_",)
        number, new = self._number("anode", name)
        if not new:
            return (number,)
        a = self.graph.anode[name]
        shape: tuple[Expr, ...] = a.shape
        return (number, a.kind, a.dtype, shape, a.size, self.uses.get(name))
