"""Processor caches as a step leaves them to its next computation.

An operator that is run again and again has its arguments, its results and the code around it at
hand. In a step the argument that was written last is at hand, and everything else was pushed out
by what was computed since: a kernel of 44 us by itself took 79 between two products of matrices.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

__all__ = ["StepCaches", "cache_bytes"]

_DEFAULT_BYTES = 32 << 20
"""Of a machine that does not tell."""
_MOST_BYTES = 64 << 20
"""What is shared by the processors of a large machine is not pushed out by one step."""
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class StepCaches:
    """Leaves the caches as a step that touches `step_bytes` does. On other devices than the CPU
    nothing is done: what they run is timed in a queue."""

    def __init__(self, device: torch.device, step_bytes: int):
        self._bytes = min(step_bytes, cache_bytes()) if device.type == "cpu" else 0
        self._pushed: Tensor | None = None

    def leaver(self, last: Tensor | None) -> Callable[[], None]:
        """What leaves them so, with `last` as the argument that was written last."""
        if not self._bytes:
            return lambda: None
        if self._pushed is None:
            self._pushed = torch.zeros(-(-self._bytes // 4))
        pushed = self._pushed
        if last is None:
            return lambda: _write(pushed)
        # The whole storage: a tensor that is expanded cannot be written.
        memory = torch.empty(0, dtype=last.dtype).set_(last.untyped_storage())
        values = memory.clone()

        def leave() -> None:
            _write(pushed)
            memory.copy_(values)

        return leave


def _write(pushed: Tensor) -> None:
    pushed.add_(1.0)


@cache
def cache_bytes() -> int:
    """The largest cache of a processor, as far as it is told and a step pushes out."""
    sizes = [0]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        try:
            size = re.fullmatch(r"(\d{1,9})([KMG])\s*", file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        sizes += [int(size[1]) * _UNITS[size[2]]] if size else []
    return min(max(sizes) or _DEFAULT_BYTES, _MOST_BYTES)
