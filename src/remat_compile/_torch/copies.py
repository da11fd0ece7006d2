"""Plans that copy to the host have no run time for PyTorch yet, and are refused."""

from __future__ import annotations

from collections.abc import Iterable

from ..ir.diagnostics import fail
from ..ir.schedule import CopyStep, Step

__all__ = ["refuse_copies"]


def refuse_copies(steps: Iterable[Step]) -> None:
    """FB0912 at the first step that copies to the host or back."""
    first = next((step for step in steps if isinstance(step, CopyStep)), None)
    if first is not None:
        message = "PyTorch code cannot copy to the host and back yet, and this plan does"
        hint = "plan without offloading, or keep this plan for `show` and `verify`"
        fail("FB0912", message, first.span, hint=hint)
