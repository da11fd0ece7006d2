"""The cNodes and bytes of a stage, as `from_program.py` finds them and `rows.py` declares them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class StageParts:
    """The cNodes of a stage by number, as they run (the loss in the last forward, `weights` in a
    third pass), and its bytes as `ir/pipeline.py` has them."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    kept: frozenset[int]
    tokens: frozenset[int]
    reads_input: bool
    reads_output: bool
    held_bytes: int
    keep_bytes: int
    forward_extra_bytes: int
    backward_extra_bytes: int
    weights: tuple[int, ...] = ()
    weight_keep_bytes: int = 0
    weight_extra_bytes: int = 0
    weight_sums_bytes: int = 0
    weight_first_bytes: int = 0
    sums_bytes: int = 0
    first_extra_bytes: int = 0
    closing_bytes: int = 0
