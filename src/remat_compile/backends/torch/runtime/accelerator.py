"""Copies on an accelerator: a stream per direction and an event per copy, of `torch.accelerator`.

A tensor that is copied to the host is referenced until its wait, so that its memory cannot be
taken before; one that is copied back is allocated on the compute stream, which gives its bytes
back too. So no stream but that one ever frees, and `record_stream` is not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....ir.schedule import Direction
from .engine import CopyEngine, moves

_PAGE_BYTES = 4096


@dataclass(frozen=True)
class Streams:
    """Functions of PyTorch that the engine uses."""

    stream: Callable[[torch.device], Any] = torch.Stream
    event: Callable[[torch.device], Any] = torch.Event
    current: Callable[[torch.device], Any] = torch.accelerator.current_stream
    pin_memory: bool = True


@dataclass(frozen=True)
class _Copy:
    """An event after the copy, and the tensor on the device that it reads or writes."""

    ended: Any
    tensor: Tensor | None


class AcceleratorEngine(CopyEngine):
    """The copies of one plan on one device."""

    def __init__(self, device: torch.device, streams: Streams | None = None) -> None:
        self.device = device
        self._of = streams or Streams()
        self._streams = {"d2h": self._of.stream(device), "h2d": self._of.stream(device)}

    def host_memory(self, size_bytes: int) -> tuple[Tensor, ...]:
        sizes = pinned_sizes(size_bytes) if self._of.pin_memory else (size_bytes,)
        pin = self._of.pin_memory
        return tuple(torch.empty(size, dtype=torch.uint8, pin_memory=pin) for size in sizes)

    def issue(
        self, direction: Direction, name: str, tensor: Tensor, host: Sequence[Tensor]
    ) -> _Copy:
        parts = [*moves(direction, tensor, host)]
        ready = self._event_on(self._of.current(self.device))
        stream = self._streams[direction]
        stream.wait_event(ready)
        with stream:
            for destination, source in parts:
                destination.copy_(source, non_blocking=True)
        return _Copy(self._event_on(stream), tensor)

    def wait(self, flight: _Copy) -> None:
        self._of.current(self.device).wait_event(flight.ended)

    def waited(self, flight: _Copy) -> _Copy:
        return _Copy(flight.ended, None)

    def mark(self) -> _Copy:
        return _Copy(self._event_on(self._of.current(self.device)), None)

    def settle(self, flight: _Copy) -> None:
        flight.ended.synchronize()

    def _event_on(self, stream: Any) -> Any:
        event = self._of.event(self.device)
        event.record(stream)
        return event


def pinned_sizes(size_bytes: int) -> tuple[int, ...]:
    """Powers of two, largest first, that sum up to the bytes asked for, rounded up to a page.

    PyTorch rounds pinned memory up to a power of two: 5 GiB would take 8, but 4 + 1 take 5.
    """
    left = -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES
    return tuple(1 << bit for bit in reversed(range(left.bit_length())) if left >> bit & 1)
