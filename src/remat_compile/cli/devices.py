"""`remat-compile devices`: what a plan can be made for."""

from __future__ import annotations

from ..plans.messages.table import columns
from .shared.terminal import FormatOption, echo, print_object


def command(format: FormatOption = "text") -> None:
    """List the devices that a plan can be made for (--costs roofline --device NAME)."""
    from ..costs import device_names, load_device
    from ..ir.units import format_bytes

    if format == "json":
        print_object("devices", devices=[load_device(name) for name in device_names()])
        return
    rows = [("device", "memory", "float32", "bandwidth")]
    for name in device_names():
        device = load_device(name)
        flops = f"{device.peak_flops_per_s('f32') / 1e12:.3g} TFLOP/s"
        bandwidth = f"{device.memory_bytes_per_s / 1e9:.4g} GB/s"
        rows.append((name, format_bytes(device.memory_bytes), flops, bandwidth))
    echo(*columns(rows))
