"""The interface of an engine of copies: it moves bytes between a tensor and host memory, beside the
computations, in the order of issue in each direction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ....ir.schedule import Direction

Flight = Any
"""A copy that may not have ended, as its engine knows it."""


class CopyEngine(ABC):
    """Moves bytes for all calls of one plan. spec/semantics.md, Streams, says what must hold."""

    device: torch.device

    @abstractmethod
    def host_memory(self, size_bytes: int) -> tuple[Tensor, ...]:
        """Blocks of uint8 that together have the bytes asked for; RuntimeError where there are
        none to be had."""

    @abstractmethod
    def issue(
        self, direction: Direction, name: str, tensor: Tensor, host: Sequence[Tensor]
    ) -> Flight:
        """Begins to copy all bytes of `tensor` to the pieces of `host`, or back: after all that
        the compute stream was given, and after the copy before it in its direction."""

    @abstractmethod
    def wait(self, flight: Flight) -> None:
        """Let the compute stream run what it is given from here on after the copy. Raises what the
        copy raised."""

    @abstractmethod
    def mark(self) -> Flight:
        """The work that the compute stream was given so far, for `wait` and `settle`."""

    @abstractmethod
    def settle(self, flight: Flight) -> None:
        """Returns when a copy that nobody waits for any more is over, whatever it raised."""

    def waited(self, flight: Flight) -> Flight:
        """Return what `settle` needs of a copy that was waited for: nothing that takes memory."""
        return flight

    def forget(self, host: Sequence[Tensor]) -> None:  # noqa: B027  # most need not know
        """Is told of host bytes that were given back."""


def storage_bytes(tensor: Tensor) -> Tensor:
    """The whole storage of a tensor as uint8[bytes], without a copy."""
    storage = tensor.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return whole.set_(storage, 0, (storage.nbytes(),), (1,))


def moves(
    direction: Direction, tensor: Tensor, host: Sequence[Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Destination and source of each piece of a copy."""
    whole, at = storage_bytes(tensor), 0
    for piece in host:
        part = whole[at : at + piece.numel()]
        at += piece.numel()
        yield (piece, part) if direction == "d2h" else (part, piece)
