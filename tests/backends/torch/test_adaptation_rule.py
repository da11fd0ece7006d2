"""The rule that goes up and down a ladder of plans: signals in, rungs out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, replace
from itertools import zip_longest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remat_compile.backends.torch.adaptation.rule import Audit, Rules, State, decide

RULES = Rules(rungs=3, tolerance=0.1, most_steps=8)
GOOD, FAIR, BAD = 0.02, 0.05, 0.2


def audit(error: float = 0.0, next_error: float | None = None, **others: int) -> Audit:
    return Audit(error, (0.0, 0.0), next_error=next_error, **others)


def after(
    state: State, signals: Iterable[Audit | None], norms: Iterable[float] = ()
) -> tuple[State, str]:
    cause = ""
    for each, norm in zip_longest(signals, norms, fillvalue=1.0):
        state, cause = decide(state, norm, each if isinstance(each, Audit) else None, RULES)
    return state, cause


@pytest.mark.parametrize(
    ("rung", "audits", "then"),
    [
        (0, [audit(0, GOOD)], 0),
        (0, [audit(0, GOOD), audit(0, GOOD)], 1),
        (0, [audit(0, GOOD), audit(0, FAIR), audit(0, GOOD)], 0),
        (1, [audit(FAIR, GOOD), audit(FAIR, GOOD)], 2),
        (1, [audit(FAIR, FAIR)] * 9, 1),
        (1, [audit(BAD)], 0),
        (2, [audit(0.101)], 0),
        (2, [audit(GOOD)] * 9, 2),
        (2, [audit(math.inf)], 0),
        (2, [audit(GOOD, bad_groups=1)], 0),
        (2, [audit(GOOD, overflow=9)], 2),
    ],
    ids=str,
)
def test_audits_choose_the_rung(rung: int, audits: list[Audit], then: int) -> None:
    state, cause = after(State(rung=rung), audits)
    assert state.rung == then
    assert bool(cause) == (rung != then)


def test_intervals_double_up_to_the_most_and_begin_again_when_outliers_grow() -> None:
    state, audited = State(rung=2), []
    for step in range(40):
        found = None
        if state.is_audited:
            audited.append(step)
            found = audit(GOOD, overflow=5 if step >= 31 else 1 if step >= 3 else 0)
        state, _ = decide(state, 1.0, found, RULES)
    assert audited == [0, 2, 6, 7, 9, 13, 21, 29, 37, 38]


def test_a_switch_is_followed_by_an_audit() -> None:
    before = State(step=50, rung=2, interval=8, next_audit=57)
    state, cause = decide(before, math.nan, None, RULES)
    assert state == State(step=51, rung=0, next_audit=51)
    assert state.is_audited
    assert "not finite" in cause


def test_the_norm_is_held_against_its_median() -> None:
    few, _ = after(State(rung=1, next_audit=99), (), (3.0, 1.0, 2.0, 1.0, 1.0, 9.0, 1.0))
    assert decide(few, 100.0, None, RULES)[0].rung == 1  # of seven no median is taken
    many, _ = after(few, [None])
    assert decide(many, 10.0, None, RULES)[0].rung == 1
    state, cause = decide(many, 10.1, None, RULES)
    assert (state.rung, state.norms) == (0, ())
    assert "median 1" in cause
    # An audit knows better: that norm is of the exact gradient.
    assert decide(many, 10.1, audit(GOOD), RULES)[0].rung == 1


def test_a_bias_of_four_audits_leads_back() -> None:
    state, cause = after(State(rung=1), [Audit(FAIR, (0.0, 0.04))] * 3)
    assert (state.rung, cause) == (1, "")
    assert "bias 0.04" in after(state, [Audit(FAIR, (0.0, 0.04))])[1]
    # Errors that are as large and have both signs.
    assert after(state, [Audit(FAIR, (0.0, -0.04))] * 2 + [Audit(FAIR, (0.0, 0.04))])[0].rung == 1


floats = st.floats(0, 1) | st.sampled_from([math.inf, math.nan])
audits = st.builds(
    Audit, floats, st.tuples(st.floats(-1, 1)), st.integers(0, 1), st.integers(0, 9), floats
)


@given(st.lists(st.tuples(floats, audits), max_size=40))
def test_no_signals_lead_off_the_ladder(signals: list[tuple[float, Audit]]) -> None:
    state = State()
    for norm, each in signals:
        found = each if state.is_audited else None
        if found is not None and state.rung == RULES.rungs - 1:
            found = replace(found, next_error=None)
        following, cause = decide(state, norm, found, RULES)
        assert decide(State(**asdict(state)), norm, found, RULES) == (following, cause)
        assert following.rung in {0, state.rung, state.rung + 1}
        assert following.rung < RULES.rungs
        assert bool(cause) == (following.rung != state.rung)
        assert following.next_audit <= state.step + RULES.most_steps or found is None
        state = following
