"""`remat-compile devices`: what a plan can be made for."""

from __future__ import annotations

__all__ = ["command"]


def command() -> None:
    """List the devices that a plan can be made for (--costs roofline --device NAME)."""
    from .._budget import format_bytes
    from .._table import columns
    from ..costs import device_names, load_device

    rows = [("device", "memory", "float32", "memory bandwidth")]
    for name in device_names():
        device = load_device(name)
        memory = "" if device.memory_bytes is None else format_bytes(device.memory_bytes)
        rows.append((name, memory, "", ""))
    print("\n".join(columns(rows)))
