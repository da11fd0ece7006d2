"""Budgets between the least that a program can take and what its unplanned step takes."""

from __future__ import annotations

from remat_compile.ir.program import Budget, Program
from remat_compile.plans.budget import Baseline


def share(program: Program, part: float) -> Budget:
    """Of the activations: their floor at 0, their peak with nothing recomputed at 1."""
    base = Baseline.of(program)
    low, high = base.activation_floor_bytes, base.activation_peak_bytes
    return Budget(int(low + part * (high - low)), "activation")
