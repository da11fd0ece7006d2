"""The answer for an instance: the program, rounded, beside the comparators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from time import monotonic

from ...solvers import MilpSolver
from .clock import time_ns
from .comparators import COMPARATORS, fits
from .courses import StepPlan, bytes_T, faults
from .improve import improved, shrunk
from .instance import StepInstance
from .program import Fractions, StepProgram
from .rounding import rounded

_REPAIRS = 4
_MOST_COLUMNS = 4_000
"""Larger programs are solved with the options that their relaxation gives, not by branching."""
_SMALL_S = 20.0
_PLANNING = 0.7
"""The share of the time limit; the lower bound has the rest."""
_NEAR = 1e-6
_IPM: dict[str, object] = {"solver": "ipm"}


@dataclass(frozen=True)
class StepAnswer:
    """`plan` takes `time_ns`, by the clock; None where nothing fits. `lower_bound_ns` holds for
    every plan that takes and gives back bytes between steps; `program_ns` is what the program
    says of the best fractions, `found_by` the program's or a comparator's name."""

    plan: StepPlan | None
    time_ns: int
    lower_bound_ns: int
    program_ns: int | None
    found_by: str


def plan_step(
    instance: StepInstance, *, time_limit_s: float = 600.0, solver: MilpSolver | None = None
) -> StepAnswer:
    """The fastest plan found within the limit, never slower than a comparator that fits."""
    if solver is None:
        with MilpSolver() as own:
            return plan_step(instance, time_limit_s=time_limit_s, solver=own)
    began = monotonic()
    deadline = began + _PLANNING * time_limit_s
    best: tuple[int, str, StepPlan] | None = None
    for name, comparator in COMPARATORS.items():
        if (plan := comparator(instance)) is not None:
            takes = time_ns(instance, plan)
            if best is None or takes < best[0]:
                best = takes, name, plan
    program_ns: int | None = None
    for fractions, plan in _rounded_plans(instance, solver, deadline):
        plan, timing = improved(instance, plan, deadline)
        if program_ns is None or fractions.time_ns < program_ns:
            program_ns = round(fractions.time_ns)
        if best is None or timing.time_ns < best[0]:
            best = timing.time_ns, "program", plan
    bound = lower_bound_ns(instance, solver, began + time_limit_s - monotonic())
    if best is None:
        return StepAnswer(None, 0, bound, program_ns, "")
    return StepAnswer(best[2], best[0], bound, program_ns, best[1])


def lower_bound_ns(instance: StepInstance, solver: MilpSolver, time_limit_s: float) -> int:
    """The relaxation of the program without lag: no plan of whole tensors takes less time. Without
    an answer in time, the computations alone."""
    milp = StepProgram(instance, lag=False, priced=False)
    answer = solver.solve(milp.build().relaxed(), time_limit_s, options=_IPM)
    least = sum(
        min(o.forward_ns + o.backward_ns for o in options) for options in instance.options_L
    )
    return max(least, int(answer.bound * milp.unit_ns)) if isfinite(answer.bound) else least


def _rounded_plans(
    instance: StepInstance, solver: MilpSolver, deadline: float
) -> Iterator[tuple[Fractions, StepPlan]]:
    """Plans for whole tensors that fit: of the program, and with less memory for it as long as
    whole tensors need more."""
    less_T = [0] * instance.steps
    for _ in range(_REPAIRS):
        over = False
        for fractions in best_fractions(instance, solver, deadline, less_T):
            plan = shrunk(instance, rounded(instance, fractions))
            assert not faults(instance, plan), faults(instance, plan)
            if fits(instance, plan):
                yield fractions, plan
                continue
            over = True
            for t, size in enumerate(bytes_T(instance, plan)):
                less_T[t] += max(0, size - instance.memory_bytes)
        if not over or monotonic() > deadline:
            return


def best_fractions(
    instance: StepInstance, solver: MilpSolver, deadline: float, less_T: Sequence[int] = ()
) -> Iterator[Fractions]:
    """Points of the program, without copies in the step that uses them where it has any so. Where
    it is small the optimum, and that for whole groups; else the optimum for the options that its
    relaxation leans to, and for those of them that need no more memory."""
    for in_time in (False, True):
        program = StepProgram(instance, less_T=less_T, in_time=in_time)
        if program.builder.columns <= _MOST_COLUMNS:
            exact = StepProgram(instance, less_T=less_T, in_time=in_time, whole=True)
            points = _small_points([program, exact], solver, deadline)
        else:
            points = _large_points(program, solver, deadline)
        found = False
        for fractions in points:
            found = True
            yield fractions
        if found and program.builder.columns > _MOST_COLUMNS:
            return


def _small_points(
    programs: Iterable[StepProgram], solver: MilpSolver, deadline: float
) -> Iterator[Fractions]:
    for program in programs:
        limit_s = min(_SMALL_S, deadline - monotonic())
        solved = solver.solve(program.build(), limit_s, options={"mip_rel_gap": 1e-3})
        if solved.point is not None:
            yield program.fractions(solved.point)


def _large_points(program: StepProgram, solver: MilpSolver, deadline: float) -> Iterator[Fractions]:
    answer = solver.solve(program.build().relaxed(), deadline - monotonic(), options=_IPM)
    if (point := answer.point) is None:
        return
    rows = (
        tuple(
            choose(program.instance, i, [float(point[c]) for c in columns])
            for i, columns in enumerate(program.comp)
        )
        for choose in (_likeliest, _leanest)
    )
    for options in dict.fromkeys(rows):
        fixed = program.fixed(options).relaxed()
        solved = solver.solve(fixed, deadline - monotonic(), options=_IPM)
        if solved.point is not None:
            yield program.fractions(solved.point)
            if solved.objective <= answer.objective * (1 + 1e-3):
                return


def _likeliest(instance: StepInstance, i: int, shares: list[float]) -> int:
    return max(range(len(shares)), key=lambda k: shares[k])


def _leanest(instance: StepInstance, i: int, shares: list[float]) -> int:
    """The option that saves least on the device, of those that have a share."""
    some = [k for k, share in enumerate(shares) if share > _NEAR]
    options = instance.options_L[i]
    return min(some, key=lambda k: (options[k].saved_bytes, -shares[k]))
