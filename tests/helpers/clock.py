"""Time in tests that also run on slow machines with much else to do."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic, perf_counter
from types import ModuleType
from typing import Any

import pytest

HANGS_S = 120.0
"""What takes longer by the clock hangs: no machine is so slow, or so busy."""

_PATIENCE = {
    "planners.isolation.crew.START_S": HANGS_S,
    "planners.auto.GRACE_S": HANGS_S,
    "planners.auto.QUICK_GRACE_S": HANGS_S,
    "planners.hierarchy.effort._GRACE_S": HANGS_S,
    "plans.run_planner.GRACE_S": HANGS_S,
}
"""How long this package waits for those who are late, by the clock."""


@contextmanager
def patient() -> Iterator[None]:
    """Inside, nobody is given up because the machine is busy. What is about giving up says itself
    when it does."""
    with pytest.MonkeyPatch.context() as patch:
        for name, seconds in _PATIENCE.items():
            patch.setattr(f"remat_compile.{name}", seconds)
        yield


class Clock:
    """That of this package in this process: ahead of the true one by what it was moved on, which
    a call does, and by `each_s` more with each of the `looks` at it."""

    def __init__(self) -> None:
        self.ahead_s = self.each_s = 0.0
        self.looks = 0

    def __call__(self, seconds: float) -> None:
        self.ahead_s += seconds

    def now(self, true: Callable[[], float] = monotonic) -> float:
        self.looks += 1
        self.ahead_s += self.each_s
        return true() + self.ahead_s


class _Time(ModuleType):
    """The module `time` with another clock."""

    def __init__(self, clock: Clock):
        super().__init__("time")
        self.monotonic = clock.now
        self.perf_counter = partial(clock.now, perf_counter)

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)


def skips(patch: pytest.MonkeyPatch) -> Clock:
    """From now on the clock of every module of this package that is loaded is ahead of the true
    one by what a call of the result was given: time passes for it, and no test waits for it or
    hangs on how much. Limits and steps are many times `HANGS_S`, so that what truly passes does
    not count."""
    clock = Clock()
    for name, module in list(sys.modules.items()):
        if name.startswith("remat_compile."):
            if hasattr(module, "monotonic"):
                patch.setattr(module, "monotonic", clock.now)
            if getattr(module, "time", None) is time:
                patch.setattr(module, "time", _Time(clock))
    return clock
