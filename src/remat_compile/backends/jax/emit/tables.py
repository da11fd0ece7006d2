"""The constants of a generated module: need of float64, seed, tolerance, counts."""

from __future__ import annotations

from ....ir.program import Program

KINDS = ("param", "buffer", "arg", "tangent", "output", "new_buffer", "grad", "input_grad")
"""The contents of the array file beside a module; entries are `kind|name|dtype`."""

SEED = 0
"""The seed of the base key for stored values of a model with random operators."""

TOLERANCES = {"f64": 1e-12, "f32": 1e-5, "f16": 1e-2, "bf16": 1e-1}
"""The largest difference from PyTorch that a check allows, as a share of the largest value."""


def needs_x64(program: Program) -> bool:
    """True if the program computes in float64 (or complex128)."""
    return any(a.dtype in ("f64", "c128") for a in program.graph.anodes)


def tolerance(program: Program) -> float:
    """By the least precise type that anything is computed in: rotary tables are float32 in
    models of float64 too."""
    tolerances = {TOLERANCES[a.dtype] for a in program.graph.anodes if a.dtype in TOLERANCES}
    return max(tolerances, default=TOLERANCES["f32"])


def tables(program: Program) -> str:
    random = any(c.token is not None for c in program.graph.cnodes)
    return (
        f"NEEDS_X64 = {needs_x64(program)}\n"
        f"RANDOM = {random}  # whether it draws random numbers, and so needs a key\n"
        f"SEED = {SEED}  # of the stored values\n"
        f"TOLERANCE = {tolerance(program):g}\n"
        f"KINDS = {KINDS!r}\n"
        f"ARGUMENTS, RESULTS = {len(program.binding.arguments)}, {len(program.binding.results)}\n"
    )
