"""PyTorch frontend: a module or `.pt2` file -> joint graph -> FB-Graph."""

from __future__ import annotations

from .export import export, load_pt2
from .lower import lower

__all__ = ["export", "load_pt2", "lower"]
