"""Predicted temporary bytes, worked out by hand: XLA's order of buffers, and what is measured."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import pytest

from helpers.jax.arrays import quick_compilation
from helpers.paths import fbir
from remat_compile.backends.jax.kernels import Shapes, XlaPrice
from remat_compile.backends.jax.observe.buffers import (
    ValueBuffer,
    XlaFigures,
    buffers_of,
    temporary_bytes,
)
from remat_compile.backends.jax.observe.predict import live_bytes, predicted_temp_bytes
from remat_compile.ir.program import Program
from remat_compile.ir.text.parser import parse_program

TEXT = fbir("backends/jax/texts/buffers")
"""Steps 0 to 11: %h is there at 0 and 1, %k at 1 to 7, %s at 3 and 4, %g at 7 to 10, and of the
results %y from 4, %dw from 10 on."""


@pytest.fixture(autouse=True)
def x64() -> Iterator[None]:
    with quick_compilation(x64=True):
        yield


def program() -> Program:
    return parse_program(TEXT, "plan.fbir")


def test_values_lie_in_the_buffers_of_results_that_are_not_there_yet() -> None:
    """%h takes that of %dw, since it comes first; %k is there beside it, and so temporary, and
    then %g is beside %k (in the buffer of %dw, but for the step that makes %dw of it)."""
    p = program()
    made = buffers_of(p, p.schedules[0])
    assert made == (
        ValueBuffer("dw", 64, 10, 12, is_result=True),
        ValueBuffer("h", 64, 0, 1, is_result=False),
        ValueBuffer("k", 64, 1, 7, is_result=False),
        ValueBuffer("g", 64, 7, 10, is_result=False),
        ValueBuffer("s", 16, 3, 4, is_result=False),
        ValueBuffer("y", 8, 4, 12, is_result=True),
    )
    assert temporary_bytes(made) == 64 + 64  # %k and %g at step 7; %s lies in the buffer of %dw
    assert live_bytes(p, p.schedules[0]) == 64 + 64


def test_what_is_given_back_takes_nothing_and_workspaces_are_added() -> None:
    p = program()
    price = XlaPrice(Shapes(p))
    figures = price.figures()
    assert figures.passed_on == {"F2": "h"}
    assert figures.workspaces["F1"] == 0  # 1000 are PyTorch's
    with_clone = XlaFigures({"F3": 500}, {"F2": "h"})
    made = buffers_of(p, p.schedules[0], figures=with_clone)
    assert [(b.anode, b.first, b.last) for b in made] == [
        ("F3", 3, 3),
        ("dw", 10, 12),
        ("h", 0, 7),
        ("g", 7, 10),
        ("s", 3, 4),
        ("y", 4, 12),
    ]
    # %h lies in the buffer of %dw; the workspace, larger than that, is alone with nothing.
    assert temporary_bytes(made) == 500 + 16


def test_xla_agrees() -> None:
    """Of a chain of products with a result of the same size: one buffer less than two."""
    figures = XlaPrice(Shapes(program())).figures()
    p = program()
    predicted = predicted_temp_bytes(p, p.schedules[0], figures=figures)
    assert predicted == 64

    def twice(x: jax.Array) -> jax.Array:
        a = x @ x
        b = a @ x
        return b @ x

    x = jax.ShapeDtypeStruct((64, 64), "float64")  # type: ignore[no-untyped-call]
    size = 64 * 64 * 8
    analysis = jax.jit(twice).lower(x).compile().memory_analysis()
    assert analysis is not None
    chain = (
        ValueBuffer("c", size, 2, 3, is_result=True),
        ValueBuffer("a", size, 0, 1, is_result=False),
        ValueBuffer("b", size, 1, 2, is_result=False),
    )
    assert abs(analysis.temp_size_in_bytes - temporary_bytes(chain)) < size / 8
