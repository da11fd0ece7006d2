"""State of one call of a step, in a tensor that autograd keeps for the backward.

The forward hands it over as a tensor, the ticket, among all else that autograd saves. The ticket's
memory owns what it stands for: that ends when autograd lets go of the ticket, be that after the
backward, or because there never is one.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class _Ticket(bytearray):
    """The memory of a ticket, which is its number: 1 and on."""

    held: Any = None


class Tickets(Generic[T]):
    """Tickets of all calls of a step."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._there: weakref.WeakValueDictionary[int, _Ticket] = weakref.WeakValueDictionary()

    def __deepcopy__(self, memo: object) -> Tickets[T]:
        return self

    def issue(self, held: T) -> Tensor:
        """A ticket, int64[1], for what is to be redeemed once."""
        number = next(self._numbers)
        memory = _Ticket(number.to_bytes(8, "little"))
        memory.held = held
        self._there[number] = memory
        return torch.frombuffer(memory, dtype=torch.int64)

    def redeem(self, ticket: Tensor) -> T | None:
        """Return the state that it stands for; None the second time, and where autograd has let go
        of it."""
        memory = self._there.get(int(ticket.item()))
        if memory is None:
            return None
        held: T | None = memory.held
        memory.held = None
        return held

    def is_any_out(self) -> bool:
        """Return whether one may still be redeemed."""
        return any(memory.held is not None for memory in self._there.values())
