"""PyTorch frontend: a module or `.pt2` file -> joint graph -> FB-Graph."""

from __future__ import annotations

from ..._torch.kernel_strides import kernel_orders, laid_out_by_kernels
from ..._torch.lowered import Exported, Lowered
from ..._torch.wanted import Wanted
from .check import check_against_eager, ensure_trusted
from .export import export, load_pt2
from .lower import lower
from .region import RegionCall, region_of, sources_of

__all__ = [
    "Exported",
    "Lowered",
    "RegionCall",
    "Wanted",
    "check_against_eager",
    "ensure_trusted",
    "export",
    "kernel_orders",
    "laid_out_by_kernels",
    "load_pt2",
    "lower",
    "region_of",
    "sources_of",
]
