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
from collections.abc import Sequence
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
    """What an audit measured; errors are relative, the largest over parameters.

    `error` is that of the present rung (0 of the exact one), `next_error` that of the one above
    (None where it was not tried). `biases` are signed errors of the present rung by parameter.
    `bad_groups` counts groups of its packed values that are not finite, `overflow` outlier channels
    that its codecs have no place for.
    """

    error: float
    next_error: float | None
    biases: tuple[float, ...]
    bad_groups: int
    overflow: int


@dataclass(frozen=True, slots=True)
class Signals:
    """Of one step, the same on all ranks: the norm of the gradient, exact where there was an audit,
    else by the present rung; and that audit, unless its exact gradient is not finite."""

    norm: float
    audit: Audit | None


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


def decide(state: State, signals: Signals, rules: Rules) -> tuple[State, str]:
    """The state before the next step, and the cause of a switch ("" for none)."""
    after = replace(state, step=state.step + 1)
    audit = signals.audit
    if not math.isfinite(signals.norm):
        return _switched(after, 0), "a gradient is not finite" if state.rung else ""
    if state.rung and (cause := _cause_to_leave(state, signals, rules)):
        return _switched(after, 0), cause
    after = replace(after, norms=(*state.norms, signals.norm)[-KEPT_NORMS:])
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


def _cause_to_leave(state: State, signals: Signals, rules: Rules) -> str:
    audit = signals.audit
    if audit is None:
        usual = median(state.norms) if len(state.norms) >= FEWEST_NORMS else math.inf
        is_large = signals.norm > LARGE_NORM * usual
        return f"gradient norm {signals.norm:.3g}, its median {usual:.3g}" if is_large else ""
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


def state_of(held: dict[str, object]) -> State:
    """The state of which `held` has the fields, with lists for tuples perhaps."""
    norms: Sequence[float] = held["norms"]  # type: ignore[assignment]
    biases: Sequence[Sequence[float]] = held["biases"]  # type: ignore[assignment]
    return State(**{**held, "norms": tuple(norms), "biases": tuple(map(tuple, biases))})  # type: ignore[arg-type]
