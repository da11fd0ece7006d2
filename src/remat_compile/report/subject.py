"""The subject of a report: a schedule, the unplanned step, and the facts about both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ..ir.analysis.liveness import floor_bytes
from ..ir.analysis.order import capture_order, frees_after_last_use
from ..ir.program import Budget, Program, Proven
from ..ir.schedule import Compute, Schedule
from ..ir.semantics.simulate import Trace, simulate
from ..ir.terminal import printable
from .charts.timeline import Life, Timeline
from .moments import Moment, moments

MOST_LETTERS = 120
"""Limit on the characters of a name or place on a page; the rest is an ellipsis."""


@dataclass(frozen=True)
class Subject:
    """A schedule to report on. FBError from `trace` where it is not valid.

    `budget` is what it was made for, where that is known; `assuming` are lines on what its
    proof, or its figures, rest on. `planned` is False where the file holds no schedule and
    the step with nothing recomputed stands in. `library_bytes` are those of the target's driver
    and libraries, where they are known.
    """

    program: Program
    schedule: Schedule
    budget: Budget | None = None
    assuming: tuple[str, ...] = ()
    planned: bool = True
    library_bytes: int | None = None

    @cached_property
    def trace(self) -> Trace:
        return simulate(self.program, self.schedule)

    @cached_property
    def timeline(self) -> Timeline:
        return Timeline.of(self.program, self.schedule, self.trace)

    @cached_property
    def without(self) -> Subject:
        """The same step with nothing recomputed and nothing copied."""
        return Subject(self.program, store_all(self.program))

    @cached_property
    def peak(self) -> Moment:
        step = self.trace.peak_step
        return moments(self.program, self.schedule, (step,))[step]

    @cached_property
    def floor(self) -> tuple[int, str]:
        """Bytes below which no schedule with these homes gets, and the cNode that needs them."""
        return floor_bytes(self.program, homes=self.schedule.homes)

    @cached_property
    def lives_of(self) -> Mapping[str, tuple[Life, ...]]:
        """The instances of each aNode that the step makes, in order."""
        by_anode: dict[str, list[Life]] = {}
        for life in sorted(self.timeline.lives, key=lambda life: life.born):
            by_anode.setdefault(life.anode, []).append(life)
        return {name: tuple(lives) for name, lives in by_anode.items()}

    @cached_property
    def touched(self) -> tuple[frozenset[str], ...]:
        """The aNodes that each step reads, writes, frees or copies; random state included."""
        graph = self.program.graph
        return tuple(
            frozenset((*graph.reads(c), *c.results, *((c.token,) if c.token else ())))
            if isinstance(step, Compute) and (c := graph.cnode[step.cnode])
            else frozenset(() if isinstance(step, Compute) else (step.anode,))
            for step in self.schedule.steps
        )

    @property
    def proven(self) -> Proven | None:
        """The recorded proof of the schedule."""
        records = [p for p in self.program.proven if p.schedule == self.schedule.name]
        return records[-1] if records else None

    @property
    def budgets(self) -> Mapping[str, int]:
        """The budgets of the plan by kind: as it was made, or as its certificate records."""
        known: tuple[Budget, ...] = () if self.budget is None else (self.budget,)
        if not known and self.proven is not None and self.proven.certificate is not None:
            known = self.proven.certificate.budgets
        return {b.kind: b.bytes for b in known}

    @property
    def has_times(self) -> bool:
        return self.trace.time_ns > 0

    def step_text(self, index: int) -> str:
        """`F3 aten.mm.default` or `free %x`, for people."""
        step = self.schedule.steps[index]
        if not isinstance(step, Compute):
            return shown(f"{step.word} %{step.anode}")
        return shown(f"{step.cnode} {self.program.graph.cnode[step.cnode].call.op}")

    def step_place(self, index: int) -> str:
        """The line of the model of a step; empty where none is recorded."""
        step = self.schedule.steps[index]
        if not isinstance(step, Compute):
            return place_of(self.program, step.anode)
        return shown(str(self.program.graph.cnode[step.cnode].loc or ""))


def store_all(program: Program) -> Schedule:
    """Everything once, in the order of capture, freed after its last use."""
    steps = frees_after_last_use(program.graph, capture_order(program.graph))
    return Schedule("store_all", "store-all", steps)


def place_of(program: Program, anode: str) -> str:
    """Where in the model a tensor is made; empty where that is not recorded."""
    writer = program.graph.writer.get(anode.removeprefix("%"))
    if writer is None:
        return ""
    return shown(f"{writer.name} {writer.loc or ''}".rstrip())


def shown(text: str, most: int = MOST_LETTERS) -> str:
    """Foreign text for a page: nothing in it can act, and it is not longer than `most`."""
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    clean = printable(cut)
    return clean if len(clean) <= 2 * most else f"{clean[: 2 * most]}…"
