"""Copies to the host and back, as generated PyTorch code calls them: the state of one call, its
host memory, and the engines that move the bytes."""

from .accelerator import AcceleratorEngine
from .arena import HostLayout, host_layout
from .call import Arena, HostCopies, single_call
from .choice import engine_for
from .cpu import ThreadEngine
from .engine import CopyEngine
from .plan import PlanCopies
from .tickets import Tickets

__all__ = [
    "AcceleratorEngine",
    "Arena",
    "CopyEngine",
    "HostCopies",
    "HostLayout",
    "PlanCopies",
    "ThreadEngine",
    "Tickets",
    "engine_for",
    "host_layout",
    "single_call",
]
