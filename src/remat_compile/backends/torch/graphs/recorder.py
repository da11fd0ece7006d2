"""A recorder of work for a device, to be launched again as one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

Recording = Callable[[], None]
"""Does again what was recorded: the same kernels on the same memory."""


class GraphRecorder(ABC):
    """Records of one step, which share their memory and are replayed in the order of recording.

    A random operator that runs again shall draw as it did the first time. Its state of the
    generator has a number in the order in which forward and backward take them, from 0 on: `noted`
    says what they were in a function that ran without a record, `begin` is told of one that is
    about to be replayed.
    """

    device: torch.device

    @abstractmethod
    def record(self, run: Callable[[], T], draws: Sequence[int]) -> tuple[T, Recording]:
        """Return the results of `run`, in the memory where every replay puts them, and the replay.
        `draws` are the numbers of the states that `run` draws from with `drawing`, once for each
        time."""

    @abstractmethod
    def take_state(self, number: int) -> None:
        """While recording: here the state of the generator is taken."""

    @abstractmethod
    def drawing(self, number: int) -> AbstractContextManager[None]:
        """While recording: what runs inside draws from the state of this number."""

    @abstractmethod
    def noted(self, first: int, before: Tensor, states: Sequence[Tensor]) -> None:
        """The states that a function took, with numbers from `first` on, and the one before it."""

    @abstractmethod
    def begin(self, first: int) -> None:
        """The function whose states have numbers from `first` on is about to be replayed."""

    @abstractmethod
    def held_bytes(self) -> int:
        """Device memory that the records keep from call to call."""
