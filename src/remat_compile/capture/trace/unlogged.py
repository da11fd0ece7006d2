"""PyTorch's logging, silenced."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unlogged(level: int = logging.ERROR) -> Iterator[None]:
    """Silence the log up to this level inside, as around a trial that may fail."""
    before = logging.root.manager.disable
    logging.disable(max(before, level))
    try:
        yield
    finally:
        logging.disable(before)
