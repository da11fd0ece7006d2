"""Generated PyTorch code, read back and held against the schedule."""

from .module import check_source

__all__ = ["check_source"]
