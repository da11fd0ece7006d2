"""Refusals of calls that a plan was not made for, before anything runs: at a call, and where a
backward begins.

A backward under other settings than those of the capture is no error in eager, which runs other
operators and kernels then, and in that the bits of others: a derivative may choose its operators by
them, and so does what the plan computes a second time. The operators here are those of the capture.
"""

from __future__ import annotations

import torch

from ....capture.lowered import Exported
from ....ir.diagnostics import Diagnostic, FBError


class GuardFailure(FBError):
    """A call that the plan was not made for (FB0910): other shapes, dtypes, modes or numbers."""


class BackwardGuards:
    """Guards of a backward, whose forward was looked at. `name` is that of a region."""

    def __init__(self, exported: Exported, name: str = "") -> None:
        self._settings = exported.settings
        self._device_type = exported.device.type
        self._place = f"backward() of {name}" if name else "backward()"

    def check(self) -> None:
        """FB0910 under autocast, or under settings that are not those of the capture."""
        if torch.is_autocast_enabled(self._device_type):
            message = f"{self._place} is called inside torch.autocast; the plan's runs outside"
            hint = "end the block after the forward and the loss, as PyTorch asks"
            raise GuardFailure(Diagnostic("FB0910", message, hint=hint))
        if changes := [*self._settings.changes()]:
            message = f"where {self._place} begins, {'; '.join(changes)}"
            hint = "call it under the settings of the forward, or compile again under these"
            raise GuardFailure(Diagnostic("FB0910", message, hint=hint))
