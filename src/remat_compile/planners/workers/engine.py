"""What workers are asked through."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

__all__ = ["Engine"]


class Engine(Protocol):
    """What is used of an `Executor`, and how many jobs it does at a time."""

    @property
    def size(self) -> int: ...

    @property
    def is_alive(self) -> bool:
        """Whether anybody is there to work."""
        ...

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]: ...

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None: ...
