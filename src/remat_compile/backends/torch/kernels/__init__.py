"""Kernels for regions: what Inductor makes of them, checked and measured."""

from .generated import changed_settings
from .inductor import missing
from .kept import kept_kernels
from .made import Kernel, Kernels
from .of_step import make_kernels
from .price import InductorPrice, KernelTimes
from .probe import begin_probe, end_probe

__all__ = [
    "InductorPrice",
    "Kernel",
    "KernelTimes",
    "Kernels",
    "begin_probe",
    "changed_settings",
    "end_probe",
    "kept_kernels",
    "make_kernels",
    "missing",
]
