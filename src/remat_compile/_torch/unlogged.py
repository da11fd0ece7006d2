"""Nothing is logged of what is only tried."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["unlogged"]


@contextmanager
def unlogged() -> Iterator[None]:
    """What PyTorch logs of a way that cannot be traced says nothing of the one that can."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.ERROR))
    try:
        yield
    finally:
        logging.disable(before)
