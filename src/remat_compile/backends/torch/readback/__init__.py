"""Generated PyTorch code, read back and held against the schedule."""

from .ends import Carried
from .module import check_source

__all__ = ["Carried", "check_source"]
