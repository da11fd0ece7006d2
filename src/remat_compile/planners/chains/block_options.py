"""Options of a block: a grid of budgets, each solved with the compact ILP.

Zhao 2024, sections 2.2.1 and 2.6: for each of some peaks, evenly spaced, and for each of
some saved sizes up to that peak, the fastest way to run a block's forward and backward.
An answer that is proven for a pair of budgets, and uses less, is the answer for all
budgets between; those are not solved again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

from ..instance import Instance, Order
from ..programs.answer import ProgramAnswer, saved_bytes_of
from ..programs.solve_compact import solve_compact
from ..solvers import MilpSolver
from .chain import Chain
from .part import part_of
from .stages import BlockOption, needed_at_start, written_by

_EACH_S = 5.0
"""No single program of a block gets more than this."""
_EACH_CHECKS = 40
"""Nor does its solver look at its limits more often (`MilpSolver.solve`)."""


def block_instance(chain: Chain, i: int) -> Instance:
    """Stage i as a step of its own: its forward, a loss that takes its output and gives the
    gradients its backward starts from, its backward. cNodes are numbered anew: the
    forward, the loss, the backward.

    Its input and permanent values count as the caller's: they are there in any case.
    """
    whole = chain.instance
    given = chain.grads_N[i]
    passed = chain.grads_N[i - 1] if i else {a for a in given if whole.kept_A[a]}
    return part_of(
        whole,
        chain.forward_N[i],
        chain.backward_N[i],
        held=chain.permanent,
        given=given,
        passed=passed,
        output=chain.cross_N[i],
    )


def option_of(chain: Chain, i: int, order: Order) -> BlockOption:
    """The option that runs stage i in this order of its `block_instance`."""
    inst = chain.instance
    forward, backward = chain.forward_N[i], chain.backward_N[i]
    loss = len(forward)
    nodes = [*forward, inst.loss, *backward]
    at = order.index(loss)
    before = tuple(nodes[k] for k in order[:at])
    after = tuple(nodes[k] for k in order[at + 1 :])
    wanted = needed_at_start(inst, after, again=True)
    kept = (wanted & written_by(inst, before, again=False)) - chain.permanent
    tokens = {inst.token_C[c] for c in after if inst.phase_C[c] == "fwd" and inst.token_C[c] >= 0}
    return BlockOption(before, after, frozenset(kept | tokens))


class SolveBlock(Protocol):
    """The fastest order of a block for two budgets in bytes, with a solver that is lent."""

    def __call__(
        self, block: Instance, peak: int, saved: int, solver: MilpSolver, limit_s: float
    ) -> ProgramAnswer: ...


def solve_whole(
    block: Instance,
    peak: int,
    saved: int,
    solver: MilpSolver,
    limit_s: float,
    most_checks: int = _EACH_CHECKS,
) -> ProgramAnswer:
    """With the compact integer program on all of the block."""
    return solve_compact(
        block,
        peak,
        saved_bytes=saved,
        time_limit_s=limit_s,
        solver=solver,
        most_checks=most_checks,
    )


Solved = tuple[int, int, ProgramAnswer]
"""A peak and saved bytes, and what was answered for them."""


@dataclass(frozen=True)
class PeakAnswer:
    """The answer for a peak; `late` where the clock ended it or one of its programs."""

    solved: tuple[Solved, ...]
    late: bool


@dataclass(frozen=True)
class RowJob:
    """A row of a grid, to be entered into it by who has it."""

    grid: Grid
    peak: int

    def run(self, solver: MilpSolver, limit_s: float) -> PeakAnswer:
        return self.grid.solve_row(self.peak, solver, monotonic() + limit_s)


@dataclass
class Grid:
    """The answers for one block so far.

    What a row (a peak) leaves out hangs on its own answers and on those entered before it began,
    so rows may be solved at the same time and still give the same, as long as they are begun and
    entered in the same order.
    """

    block: Instance
    peaks: int
    saves: int
    solve: SolveBlock = solve_whole
    each_s: float = _EACH_S
    orders: list[Order] = field(default_factory=list)
    late: bool = False
    """True if the time limit ended a row or a program: on a faster machine there may be more."""
    _proven: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(least peak, least saved, most peak, most saved): pairs of budgets, in bytes, between
    these have a proven answer, or none at all."""

    def __post_init__(self) -> None:
        order = self.block.capture
        self.high = self.block.peak(order)
        self.saved = saved_bytes_of(self.block, order)
        self.orders.append(order)
        self._proven.append((self.high, self.saved, self.high, self.saved))
        self.low = _floor(self.block)
        self.output = sum(self.block.size_A[a] for a in self.block.reads_C[self.block.loss])

    def rows(self) -> Iterator[int]:
        """The peaks, the largest first."""
        for k in range(self.peaks):
            yield self.high - (self.high - self.low) * k // max(1, self.peaks - 1)

    def solve_row(self, peak: int, solver: MilpSolver, deadline: float) -> PeakAnswer:
        """Answers for all saved sizes under one peak, to be entered; fewer after `deadline`."""
        solved: list[Solved] = []
        late = False
        proven = list(self._proven)
        top = min(peak, self.saved)
        for k in range(self.saves):
            saved = top - max(0, top - self.output) * k // max(1, self.saves - 1)
            if monotonic() > deadline:
                late = True
                break
            if any(p <= peak <= high and s <= saved <= most for p, s, high, most in proven):
                continue
            limit, began = min(self.each_s, deadline - monotonic()), monotonic()
            answer = self.solve(self.block, peak, saved, solver, limit)
            if answer.status in ("feasible", "unknown") and monotonic() - began >= 0.9 * limit:
                late = True
            solved.append((peak, saved, answer))
            proven += self._range_of(peak, saved, answer)
            if answer.order is None and answer.status == "infeasible":
                break  # less saved cannot be feasible either
        return PeakAnswer(tuple(solved), late)

    def enter(self, row: PeakAnswer) -> None:
        """Keeps the answers of a row."""
        self.late = self.late or row.late
        for peak, saved, answer in row.solved:
            if answer.order is not None:
                self.orders.append(answer.order)
            self._proven += self._range_of(peak, saved, answer)

    def _range_of(
        self, peak: int, saved: int, answer: ProgramAnswer
    ) -> list[tuple[int, int, int, int]]:
        if answer.order is None:
            return [(0, 0, peak, saved)] if answer.status == "infeasible" else []
        if answer.status != "optimal":
            return []
        used = (self.block.peak(answer.order), saved_bytes_of(self.block, answer.order))
        return [(*used, peak, saved)]


def _floor(block: Instance) -> int:
    """The largest working set of a cNode: no peak is below it."""
    return max(
        sum(block.size_A[a] for a in {*block.reads_C[c], *block.writes_C[c]}) + block.workspace_C[c]
        for c in range(len(block.names_C))
    )
