"""Kernels of regions: compiled by Inductor, checked and measured."""

from .inductor import kernel_settings, missing
from .made import Kernel, Kernels
from .of_step import make_kernels
from .price import InductorPrice, KernelTimes

__all__ = [
    "InductorPrice",
    "Kernel",
    "KernelTimes",
    "Kernels",
    "kernel_settings",
    "make_kernels",
    "missing",
]
