"""The choice of a recorder for a step and a device."""

from __future__ import annotations

import torch

from ....capture.lowered import Lowered
from ....ir.diagnostics import Diagnostic, FBError
from .cuda import CudaRecorder
from .recorder import GraphRecorder


def check_graphs(device: torch.device, *, is_dynamic: bool) -> None:
    """FB0967 where there are no graphs of the device, or sizes change from call to call."""
    if device.type != "cuda":
        _refuse(f"the model lies on {device}", "move the model to a CUDA device first")
    if is_dynamic:
        _refuse(
            "sizes are dynamic",
            'capture without dynamic_shapes; on_change="replan" serves other shapes',
        )


def recorder_for(lowered: Lowered) -> GraphRecorder:
    """A recorder of the step of a model; raises as `check_graphs`."""
    device = lowered.exported.device
    check_graphs(device, is_dynamic=bool(lowered.program.symbols))
    return CudaRecorder(device)


def _refuse(why: str, way_out: str) -> None:
    message = f"cuda_graph=True: {why}, and CUDA graphs are for fixed sizes on a CUDA device"
    hint = f"{way_out}, or leave out cuda_graph=True"
    raise FBError(Diagnostic("FB0967", message, hint=hint), usage=True)
