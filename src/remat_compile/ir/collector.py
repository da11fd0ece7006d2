"""Python's collector of cycles, out of the way where it costs much and finds nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """While millions of objects are made that stay, the collector would go through all of them
    again and again: two fifths of the time of reading a long text. What is made inside must be free
    of cycles, or little."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
