"""Fusion: runs of computations of a plan become one cNode each, with a region of calls."""

from .fold import folded
from .gather import gathered
from .price import Price, Priced
from .recomputed import recomputation_shares
from .runs import Fused, Fusing, fuse_runs
from .unroll import unrolled
from .walk import peaks_of

__all__ = [
    "Fused",
    "Fusing",
    "Price",
    "Priced",
    "folded",
    "fuse_runs",
    "gathered",
    "peaks_of",
    "recomputation_shares",
    "unrolled",
]
