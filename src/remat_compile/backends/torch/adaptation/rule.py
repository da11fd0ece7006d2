"""The rule that chooses a rung: a pure function of the state, the signals of a step and the limits.

An audit runs a step exactly, by rung 0, and by lossy rungs. After two audits in a row in which the
next rung is within `tolerance / 4`, that rung is taken. An audit in which the present rung is
beyond `tolerance` leads back to rung 0. Between the two limits nothing changes, so that a rung is
not taken and left in turns. With a tolerance of 0.1:

    error of the next rung      0.02  0.02   climbs       of the present one  0.05   stays
                                0.02  0.04   stays                            0.11   back to rung 0
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import fmean, median

KEPT_NORMS = 64
FEWEST_NORMS = 8  # of which a median is taken
LARGE_NORM = 10.0  # times the median
KEPT_BIASES = 4


@dataclass(frozen=True, slots=True)
class Rules:
    """The number of rungs, the largest relative error of a gradient, and the most steps from one
    audit to the next."""

    rungs: int
    tolerance: float
    most_steps: int

    @property
    def low(self) -> float:
        """The error within which a rung is taken: hysteresis."""
        return self.tolerance / 4


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit measured of a rung, the same on all ranks; errors are relative.

    `error` is the largest over parameters, `biases` are signed, by parameter. `bad_groups` counts
    groups of packed values that are not finite, `overflow` outlier channels that codecs have no
    place for. `next_error` is the error of the next rung, None where there is none.
    """

    error: float = 0.0
    biases: tuple[float, ...] = ()
    bad_groups: int = 0
    overflow: int = 0
    next_error: float | None = None


@dataclass(frozen=True, slots=True)
class State:
    """All that the rule knows. `interval` is the number of steps from the last audit to the one at
    `next_audit`; `passed` counts audits in a row in which the next rung was good."""

    step: int = 0
    rung: int = 0
    interval: int = 1
    next_audit: int = 0
    passed: int = 0
    overflow: int = 0
    norms: tuple[float, ...] = ()
    biases: tuple[tuple[float, ...], ...] = ()

    @property
    def is_audited(self) -> bool:
        return self.step >= self.next_audit


def decide(state: State, norm: float, audit: Audit | None, rules: Rules) -> tuple[State, str]:
    """The state before the next step, and the cause of a switch ("" for none). `norm` is that of
    the exact gradient where there was an audit, else that of the present rung; an audit whose exact
    gradient is not finite is None."""
    after = replace(state, step=state.step + 1)
    if not math.isfinite(norm):
        return _switched(after, 0), "a gradient is not finite" if state.rung else ""
    if state.rung and (cause := _cause_to_leave(state, norm, audit, rules)):
        return _switched(after, 0), cause
    after = replace(after, norms=(*state.norms, norm)[-KEPT_NORMS:])
    if audit is None:
        return after, ""
    is_good = audit.next_error is not None and audit.next_error < rules.low
    if is_good and state.passed:
        cause = f"error {audit.next_error:.3g} is below {rules.low:.3g} in two audits"
        return _switched(after, state.rung + 1), cause
    moves = audit.overflow > 2 * state.overflow
    interval = 1 if moves else min(2 * state.interval, rules.most_steps)
    after = replace(
        after,
        interval=interval,
        next_audit=after.step if is_good else state.step + interval,
        passed=int(is_good),
        overflow=audit.overflow,
        biases=(*state.biases, audit.biases)[-KEPT_BIASES:] if state.rung else (),
    )
    return after, ""


def _cause_to_leave(state: State, norm: float, audit: Audit | None, rules: Rules) -> str:
    if audit is None:
        usual = median(state.norms) if len(state.norms) >= FEWEST_NORMS else math.inf
        is_large = norm > LARGE_NORM * usual
        return f"gradient norm {norm:.3g}, its median {usual:.3g}" if is_large else ""
    if audit.bad_groups:
        return f"{audit.bad_groups} packed groups are not finite"
    if not audit.error <= rules.tolerance:
        return f"error {audit.error:.3g} is above {rules.tolerance:.3g}"
    biases = (*state.biases, audit.biases)[-KEPT_BIASES:]
    bias = max((abs(fmean(each)) for each in zip(*biases, strict=True)), default=0.0)
    if len(biases) == KEPT_BIASES and bias > rules.low:
        return f"bias {bias:.3g} over {KEPT_BIASES} audits is above {rules.low:.3g}"
    return ""


def _switched(after: State, rung: int) -> State:
    """Signals of another rung, and norms of other gradients, say nothing of this one: audits begin
    with the next step."""
    return State(step=after.step, rung=rung, next_audit=after.step)
