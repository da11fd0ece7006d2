"""The body of one generated function: a schedule's steps as lines of JAX.

An aNode is one Python variable, bound again by each execution that makes it again and by
each barrier it goes through. Views are derived where they are first read after that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import assert_never

from ....ir.graph import Call, CNode, Graph
from ....ir.schedule import Compute, Free, HostFree, Offload, Prefetch, Wait
from ...python.quote import comment, scope
from .groups import Barrier
from .order import Numbered
from .text import BASE_KEY, KEY, JaxText


def scope_name(cnode: str, execution: int) -> str:
    """The name that the n-th execution (from 1) of a cNode has in JAX and XLA."""
    return f"{cnode}#{execution}"


@dataclass
class Liveness:
    """The live values along the schedule: carried from the forward to the backward."""

    live: set[str]
    tokens: dict[str, int]


@dataclass
class Body:
    """Collects lines. `free` has, in order, what they use and do not bind: aNodes, host
    copies as `host NAME`, and the key."""

    graph: Graph
    x: JaxText
    state: Liveness
    barriers: dict[int, Barrier]
    lines: list[str] = field(default_factory=list)
    free: dict[str, None] = field(default_factory=dict)
    _bound: dict[str, None] = field(default_factory=dict)
    _derived: dict[str, None] = field(default_factory=dict)

    def steps(self, steps: Iterable[Numbered]) -> None:
        for now in steps:
            if now.index in self.barriers:
                self.barrier(self.barriers[now.index])
            match now.step:
                case Compute(_, nosave):
                    assert now.cnode is not None
                    self._compute(now.cnode, now.execution, nosave)
                case Free(name):
                    self._end(name)
                case Offload(name):
                    self._move(self.x.host(name), self.x.variable(name), "Host", name)
                    self._bound[f"host {name}"] = None
                case Prefetch(name):
                    self._use(f"host {name}")
                    self._move(self.x.variable(name), self.x.host(name), "Device")
                    self._bind(name)
                case Wait() | HostFree():
                    pass  # XLA places the waits, and frees after the last use.
                case _:
                    assert_never(now.step)

    def barrier(self, barrier: Barrier) -> None:
        """Binds what goes through a barrier again."""
        names = [*barrier.sources, *barrier.anchors]
        for name in names:
            self._use(name)
        for name in barrier.hosts:
            self._use(f"host {name}")
        through = [self.x.variable(name) for name in names]
        through += [self.x.host(name) for name in barrier.hosts]
        if barrier.key:
            self._use(BASE_KEY)
            through.append(KEY)
        listed = ", ".join(through) + ("," if len(through) == 1 else "")
        self.lines.append(f"({listed}) = lax.optimization_barrier(({listed}))")
        for name in names:
            self._bind(name)
        self._bound.update(dict.fromkeys(f"host {name}" for name in barrier.hosts))
        if barrier.key:
            self._bound[BASE_KEY] = None

    def bound(self, names: Iterable[str]) -> None:
        """Says that the function has these names as it begins."""
        self._bound.update(dict.fromkeys(names))

    def bound_names(self) -> tuple[str, ...]:
        """The names that the function has bound or used so far."""
        return tuple(self._bound)

    def computed(self, c: CNode, names: Iterable[str]) -> None:
        """Called after the lines of an execution that bound `names`."""

    def value(self, name: str) -> str:
        """The variable of an aNode or view; a view is derived first where that is needed."""
        if name in self.graph.view:
            self._derive(name)
        else:
            self._use(name)
        return self.x.variable(name)

    # -- one computation --------------------------------------------------------------

    def _compute(self, c: CNode, n: int, nosave: bool) -> None:
        call = c.call_at(n)
        for name in call.refs():
            self.value(name)
        if c.loc is not None:
            self.lines.append(f"# {comment(str(c.loc))}")
        targets = self._targets(c, n)
        self.lines.append(f"with jax.named_scope({scope(scope_name(c.name, n))}):")
        self.lines.append(f"    {targets} = {self._expression(c, call)}")
        if c.is_accumulate:
            self.state.live.discard(self.graph.reads(c)[0])
        made = [name for name in c.results_at(n) if name not in self.state.live]
        for name in made:
            self._bind(name)
        self.computed(c, made)
        if nosave:
            for name in c.results_at(n):
                if self.graph.anode[name].kind == "phantom":
                    self._end(name)

    def _expression(self, c: CNode, call: Call) -> str:
        if c.is_accumulate:
            return " + ".join(self.x.variable(name) for name in call.refs())
        if c.is_fused:
            return self.x.fused(c)
        if c.token is None:
            return self.x.call(call)
        self._use(BASE_KEY)
        return self.x.call(call, f"jax.random.fold_in({KEY}, {self.state.tokens[c.token]})")

    def _targets(self, c: CNode, n: int) -> str:
        """The left-hand side; results that nothing uses, or that are alive, are dropped."""
        writes = c.writes if n == 1 or c.replay is None else c.replay.writes
        names = [
            "_" if name is None or name in self.state.live else self.x.variable(name)
            for name in writes
        ]
        if c.is_fused and len(names) == 1:
            return f"({names[0]},)"
        return names[0] if len(names) == 1 else f"({', '.join(names)})"

    def _move(self, target: str, source: str, space: str, name: str | None = None) -> None:
        if name is not None:
            self._use(name)
        self.lines.append(f"{target} = jax.device_put({source}, jax.memory.Space.{space})")

    # -- names ------------------------------------------------------------------------

    def _use(self, name: str) -> None:
        if name not in self._bound:
            self._bound[name] = None
            self.free[name] = None

    def _bind(self, name: str) -> None:
        self._bound[name] = None
        self.state.live.add(name)
        self._forget_views(name)

    def _end(self, name: str) -> None:
        self.state.live.discard(name)
        self._forget_views(name)

    def _forget_views(self, base: str) -> None:
        for name in [v for v in self._derived if self.graph.view[v].base == base]:
            del self._derived[name]

    def _derive(self, name: str) -> None:
        if name in self._derived:
            return
        view = self.graph.view[name]
        for source in view.call.refs():
            self.value(source)
        if view.index is None:
            self.lines.append(f"{self.x.variable(name)} = {self.x.call(view.call)}")
            self._derived[name] = None
            return
        parts = self.graph.parts[view.name]
        slots = [self.x.variable(parts[i]) if i in parts else "_" for i in range(max(parts) + 1)]
        left = ", ".join(slots) + ("," if len(slots) == 1 else "")
        self.lines.append(f"({left}) = {self.x.call(view.call)}[:{len(slots)}]")
        self._derived.update(dict.fromkeys(parts.values()))
