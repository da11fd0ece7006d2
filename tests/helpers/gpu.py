"""Steps on a GPU, and copies that come late there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from remat_compile.backends.torch.runtime import AcceleratorEngine
from remat_compile.backends.torch.runtime.engine import storage_bytes

_CYCLES = 2_000_000
"""Of the clock: a millisecond, as long as a GPU takes for many operators of a test."""


@dataclass(frozen=True)
class Delay:
    """`late` names streams that sleep before each copy: `d2h`, `h2d`, or `compute`; with a seed
    that is not 0, each before some copies, by chance."""

    late: tuple[str, ...]
    seed: int = 0

    @contextmanager
    def of(self, engine: AcceleratorEngine) -> Iterator[None]:
        """Inside, the copies of an engine come late, and what is copied back is poison before."""
        chance, issue = Random(self.seed), engine.issue

        def late(direction: Any, name: str, tensor: torch.Tensor, host: Any) -> Any:
            if direction == "h2d":  # else it may have the bytes that it had before
                storage_bytes(tensor).fill_(255)
            for one in ("compute", direction):
                if one in self.late and (self.seed == 0 or chance.random() < 0.3):
                    stream = engine._streams.get(one) or torch.accelerator.current_stream()
                    with stream:
                        torch.cuda._sleep(_CYCLES)  # type: ignore[no-untyped-call]
            return issue(direction, name, tensor, host)

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
