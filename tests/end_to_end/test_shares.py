"""How regions of `torch.compile` share a budget, in numbers."""

from __future__ import annotations

from fractions import Fraction

import pytest

from remat_compile.regions.share import (
    Needs,
    Used,
    bound_bytes,
    fixed_bytes,
    fraction,
)

NEEDS = {
    "a": Needs(10, 110, 5, held={1: 7, 2: 3}, grads={1: 7}),
    "b": Needs(20, 60, 2, held={1: 7, 3: 4}, grads={1: 7, 3: 4}),
}


def test_what_waits_adds_up_and_one_runs() -> None:
    used = {"a": Used(100, 60), "b": Used(50, 45)}
    assert bound_bytes({"a": 1}, used) == 100
    assert bound_bytes({"a": 1, "b": 1}, used) == 60 + 45 + 40
    assert bound_bytes({"a": 2, "b": 1}, used) == 2 * 60 + 45 + 40
    assert bound_bytes({}, used) == 0


@pytest.mark.parametrize(
    ("room", "part"),
    [(30, Fraction(0)), (100, Fraction(1, 2)), (170, Fraction(1)), (10**6, Fraction(1))],
)
def test_all_go_the_same_part_of_the_way(room: int, part: Fraction) -> None:
    assert fraction({"a": 1, "b": 1}, NEEDS, room) == part
    shares = [needs.share_bytes(part) for needs in NEEDS.values()]
    assert sum(shares) <= room
    assert all(
        needs.floor_bytes <= share <= needs.peak_bytes
        for needs, share in zip(NEEDS.values(), shares, strict=True)
    )


def test_floors_that_do_not_fit() -> None:
    assert fraction({"a": 1, "b": 1}, NEEDS, 29) < 0
    assert fraction({"a": 2, "b": 1}, NEEDS, 39) < 0
    assert fraction({"c": 1}, {"c": Needs(5, 5)}, 4) < 0
    assert fraction({"c": 1}, {"c": Needs(5, 5)}, 5) == 1


def test_shared_parameters_count_once_and_their_gradients_twice_for_a_while() -> None:
    alone = fixed_bytes({"a": 1}, NEEDS, held_before=False)
    assert alone == 10 + 7 + 5
    assert fixed_bytes({"a": 1}, NEEDS, held_before=True) == alone + 7
    assert fixed_bytes({"a": 3}, NEEDS, held_before=False) == 10 + 7 + 7 + 3 * 5
    both = fixed_bytes({"a": 1, "b": 1}, NEEDS, held_before=False)
    assert both == (7 + 3 + 4) + (7 + 4) + 7 + (5 + 2)
