"""Every seeded fault is refuted with its code at its place, and every original is proven.

`make mutants` tries many more places than these, and prints the count.
"""

from __future__ import annotations

from itertools import islice, pairwise
from random import Random

import pytest

from helpers.slow import default_only
from helpers.verifier.mutants import KINDS, NAMES, QUICK, case_named, cases
from helpers.verifier.mutants.check import escape_of, prove
from helpers.verifier.mutants.sample import sample

PLANS_PER_KIND = 1
PLACES = 6
"""Of the places in a plan where a fault can be seeded, those of which one is drawn."""


def test_the_names_are_those_of_all_cases() -> None:
    assert [case.name for case in cases()] == NAMES


@pytest.mark.parametrize("name", default_only(NAMES, QUICK))
def test_originals_do_no_harm_and_are_proven(name: str) -> None:
    case = case_named(name)
    proven = prove(case)
    assert (proven.device_bytes, proven.activation_bytes) == (
        case.run.peak(),
        case.run.peak("activation"),
    )


@pytest.mark.parametrize("name", KINDS)
def test_no_mutant_escapes(name: str) -> None:
    rng = Random(name)
    tried = 0
    drawn = rng.sample(cases(), len(cases()))
    for case in sorted(drawn, key=lambda case: case.name not in QUICK):
        mutants = list(islice(KINDS[name].mutants(case), PLACES))
        for mutant in sample(mutants, 1, rng):
            tried += 1
            escape = escape_of(case, mutant)
            assert escape is None, escape
        if tried == PLANS_PER_KIND:
            return
    assert tried, "this fault can be seeded nowhere"


def test_there_are_enough_kinds() -> None:
    assert sum(kind.where == "schedule" for kind in KINDS.values()) >= 25


def test_a_harmless_edit_is_no_mutant() -> None:
    """Two steps that do not need each other may change places."""
    case = next(c for c in cases() if c.name.startswith("mlp"))
    edit = case.edit()
    frees = [e.index for e in case.events if e.cnode is None]
    one, two = next((a, b) for a, b in pairwise(frees) if b == a + 1)
    edit.move_after(one, two)
    escape = escape_of(case, case.mutant("free too early", edit, "FB0804", two))
    assert escape is not None
    assert escape.why == "does no harm"
