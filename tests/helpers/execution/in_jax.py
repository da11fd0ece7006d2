"""Executes one proven plan in JAX and compares it with PyTorch's own step in float64."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax

from helpers.jax.arrays import plain_code
from remat_compile import Plan
from remat_compile.backends.jax.emit.tables import tolerance
from remat_compile.plans.jax.reference import held_tensors, reference_step
from remat_compile.plans.jax.source import source_of_plan

Stored = Mapping[str, Mapping[str, Any]]


@contextmanager
def float64() -> Iterator[None]:
    """JAX in float64 and without most of XLA's optimisations: compiling takes the time."""
    with jax.enable_x64(True):
        jax.config.update("jax_disable_most_optimizations", True)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            jax.config.update("jax_disable_most_optimizations", False)  # type: ignore[no-untyped-call]


def stored_values(base: Plan) -> Stored:
    """Inputs, and outputs, buffers and gradients of an unplanned step by PyTorch's kernels,
    with the random numbers of JAX."""
    assert base._exported is not None
    return reference_step(base.program, held_tensors(base.program, base._exported))


def difference(proven: Plan, stored: Stored) -> tuple[float, float]:
    """The largest difference of the generated module from what is stored, as a share of the
    largest value of its kind, and how much is allowed."""
    space: dict[str, Any] = {"__name__": "random_plan"}
    exec(compile(source_of_plan(proven.program, proven.schedule), "<random plan>", "exec"), space)
    options = space["compiler_options"]
    space["compiler_options"] = lambda: {**options(), **plain_code()}
    worst: Mapping[str, float] = space["check"](stored)
    return max(worst.values()), tolerance(proven.program)
