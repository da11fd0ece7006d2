"""Time in tests that also run on slow machines with much else to do."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, process_time

import pytest

__all__ = ["HANGS_S", "ends_soon", "patient", "skips"]

HANGS_S = 120.0
"""What takes longer by the clock hangs: no machine is so slow, or so busy."""

_PATIENCE = {
    "planners.isolation.crew.START_S": HANGS_S,
    "planners.isolation.planner_process.START_S": HANGS_S,
    "planners.auto.GRACE_S": HANGS_S,
    "planners.auto.QUICK_GRACE_S": HANGS_S,
    "planners.hierarchy.jobs._GRACE_S": HANGS_S,
    "driver.ask.GRACE_S": HANGS_S,
}
"""How long this package waits for those who are late, by the clock."""


@contextmanager
def ends_soon(processor_s: float) -> Iterator[None]:
    """Asserts that what runs inside takes less than so many seconds of this process's processor
    time, which others on the machine do not lengthen, and does not hang."""
    began, worked = monotonic(), process_time()
    yield
    assert process_time() - worked < processor_s
    assert monotonic() - began < HANGS_S


@contextmanager
def patient() -> Iterator[None]:
    """Inside, nobody is given up because the machine is busy. What is about giving up says itself
    when it does."""
    with pytest.MonkeyPatch.context() as patch:
        for name, seconds in _PATIENCE.items():
            patch.setattr(f"remat_compile.{name}", seconds)
        yield


def skips(patch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """From now on the planners' clock is ahead of the true one by what the function that this
    returns was given: time passes for them, and no test waits for it or hangs on how much."""
    ahead_s = 0.0

    def skip(seconds: float) -> None:
        nonlocal ahead_s
        ahead_s += seconds

    for name, module in list(sys.modules.items()):
        if name.startswith("remat_compile.planners.") and hasattr(module, "monotonic"):
            patch.setattr(module, "monotonic", lambda: monotonic() + ahead_s)
    return skip
