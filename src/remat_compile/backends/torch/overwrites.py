"""Kernels that write a result over an argument that dies: memory that is in the caches already.

    F5: bwd %dy = fused(%dx, %h) {…}; free %dx     a2 = fused1_r0_over_a0(a1, h)

The schedule knows nothing of it: what is proven counts both, argument and result, so a step takes
at most what was proven. Where both together make the peak of the forward or of the backward,
nothing is written over, so that what is measured at the peak stays what was proven.

Written over is what is freed right after, and what this very function (forward or backward) has
computed: nothing that the caller gives or keeps, and no tangent. In the backward it is also what
the forward has computed and saved. Of that the step asks, each time, whether anybody else could see
it (`private.py`), and calls the plain kernels if so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...ir.expr import Const
from ...ir.graph import CALLER_KINDS, CNode, Graph
from ...ir.program import Program
from ...ir.schedule import Compute, Free, Offload, Prefetch, Schedule
from ...ir.semantics.simulate import simulate
from ..python.names import loss_index
from ..python.regions import Regions, regions_of

__all__ = ["LEAST_BYTES", "Overwrites", "Pairs", "overwrites"]

SAVED = ("act", "phantom")
"""Kinds of what a forward makes for its backward."""
LEAST_BYTES = 2**20
"""Smaller results gain nothing: what was freed last is still in the cache."""

Pairs = tuple[tuple[int, int], ...]
"""Places of a result and of the argument that it is written over."""


@dataclass(frozen=True)
class Overwrites:
    """What executions call instead of the functions of their regions, by cNode and number: one of
    `functions`, each with the function that it stands for."""

    calls: Mapping[tuple[str, int], str] = field(default_factory=dict)
    functions: Mapping[str, tuple[str, Pairs]] = field(default_factory=dict)

    def texts(self, regions: Regions) -> Iterator[str]:
        """The functions, which compute what those of the regions do."""
        for name, (base, pairs) in self.functions.items():
            signature = regions.signature(base)
            stored = ", ".join(f"result {result} over a{argument}" for result, argument in pairs)
            yield (
                f"\n\ndef {name}({signature}):\n"
                f"    # as a kernel it writes {stored}\n"
                f"    return {base}({signature})\n"
            )


def overwrites(program: Program, schedule: Schedule) -> Overwrites:
    """What kernels may write over in a schedule that was verified."""
    if program.symbols or not any(c.is_fused for c in program.graph.cnodes):
        return Overwrites()
    at = dict(_candidates(program.graph, schedule.elementary))
    if not at:
        return Overwrites()
    during = simulate(program, schedule.elementary).during
    border = loss_index(program.graph, schedule.elementary)
    peaks = max(during[:border], default=0), max(during[border:])
    of = regions_of(program.graph).of
    calls: dict[tuple[str, int], str] = {}
    functions: dict[str, tuple[str, Pairs]] = {}
    for step, (execution, pairs) in at.items():
        if during[step] < peaks[step > border]:
            base = of[execution[0]]
            calls[execution] = _name(base, pairs)
            functions[calls[execution]] = base, pairs
    return Overwrites(calls, functions)


def _name(base: str, pairs: Pairs) -> str:
    return base + "".join(f"_r{result}_over_a{argument}" for result, argument in pairs)


def _candidates(
    graph: Graph, schedule: Schedule
) -> Iterator[tuple[int, tuple[tuple[str, int], Pairs]]]:
    """By step: which execution it is, and what may be written over."""
    steps, border = schedule.steps, loss_index(graph, schedule)
    moved = {step.anode for step in steps if isinstance(step, Offload | Prefetch)}
    executions: Counter[str] = Counter()
    live = {a.name for a in graph.anodes if a.kind in CALLER_KINDS}
    own: set[str] = set()
    for index, step in enumerate(steps):
        if isinstance(step, Free | Prefetch):
            own.discard(step.anode)
            (live.discard if isinstance(step, Free) else live.add)(step.anode)
        if not isinstance(step, Compute):
            continue
        c = graph.cnode[step.cnode]
        executions[c.name] += 1
        n = executions[c.name]
        made = {name for name in c.results_at(n) if name not in live}
        if c.is_fused:
            ended = (_freed_after(schedule, index) & own) - moved
            if pairs := tuple(_pairs(graph, c, ended, made)):
                yield index, ((c.name, n), pairs)
        live |= made
        if index == border:
            # Results of the step are not freed any more (FB0302).
            own = {name for name in own if graph.anode[name].kind in SAVED}
        elif not c.is_accumulate or c.call.refs()[0] in own:  # a sum lies where its first term did
            own |= made
        if c.is_accumulate:
            live.discard(c.call.refs()[0])
            own.discard(c.call.refs()[0])
        if step.nosave:
            gone = {name for name in made if graph.anode[name].kind == "phantom"}
            live -= gone
            own -= gone


def _freed_after(schedule: Schedule, index: int) -> set[str]:
    freed = set()
    for step in schedule.steps[index + 1 :]:
        if not isinstance(step, Free):
            break
        freed.add(step.anode)
    return freed


def _pairs(graph: Graph, c: CNode, ended: set[str], made: set[str]) -> Iterator[tuple[int, int]]:
    reads = c.call.refs()
    if len(reads) != len(c.call.args) or len(c.results) != len(c.writes):
        return
    often = Counter(graph.storage[name] for name in reads)
    results = {name: place for place, name in enumerate(c.results) if name in made}
    for place, name in enumerate(reads):
        if name not in ended or often[name] != 1:
            continue
        a = graph.anode[name]
        if not isinstance(a.size, Const) or a.size.value < LEAST_BYTES:
            continue
        same = (r for r in results if _alike(graph, r, name))
        if (result := next(same, None)) is not None:
            yield results.pop(result), place


def _alike(graph: Graph, result: str, argument: str) -> bool:
    one, other = graph.anode[result], graph.anode[argument]
    return (one.dtype, one.size) == (other.dtype, other.size)
