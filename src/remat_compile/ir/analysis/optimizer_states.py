"""Bytes that an optimizer holds for its parameters, where none was captured with the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..diagnostics import fail, nearest

BLOCK, LEAST_8BIT = 256, 4096
"""bitsandbytes: elements for which a state of 8 bits has one float32 scale; smaller tensors have
states in float32 (`min_8bit_size`)."""


@dataclass(frozen=True, slots=True)
class AssumedOptimizer:
    """`state_bytes` and `update_bytes` take the elements of a parameter and the bytes of each: its
    states, and what an update takes while it runs (of all parameters at once)."""

    name: str
    meaning: str
    state_bytes: Callable[[int, int], int]
    update_bytes: Callable[[int, int], int] = lambda count, width: 0


def _states_8bit(count: int, width: int) -> int:
    return 8 * count if count < LEAST_8BIT else 2 * count + 8 * -(-count // BLOCK)


_FOREACH = "its default update takes as much again as the parameters (foreach, says PyTorch)"

OPTIMIZERS = {
    o.name: o
    for o in (
        AssumedOptimizer(
            "adamw",
            f"torch.optim.AdamW: two states of the parameter's type; {_FOREACH}",
            lambda count, width: 2 * count * width,
            lambda count, width: count * width,
        ),
        AssumedOptimizer(
            "adamw-fused",
            "torch.optim.AdamW(fused=True): two states of the parameter's type",
            lambda count, width: 2 * count * width,
        ),
        AssumedOptimizer(
            "adamw-fp32",
            "AdamW in float32: two states, and a float32 copy of narrower parameters "
            "(Rajbhandari 2020, section 3.1)",
            lambda count, width: (8 if width >= 4 else 12) * count,
        ),
        AssumedOptimizer(
            "adamw-8bit",
            "bitsandbytes.optim.AdamW8bit: two states of 8 bits, a float32 scale for each 256; "
            "float32 for tensors of less than 4096 elements",
            _states_8bit,
        ),
        AssumedOptimizer("sgd", "torch.optim.SGD without momentum: no states", lambda *_: 0),
        AssumedOptimizer(
            "sgd-momentum",
            "torch.optim.SGD with momentum: one state of the parameter's type",
            lambda count, width: count * width,
        ),
    )
}
"""By name. Measured beside `torch.optim` in tests/ir/test_optimizer_states.py."""

USUAL = "adamw"


def assumed_optimizer(name: str) -> AssumedOptimizer:
    """FB0968 for a name that is not known."""
    if name not in OPTIMIZERS:
        message = f'no optimizer "{name}" whose states are known.{nearest(name, OPTIMIZERS)}'
        hint = f"name one of {', '.join(OPTIMIZERS)}; or let the factory return its optimizer too"
        fail("FB0968", message, hint=hint, usage=True)
    return OPTIMIZERS[name]
