"""Fusion: runs of computations of a plan become one cNode each, with a region of calls."""

from .fold import folded
from .gather import gathered
from .recomputed import recomputation_shares
from .region import Price, Priced
from .runs import Fused, Fusing
from .unroll import unrolled
from .walk import peaks_of

__all__ = [
    "Fused",
    "Fusing",
    "Price",
    "Priced",
    "folded",
    "gathered",
    "peaks_of",
    "recomputation_shares",
    "unrolled",
]
