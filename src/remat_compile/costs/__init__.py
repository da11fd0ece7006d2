"""Costs of computations: measured on this device, or by roofline for another.

`measured` and `roofline` are loaded when they are first used; only `measured` needs torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .device import Device, device_names, load_device

if TYPE_CHECKING:
    from ._measured import measured
    from ._roofline import roofline

__all__ = ["Device", "device_names", "load_device", "measured", "roofline"]


def __getattr__(name: str) -> Any:
    if name == "measured":
        from ._measured import measured

        return measured
    if name == "roofline":
        from ._roofline import roofline

        return roofline
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
