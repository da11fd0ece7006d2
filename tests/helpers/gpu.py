"""Steps on a GPU, and copies that come late there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from remat_compile.backends.torch.runtime import AcceleratorEngine

__all__ = ["AT_ONCE", "LATE", "PATTERNS", "Delay"]

_CYCLES = 4_000_000
"""Of the clock: two milliseconds, in which a GPU does the whole step of a test."""


@dataclass(frozen=True)
class Delay:
    """`late` names streams that sleep before each copy: `d2h`, `h2d`, or `compute`; with a seed
    that is not 0, each before some copies, by chance."""

    late: tuple[str, ...]
    seed: int = 0

    @contextmanager
    def of(self, engine: AcceleratorEngine) -> Iterator[None]:
        """Inside, the copies of an engine come late."""
        chance, issue = Random(self.seed), engine.issue

        def late(direction: Any, *given: Any) -> Any:
            for name in ("compute", direction):
                if name in self.late and (self.seed == 0 or chance.random() < 0.3):
                    stream = engine._streams.get(name) or torch.accelerator.current_stream()
                    with stream:
                        torch.cuda._sleep(_CYCLES)
            return issue(direction, *given)

        engine.issue = late  # type: ignore[method-assign]
        try:
            yield
        finally:
            del engine.issue


AT_ONCE = Delay(())
LATE = tuple(map(Delay, (("d2h", "h2d"), ("compute",), ("d2h",), ("h2d",))))
BY_CHANCE = tuple(Delay(("compute", "d2h", "h2d"), seed) for seed in range(1, 16))
PATTERNS = (AT_ONCE, *LATE, *BY_CHANCE)
"""Twenty."""
