"""Effects of operators, in one place for the reader, the verifier, fusion and every backend."""

from .table import PURE, Effects, effects

__all__ = ["PURE", "Effects", "effects"]
