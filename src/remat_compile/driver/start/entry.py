"""What is kept of a step for the next start of its model; data, and nothing that could run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..._torch.ops import from_torch_dtype, torch_dtype
from ..._torch.strides import Strides
from .fused import FusedEntry

__all__ = ["SUFFIX", "StartEntry"]

SUFFIX = ".remat-start"
MOST_CONSTANT_BYTES = 2**16


@dataclass(frozen=True)
class StartEntry:
    """`plan` is a program with its schedule as text. `behaviour` is the digest of the model's
    operators, `shapes` what they gave, `after` the key of the model behind a call. `tangents` are
    strides; `constants` tensors from literals, by name; `with_cache` is that of `Exported`,
    `fused` is there for a fused plan."""

    plan: str
    behaviour: str
    after: str
    shapes: Mapping[str, list[Any]]
    tangents: tuple[Strides, ...]
    constants: Mapping[str, Tensor]
    with_cache: bool = False
    fused: FusedEntry | None = None

    def held(self) -> dict[str, Any]:
        """As `json` has it."""
        start = {
            "plan": self.plan,
            "behaviour": self.behaviour,
            "after": self.after,
            "shapes": dict(self.shapes),
            "tangents": [list(strides) for strides in self.tangents],
            "constants": [_written(name, t) for name, t in self.constants.items()],
            "with_cache": self.with_cache,
            "fused": None if self.fused is None else self.fused.held(),
        }
        text = json.dumps(start)
        return {"sha256": hashlib.sha256(text.encode()).hexdigest(), "start": text}

    @staticmethod
    def of(held: Mapping[str, Any]) -> StartEntry:
        """ValueError for what is none, or was changed."""
        match held:
            case {"sha256": str(digest), "start": str(text)}:
                if digest != hashlib.sha256(text.encode()).hexdigest():
                    raise ValueError("it was changed or cut short")
            case _:
                raise ValueError("it is no start")
        match json.loads(text):
            case {
                "plan": str(plan),
                "behaviour": str(behaviour),
                "after": str(after),
                "shapes": dict(shapes),
                "tangents": list(tangents),
                "constants": list(constants),
                "with_cache": bool(with_cache),
                "fused": fused,
            }:
                if not all(isinstance(parts, list) for parts in shapes.values()):
                    raise ValueError("its shapes are none")
                strides = tuple(_sizes(one) for one in tangents)
                read = dict(_read(one) for one in constants)
                kept = FusedEntry.read(fused)
                parts = (plan, behaviour, after, shapes, strides, read)
                return StartEntry(*parts, with_cache, kept)
        raise ValueError("it is no start")


def _written(name: str, t: Tensor) -> list[Any]:
    """ValueError for a tensor that is too large to be a literal, or not on the CPU."""
    if t.device.type != "cpu" or t.numel() * t.element_size() > MOST_CONSTANT_BYTES:
        raise ValueError(f"%{name} is no small tensor on the CPU")
    bits = t.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return [name, from_torch_dtype(t.dtype), list(t.shape), bits.hex()]


def _read(one: object) -> tuple[str, Tensor]:
    match one:
        case [str(name), str(dtype), list(shape), str(bits)]:
            flat = torch.frombuffer(bytearray.fromhex(bits) or bytearray(1), dtype=torch.uint8)
            sizes = _sizes(shape)
            count = len(bits) // 2
            return name, flat[:count].clone().view(torch_dtype(dtype)).reshape(sizes)
    raise ValueError("a constant is none")


def _sizes(values: Sequence[object]) -> tuple[int, ...]:
    sizes = tuple(s for s in values if isinstance(s, int) and not isinstance(s, bool) and s >= 0)
    if not isinstance(values, list) or len(sizes) != len(values):
        raise ValueError("sizes are none")
    return sizes
