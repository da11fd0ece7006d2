"""Kernels of fused cNodes on this machine, and warnings where there are none."""

from __future__ import annotations

import warnings
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from ...ir.analysis.regions import ROUNDING
from ...ir.diagnostics import Diagnostic, Note, render

if TYPE_CHECKING:
    from ...backends.torch.kernels import Kernels
    from ...ir.program import Program


def has_regions(program: Program) -> bool:
    return any(c.is_fused for c in program.graph.cnodes)


def rounding(program: Program) -> float:
    """Return the limit that is taken for rounding in a step: the limit of its coarsest type."""
    types = {a.dtype for a in program.graph.anodes}
    return max((limit for dtype, limit in ROUNDING.items() if dtype in types), default=0.0)


def lacking(program: Program) -> str | None:
    """Return what kernels for the program's device lack here, in words."""
    import torch

    from ...backends.torch import kernels

    return kernels.missing(torch.device(program.header.device))


KERNELS_S = 60.0
"""Seconds, as a planner has by default, in which kernels of a plan from a file are made, which may
hold any number. What has none by then runs by its calls (FB0915)."""


def new_kernels(program: Program, limit_s: float = inf) -> Kernels:
    """Return a maker of kernels for the program's device, within a limit of seconds."""
    import torch

    from ...backends.torch.kernels import Kernels

    return Kernels(torch.device(program.header.device), monotonic() + limit_s)


def kernels_here(program: Program) -> Kernels | None:
    """Return the maker of a plan's kernels on this machine; None where it has no regions, and with
    the warning FB0916 where there can be none, so that they run by their calls."""
    if not has_regions(program):
        return None
    why = lacking(program)
    if why is None:
        return new_kernels(program, KERNELS_S)
    message = f"regions run by their calls, beyond the proven bound maybe: {why}"
    _warn(Diagnostic("FB0916", message, hint="plan without fusion on this machine"))
    return None


def warn_of_calls(kernels: Kernels | None) -> None:
    """FB0915 for regions that were built without a kernel."""
    if kernels is None or not kernels.by_calls:
        return
    message = f"{kernels.by_calls} regions have no kernel and run by their calls"
    why = tuple(Note(text) for text in kernels.failures[:3])
    hint = "plan without fusion here: the proven bound may not hold for these calls"
    _warn(Diagnostic("FB0915", message, None, why, hint))


def _warn(diagnostic: Diagnostic) -> None:
    warnings.warn(render(diagnostic, level="warning"), stacklevel=4)
