"""CUDA graphs of PyTorch, in one memory pool.

The numbers of a random operator on CUDA are a function of a seed and an offset, which every draw
moves on by what it takes. A graph adds to the offset at its launch, so that an operator that is
recorded draws what it would draw there. One that runs again has a generator of its own in the
graph, each time that it does, set before each launch to the seed and the offset of its first
execution: what is drawn from one generator within a graph moves on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from .recorder import GraphRecorder, Recording

T = TypeVar("T")
_OFFSET = slice(8, 16)
"""Bytes of a state of a generator on CUDA."""


class CudaRecorder(GraphRecorder):
    """The graphs of one step on one device."""

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self.device = torch.device(device.type, index)
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        self._after: dict[int, list[int]] = {}
        """By the number of the first, how far the states of a function are behind its begin."""
        self._states: dict[int, Tensor] = {}
        self._recording: dict[int, list[torch.Generator]] = {}

    def record(self, run: Callable[[], T], draws: Sequence[int]) -> tuple[T, Recording]:
        graph = torch.cuda.CUDAGraph()
        generators = [(number, torch.Generator(self.device)) for number in draws]
        self._recording = {number: [] for number in draws}
        for number, generator in generators:
            graph.register_generator_state(generator)
            self._recording[number].append(generator)
        try:
            with torch.cuda.graph(
                graph,
                pool=self._pool,
                stream=self._stream,
                capture_error_mode="thread_local",
            ):
                made = run()
        finally:
            self._recording = {}

        def replay() -> None:
            for number, generator in generators:
                generator.set_state(self._states[number])
            graph.replay()

        return made, replay

    def take_state(self, number: int) -> None:
        """Nothing: what the state is follows from the one before the call."""

    @contextmanager
    def drawing(self, number: int) -> Iterator[None]:
        left = self._recording.get(number)
        if not left:
            raise RuntimeError("a random operator runs more often than in the step before")
        default: Any = torch.cuda.default_generators[self.device.index]
        own = default.graphsafe_get_state()
        default.graphsafe_set_state(left.pop(0))
        try:
            yield
        finally:
            default.graphsafe_set_state(own)

    def noted(self, first: int, before: Tensor, states: Sequence[Tensor]) -> None:
        self._after[first] = [_offset(state) - _offset(before) for state in states]

    def begin(self, first: int) -> None:
        if after := self._after.get(first):
            now = torch.cuda.get_rng_state(self.device)
            states = (_later(now, drawn) for drawn in after)
            self._states |= dict(enumerate(states, start=first))

    def held_bytes(self) -> int:
        segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        own = (s for s in segments if tuple(s["segment_pool_id"]) == tuple(self._pool))
        return sum(int(segment["total_size"]) for segment in own)


def _offset(state: Tensor) -> int:
    return int.from_bytes(bytes(state[_OFFSET].tolist()), "little", signed=True)


def _later(state: Tensor, after: int) -> Tensor:
    """The state once `after` more was drawn."""
    offset = (_offset(state) + after).to_bytes(8, "little", signed=True)
    made = state.clone()
    made[_OFFSET] = torch.tensor(list(offset), dtype=torch.uint8)
    return made
