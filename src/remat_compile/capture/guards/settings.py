"""Settings of the process that decide what PyTorch's operators and a forward compute.

A factory or a division of whole numbers gives the default dtype that it finds, and a function of
PyTorch's takes other operators where they have to be deterministic. Settings that only kernels read
(precision of products, oneDNN, threads, denormals) are the same for eager and a plan; the default
device is known to Python alone, and so is that of the capture.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Settings:
    """As they were when a model was captured."""

    default_dtype: torch.dtype
    is_deterministic: bool

    @classmethod
    def now(cls) -> Settings:
        return cls(torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled())

    def changes(self) -> Iterator[str]:
        """Return the settings that changed, in words."""
        if (dtype := torch.get_default_dtype()) is not self.default_dtype:
            names = [str(d).removeprefix("torch.") for d in (dtype, self.default_dtype)]
            yield "the default dtype is {}; at capture it was {}".format(*names)
        if (now := torch.are_deterministic_algorithms_enabled()) is not self.is_deterministic:
            states = ["on" if on else "off" for on in (now, self.is_deterministic)]
            yield "deterministic algorithms are {}; at capture they were {}".format(*states)
