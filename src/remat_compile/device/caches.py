"""Processor caches as a step leaves them to its next computation.

An operator that is run again and again has its arguments, its results and the code around it at
hand. In a step what was written last is at hand, and the rest was pushed out by what was computed
since: a kernel of 44 us by itself took 79 between two products of matrices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

_DEFAULT_BYTES = 32 << 20
"""Cache of a machine that does not tell."""
_MOST_BYTES = 64 << 20
"""Limit on the cache: a larger one is shared by many processors, and a step pushes out no more."""
_OF_CPU = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class StepCaches:
    """Leaves the caches as a step does that touches `step_bytes` and makes the names in `made` in
    their order. On other devices than the CPU nothing is done: what they run is timed in a queue.
    """

    def __init__(self, device: torch.device, step_bytes: int, made: Iterable[str]):
        self.pushed_bytes = min(step_bytes, cache_bytes()) if device.type == "cpu" else 0
        self._place: dict[str, int] = {}
        self._pushing: Tensor | None = None
        self.note(made)

    def note(self, made: Iterable[str]) -> None:
        """Note results of a step, made after all that was noted before."""
        for name in made:
            self._place[name] = len(self._place)

    def last(self, given: Mapping[str, Tensor]) -> Tensor | None:
        """Return the one of these tensors that a step makes last; None where it makes none of them,
        and for one that no cache holds."""
        made = [name for name in given if name in self._place]
        last = given[max(made, key=self._place.__getitem__)] if made else None
        if last is None or not 0 < last.untyped_storage().nbytes() <= self.pushed_bytes:
            return None
        return last

    def leaver(self, given: Mapping[str, Tensor]) -> Callable[[], None]:
        """Return a function that leaves the caches so to a computation on these tensors: the `last`
        of them was just written. Values stay as they are."""
        if not self.pushed_bytes:
            return lambda: None
        if self._pushing is None:
            self._pushing = torch.zeros(-(-self.pushed_bytes // 4), dtype=torch.float32)
        pushing, last = self._pushing, self.last(given)
        if last is None:
            return lambda: _write(pushing)
        # The whole storage: not every view can be written.
        memory = torch.empty(0, dtype=last.dtype).set_(last.untyped_storage())
        values = memory.clone()

        def leave() -> None:
            _write(pushing)
            memory.copy_(values)

        return leave


def _write(pushing: Tensor) -> None:
    pushing.add_(1.0)


@cache
def cache_bytes(folder: Path = _OF_CPU) -> int:
    """The bytes of the largest cache of the CPU that a step pushes out, as far as it is told."""
    sizes = [0]
    for file in folder.glob("index*/size"):
        try:
            size = re.fullmatch(r"(\d{1,9})([KMG])\s*", file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            continue
        sizes += [int(size[1]) * _UNITS[size[2]]] if size else []
    return min(max(sizes) or _DEFAULT_BYTES, _MOST_BYTES)
