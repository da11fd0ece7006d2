"""Kernels for regions: what Inductor makes of them, checked and measured."""

from .inductor import missing
from .made import Kernel, Kernels, make_kernels
from .price import InductorPrice

__all__ = ["InductorPrice", "Kernel", "Kernels", "make_kernels", "missing"]
