"""PyTorch frontend: a module or `.pt2` file -> joint graph -> FB-Graph."""

from __future__ import annotations

from ..lowered import Exported, Lowered
from ..output_spec import Wanted
from ..trace.kernel_strides import kernel_orders, laid_out_by_kernels
from .export import export, load_pt2
from .lower import lower
from .region import RegionCall, region_of, sources_of
from .trust import check_against_eager, ensure_trusted

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
