"""Windows of a plan with copies: tensors near a recomputation or a stall, decided anew.

A window is a number of tensors whose waits end, or begin, near one of the plan's recomputations or
stalls, drawn by their time. Each may be kept, made again before it is read (as everything that it
takes, up to some number of reads away), or moved, at one of several boundaries each way; every
recomputation of the plan may be left out. Other moves stay as they are, until the answer is placed:
as the program has it, and anew (`place`). The fastest is taken if it is faster than the plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from ..instance import Order
from ..offload.copies.improve import replays
from ..offload.copies.place import Move
from ..offload.copies.task import CopyTask, Placed
from ..programs.compact import NotStated
from ..programs.events import Pairs, Window
from ..solvers import MilpSolver
from .plan_events import PlanEvents
from .window_program import window_program
from .window_rows import Detour

_FIRST, _FEWEST, _MOST = 8, 4, 64
"""Tensors of a window: of the first one, the least, and the most."""
_CHECKS = 100
"""So often does the solver look at its limits before it is ended: its work, not the clock."""
_SMALL = 100
"""Tensors of less than this part of the largest one are not looked at, even where all are small."""
_LONG = 0.02
"""The share of the step below which a wait is ignored."""


@dataclass
class JointWindows:
    """Decides windows of the best plan of `task` anew. They grow while they are solved to the end
    and gain nothing, and shrink where they are not solved."""

    task: CopyTask
    rng: Random
    solver: MilpSolver
    tensors: int = _FIRST

    def __post_init__(self) -> None:
        inst = self.task.instance
        self.forward = Pairs(inst, backward=False)
        self.both = Pairs(inst, backward=True)
        held = {inst.index_A[name] for name in inst.program.held_since_loss}
        least = min(self.task.least_bytes, max(inst.size_A, default=0) // _SMALL)
        self.movable = [
            a
            for a, size in enumerate(inst.size_A)
            if size >= max(1, least) and a not in held and inst.writer_A[a] >= 0
        ]

    def improve(self, limit_s: float) -> bool:
        """Draws and decides one window; whether the plan is faster now."""
        placed = self.task.best
        assert placed is not None
        solved = self._decide(placed, limit_s)
        gained = self.task.best is not placed
        if not solved:
            self.tensors = max(_FEWEST, self.tensors * 2 // 3)
        elif not gained:
            self.tensors = min(_MOST, self.tensors + 1 + self.tensors // 8)
        return gained

    def _decide(self, placed: Placed, limit_s: float) -> bool:
        """True if the program was solved to the end."""
        task = self.task
        plan, detours = self._draw(placed)
        try:
            program = window_program(
                task.instance,
                plan.target,
                plan.events,
                detours,
                task.task.limit_bytes,
                placed.time_ns,
                task.task.deadline,
            )
        except NotStated:
            return False
        if not program.fits:
            return True
        answer = self.solver.solve(program.milp, limit_s, most_checks=_CHECKS)
        if answer.point is not None:
            runs, taken = program.runs(answer.point), program.taken(answer.point)
            self._place(*plan.plan_of(runs, taken))
        return answer.status in ("optimal", "infeasible")

    def _place(self, order: Order, moves: list[Move]) -> None:
        """As the program says, and anew: with its moves alone, and with others after them."""
        self.task.try_moves(order, sorted(moves, key=lambda m: (m.gap.made, m.gap.anode)))
        gaps = sorted((move.gap for move in moves), key=lambda gap: (gap.made, gap.anode))
        self.task.try_gaps(order, gaps)
        moved = {gap.anode for gap in gaps}
        others = [gap for gap in self.task.gaps(order) if gap.anode not in moved]
        self.task.try_gaps(order, [*gaps, *others])

    def _draw(self, placed: Placed) -> tuple[PlanEvents, list[Detour]]:
        inst, order = self.task.instance, list(placed.order)
        bare = PlanEvents(inst, order, placed.moves, Window({}))
        chosen = self._nearest(bare, self._centre_ns(bare, order), placed.time_ns)
        pairs = self.both if self.rng.random() < 0.15 else self.forward
        options: dict[int, list[int]] = {}
        for a, back in chosen.items():
            stage = bare.stage(back)
            depth = self.rng.choice((2, 4, 8))
            if stage is not None:
                again = pairs.of(stage, (a,), depth)
                options[stage] = sorted({*options.get(stage, ()), *again})
        plan = PlanEvents(inst, order, placed.moves, Window(options))
        detours = [plan.fixed(move) for move in placed.moves if move.gap.anode not in chosen]
        for a in sorted(chosen):
            detours += plan.open(a)
        return plan, detours

    def _centre_ns(self, plan: PlanEvents, order: Order) -> int:
        """When one of the recomputations or stalls stands, drawn by how long they take."""
        inst = self.task.instance
        at = [(i, inst.retime_C[order[i]]) for i in replays(order)]
        at += sorted(plan.course.stalls_ns.items())
        if not at:
            return plan.starts_ns[-1]
        ((entry, _),) = self.rng.choices(at, [ns + 1 for _, ns in at])
        return plan.starts_ns[entry]

    def _nearest(self, plan: PlanEvents, centre_ns: int, time_ns: int) -> dict[int, int]:
        """Tensors whose wait ends near a moment, in half of the windows or begins there; for each
        the event at its end."""
        rng = self.rng
        mirrored = rng.random() < 0.5
        near: list[tuple[float, int, int]] = []
        for a in self.movable:
            wait = plan.wait(a)
            if wait is None:
                continue
            begin, end = plan.start_ns(wait[0] + 1), plan.start_ns(wait[1])
            if end - begin >= _LONG * time_ns:
                away = abs(end - centre_ns)
                away = min(away, abs(begin - centre_ns)) if mirrored else away
                near.append((away * rng.uniform(0.5, 1.5), a, wait[1]))
        return {a: back for _, a, back in sorted(near)[: self.tensors]}
