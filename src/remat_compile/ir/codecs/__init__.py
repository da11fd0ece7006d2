"""Codecs: operators of the language that make a value smaller, and make it again."""

from __future__ import annotations

from .contract import (
    EXPAND,
    FLOATS,
    INDEX_AXES,
    NAMESPACE,
    SAME_ELEMENTS,
    Codec,
    index_limit,
    is_codec,
)
from .pairs import Pair, pairs, without_codec
from .registry import CODECS, PACKS, READS, UNPACKS

__all__ = [
    "CODECS",
    "EXPAND",
    "FLOATS",
    "INDEX_AXES",
    "NAMESPACE",
    "PACKS",
    "READS",
    "SAME_ELEMENTS",
    "UNPACKS",
    "Codec",
    "Pair",
    "index_limit",
    "is_codec",
    "pairs",
    "without_codec",
]
