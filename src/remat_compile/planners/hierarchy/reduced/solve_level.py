"""Solves the reduced H-ILP of a level: flat orders out, each checked against the instance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, isfinite

from ...eviction.keep import keep_what_fits
from ...instance import Instance, Order
from ...programs.answer import Incumbent, ProgramAnswer, saved_bytes_of
from ...programs.solve_compact import is_valid
from ...solvers import MilpSolver
from ...solvers.milp import Vector
from ..partition.levels import Level, PartClass
from .options import Offer, offers_of
from .prices import ChildPrices, prices_of
from .rows import ReducedProgram


def flattened(level: Level, j: int, order: Sequence[int]) -> Order:
    """An order of child j's instance in the numbers of the level."""
    nodes = level.nodes(j)
    return [nodes[c] for c in order]


@dataclass
class LevelProblem:
    """A level with the options that its children offer."""

    level: Level
    prices: Sequence[ChildPrices]
    offers: Sequence[Sequence[Offer]]

    @staticmethod
    def of(part: PartClass, options: int) -> LevelProblem:
        """The problem of a part that is no leaf, with at most so many options for each child."""
        assert part.level is not None
        level = part.level
        known: dict[int, list[Offer]] = {}
        offers: list[list[Offer]] = []
        for child in part.children:
            if id(child) not in known:
                known[id(child)] = offers_of(child.instance, child.orders, options)
            offers.append(known[id(child)])
        orders = [
            [flattened(level, j, offer.order) for offer in some] if level.backward_N[j] else []
            for j, some in enumerate(offers)
        ]
        return LevelProblem(level, prices_of(level, orders), offers)

    def solve(
        self,
        peak: int,
        saved: int | None,
        solver: MilpSolver,
        limit_s: float,
        *,
        correct: bool = False,
        most_checks: int | None = None,
        room: int | None = None,
    ) -> ProgramAnswer:
        """The best flat order found under a peak and, where given, a bound on what is saved.

        The program is solved for a peak of `room` (None: the same); what it predicts is an upper
        bound, so orders for more room than there is may fit all the same.
        """
        inst = self.level.instance
        model = ReducedProgram(
            self.level, self.prices, room or peak, saved, correct=correct
        ).model()
        incumbent = Incumbent(inst, peak)
        if not model.fits:
            return incumbent.answer("infeasible", model.fixed_ns)

        def take(point: Vector, _: float) -> None:
            self.offer(incumbent, model.order(point), saved)

        solved = solver.solve(model.milp, limit_s, on_point=take, most_checks=most_checks)
        if solved.point is not None:
            take(solved.point, solved.objective)
        bound = model.fixed_ns
        if isfinite(solved.bound):
            bound += max(0, floor(solved.bound * model.scale_ns - 1e-3))
        return incumbent.answer(solved.status, bound)

    def offer(self, incumbent: Incumbent, order: Order, saved: int | None) -> None:
        """Takes a flat order where it is valid and within both budgets, with what fits kept."""
        inst = incumbent.instance
        lean = inst.without_idle(order)
        if not is_valid(inst, lean) or inst.peak(lean) > incumbent.limit_bytes:
            return
        shorter = keep_what_fits(inst, lean, incumbent.limit_bytes)
        for some in (shorter, lean):
            if _saves_at_most(inst, some, saved):
                incumbent.offer(some)
                return


def _saves_at_most(instance: Instance, order: Order, saved: int | None) -> bool:
    return saved is None or saved_bytes_of(instance, order) <= saved
