"""The choice of a copy engine for a device."""

from __future__ import annotations

import torch

from ....ir.diagnostics import fail
from .accelerator import AcceleratorEngine
from .cpu import ThreadEngine
from .engine import CopyEngine


def engine_for(device: torch.device) -> CopyEngine:
    """FB0912 for a device of which PyTorch has no streams here."""
    if device.type == "cpu":
        return ThreadEngine()
    here = torch.accelerator.current_accelerator()
    if here is None or here.type != device.type or device.type == "mps":
        fail(
            "FB0912",
            f"this plan copies to the host, and PyTorch has no streams on {device.type} here",
            hint="plan without offloading, or run it on the CPU or an accelerator that is there",
        )
    return AcceleratorEngine(device)
