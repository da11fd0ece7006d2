"""PyTorch backend: a schedule becomes straight-line Python, in AOTAutograd's wrappers."""

from __future__ import annotations

from .build import build
from .emit import emit
from .module import GuardFailure

__all__ = ["GuardFailure", "build", "emit"]
