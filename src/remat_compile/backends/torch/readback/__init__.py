"""Generated PyTorch code, read back and held against the schedule."""

from .ends import HandedOn
from .module import check_source

__all__ = ["HandedOn", "check_source"]
