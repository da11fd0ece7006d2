"""The interface to workers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol


class Engine(Protocol):
    """The part of an `Executor` that is used, and its number of parallel jobs."""

    @property
    def size(self) -> int: ...

    @property
    def is_alive(self) -> bool:
        """True if a worker is available."""
        ...

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]: ...

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None: ...
