"""A program as a planner sees it: integers for nodes, plain lists for what they do.

Index legend: `x_C` has one entry per cNode, `x_A` one per aNode, in the graph's order.
Storage that the caller holds is left out of reads; it is `base_bytes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ..ir.analysis.liveness import BudgetKind, counted_sizes, held_bytes
from ..ir.analysis.order import frees_after_last_use
from ..ir.analysis.separators import globals_of
from ..ir.graph import CALLER_KINDS, Graph
from ..ir.program import Program
from ..ir.schedule import Schedule
from ..ir.semantics.simulate import KEPT_KINDS, Sizes

Order = list[int]
"""cNode indices in the order they run; frees are implied (after the last use)."""


@dataclass(frozen=True)
class Instance:
    """A step as lists of integers: `x_C` has one entry per cNode, `x_A` one per aNode.

    Sizes are bytes as a budget of `kind` counts them; times are nanoseconds. A part of an instance
    is an instance; `program` serves `schedule` and planners that decide for a whole program.

    * `base_bytes`: the bytes of the caller, which reads leave out
    * `names_C`, `names_A`: names in the text; `phase_C`: `fwd`, `loss` or `bwd`; `loss`: its index
    * `reads_C`, `writes_C`, `time_C`, `workspace_C`: of the first execution
    * `rereads_C`, `rewrites_C`, `retime_C`, `reworkspace_C`: of later ones
    * `replay_C`: true if later executions use a replay form
    * `makable_C`: true if it may run again, at any time after its first execution
    * `must_C`, `after_C`: of a part (`chains/part.py`): must run, for values that the whole holds;
      the cNodes that must have run before
    * `token_C`: aNode of its random state, or -1; `ends_C`: aNode that an accumulate ends, or -1
    * `size_A`, `writer_A`: bytes; the cNode that makes it, or -1
    * `kept_A`, `aside_A`: held at the end; no gradient flows through (`ir/analysis/separators.py`)
    """

    program: Program
    kind: BudgetKind
    base_bytes: int
    names_C: list[str]
    phase_C: list[str]
    reads_C: list[tuple[int, ...]]
    rereads_C: list[tuple[int, ...]]
    writes_C: list[tuple[int, ...]]
    rewrites_C: list[tuple[int, ...]]
    token_C: list[int]
    workspace_C: list[int]
    reworkspace_C: list[int]
    time_C: list[int]
    retime_C: list[int]
    ends_C: list[int]
    names_A: list[str]
    size_A: list[int]
    writer_A: list[int]
    kept_A: list[bool]
    makable_C: list[bool]
    replay_C: list[bool]
    must_C: list[bool]
    after_C: list[tuple[int, ...]]
    aside_A: list[bool]
    loss: int

    @staticmethod
    def of(program: Program, kind: BudgetKind) -> Instance:
        graph = program.graph
        sizes = Sizes.of(program)
        counted = counted_sizes(program, kind, sizes)
        index = {a.name: i for i, a in enumerate(graph.anodes)}
        caller = {a.name for a in graph.anodes if a.kind in CALLER_KINDS}
        position = {c.name: i for i, c in enumerate(graph.cnodes)}

        def ids(names: Sequence[str]) -> tuple[int, ...]:
            return tuple(index[name] for name in names if name not in caller)

        cnodes = graph.cnodes
        globals_ = globals_of(program)
        writer = [-1] * len(graph.anodes)
        for name, c in graph.writer.items():
            writer[index[name]] = position[c.name]
        return Instance(
            program=program,
            kind=kind,
            base_bytes=held_bytes(program, kind, sizes),
            names_C=[c.name for c in cnodes],
            phase_C=[c.phase for c in cnodes],
            reads_C=[ids(graph.reads(c)) for c in cnodes],
            rereads_C=[ids(graph.reads(c, 2)) for c in cnodes],
            writes_C=[ids(c.results) for c in cnodes],
            rewrites_C=[ids(c.results_at(2)) for c in cnodes],
            token_C=[index[c.token] if c.token else -1 for c in cnodes],
            workspace_C=[sizes.workspace[c.name] for c in cnodes],
            reworkspace_C=[sizes.replay_workspace[c.name] for c in cnodes],
            time_C=[c.time_ns_at(1) for c in cnodes],
            retime_C=[c.time_ns_at(2) for c in cnodes],
            ends_C=[index[graph.reads(c)[0]] if c.is_accumulate else -1 for c in cnodes],
            names_A=[a.name for a in graph.anodes],
            size_A=[counted[a.name] for a in graph.anodes],
            writer_A=writer,
            kept_A=[a.kind in KEPT_KINDS for a in graph.anodes],
            makable_C=_makable(program),
            replay_C=[c.replay is not None for c in cnodes],
            must_C=[False] * len(cnodes),
            after_C=[()] * len(cnodes),
            aside_A=[a.name in globals_ for a in graph.anodes],
            loss=position[graph.loss.name],
        )

    @cached_property
    def index_A(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names_A)}

    @cached_property
    def capture(self) -> Order:
        return list(range(len(self.names_C)))

    @cached_property
    def base_time_ns(self) -> int:
        """The time with nothing recomputed."""
        return sum(self.time_C)

    def time_ns(self, order: Order) -> int:
        """Nanoseconds of a schedule that runs `order`."""
        seen = bytearray(len(self.names_C))
        total = 0
        for c in order:
            total += self.retime_C[c] if seen[c] else self.time_C[c]
            seen[c] = 1
        return total

    def peak(self, order: Order) -> int:
        """Peak bytes of `order` with frees after last use, the caller's included."""
        return self.base_bytes + max(self.profile(order))

    def profile(self, order: Order) -> list[int]:
        """Bytes during each entry of `order`, the caller's left out. Linear."""
        change = [0] * (len(order) + 2)
        during = [0] * len(order)
        size, kept = self.size_A, self.kept_A
        born: dict[int, int] = {}
        last: dict[int, int] = {}
        runs = [0] * len(self.names_C)
        total = [0] * len(self.names_C)
        for c in order:
            total[c] += 1

        def close(a: int) -> None:
            change[born[a]] += size[a]
            change[max(last[a] + 1, born[a])] -= size[a]

        for i, c in enumerate(order):
            runs[c] += 1
            first = runs[c] == 1
            reads = self.reads_C[c] if first else self.rereads_C[c]
            token = self.token_C[c] if total[c] > 1 else -1
            for a in reads:
                last[a] = i
            during[i] = self.workspace_C[c] if first else self.reworkspace_C[c]
            if token >= 0:
                last[token] = i
                if first:
                    born[token] = i
            if self.ends_C[c] >= 0:
                close(self.ends_C[c])
                del born[self.ends_C[c]], last[self.ends_C[c]]
            for a in self.writes_C[c] if first else self.rewrites_C[c]:
                if kept[a] and a in born:
                    during[i] += size[a]  # computed again and dropped
                    continue
                if a in born:
                    close(a)
                born[a] = i + 1 if self.ends_C[c] >= 0 else i
                last[a] = i
        for a in born:
            if kept[a]:
                last[a] = len(order) - 1
            close(a)
        return [live + own for live, own in zip(accumulate(change), during, strict=False)]

    def without_idle(self, order: Order) -> Order:
        """`order` without replays of which nobody reads a result before it is made anew."""
        seen: set[int] = set()
        again: list[bool] = []
        for c in order:
            again.append(c in seen)
            seen.add(c)
        wanted: set[int] = set()
        kept: Order = []
        for c, repeated in zip(reversed(order), reversed(again), strict=True):
            writes = [a for a in self.rewrites_C[c] if not self.kept_A[a]] if repeated else []
            if repeated and not any(a in wanted for a in writes):
                continue
            wanted.difference_update(writes if repeated else self.writes_C[c])
            wanted.update(self.rereads_C[c] if repeated else self.reads_C[c])
            kept.append(c)
        return kept[::-1]

    def schedule(self, order: Order, planner: str) -> Schedule:
        """The schedule that runs `order` and frees after last use."""
        names = [self.names_C[c] for c in order]
        return Schedule("plan", planner, frees_after_last_use(self.program.graph, names))


def _makable(program: Program) -> list[bool]:
    """Which cNodes may run again at any time, given that what they read is made again.

    Left out: what is to run once; the loss; accumulates and other readers of a sum that an
    accumulate ends; and readers of a buffer whose update is written back at the loss.
    """
    graph: Graph = program.graph
    updated = {b.name for b in program.binding.buffers if b.update is not None}
    ended = {graph.reads(c)[0] for c in graph.cnodes if c.is_accumulate}
    once = {*program.header.run_once}
    return [
        not c.is_loss
        and c.name not in once
        and not c.is_accumulate
        and c.phase != "opt"
        and not any(name in updated or name in ended for name in graph.reads(c, 2))
        for c in graph.cnodes
    ]


def order_without(instance: Instance, dropped: frozenset[int]) -> Order:
    """The captured order, with each dropped cNode run again, once, before the first cNode of the
    backward that needs one of its results."""
    order: Order = []
    again: set[int] = set()

    def make(c: int, reads: tuple[int, ...]) -> None:
        for a in reads:
            writer = instance.writer_A[a]
            if writer in dropped and writer not in again:
                again.add(writer)
                make(writer, instance.rereads_C[writer])
        order.append(c)

    for c in instance.capture:
        if instance.phase_C[c] == "bwd":
            make(c, instance.reads_C[c])
        else:
            order.append(c)
    return order
