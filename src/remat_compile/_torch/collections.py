"""Python's garbage collector, kept from looking through everything while a model is captured.

A full collection looks at every object of the process: with PyTorch and `transformers` loaded 0.25
to 0.35 s, and a capture or a second start makes enough objects for one or two. They free nothing
worth it. Collections of young objects go on.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["without_full_collections"]

NEVER = 10**9

_lock = threading.Lock()
_before: list[int] = []
"""Thresholds of full collections, one for each block that is entered; the first is the user's."""


@contextmanager
def without_full_collections() -> Iterator[None]:
    """Inside, no full collection starts by itself, in any thread. May be nested."""
    with _lock:
        young, middle, full = gc.get_threshold()
        _before.append(full)
        gc.set_threshold(young, middle, NEVER)
    try:
        yield
    finally:
        with _lock:
            full = _before[0] if len(_before) == 1 else NEVER
            _before.pop()
            young, middle, now = gc.get_threshold()
            if now == NEVER:  # else somebody set it meanwhile
                gc.set_threshold(young, middle, full)
