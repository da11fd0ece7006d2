"""PyTorch's logging, silenced."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unlogged(level: int = logging.ERROR) -> Iterator[None]:
    """Nothing up to this level is logged inside, as of a trial that may fail."""
    before = logging.root.manager.disable
    logging.disable(max(before, level))
    try:
        yield
    finally:
        logging.disable(before)
