"""`remat-compile planners` and `devices`: what can plan, and what a plan can be made for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..plans.messages.table import columns
from .shared.terminal import FormatOption, echo, print_object

if TYPE_CHECKING:
    from ..planners.registry import PlannerInfo

WIDTH = 96


def planners(format: FormatOption = "text") -> None:
    """List the planners: what graphs they take, their source, their options and defaults."""
    from ..ir.diagnostics import FBError
    from ..planners.registry import available

    broken: list[FBError] = []
    known: list[dict[str, object]] = []
    for name, info in available().items():
        try:
            if format == "text":
                echo(*_entry(name, info))
            known.append(_object(name, info))
        except FBError as error:
            broken.append(error)
    if format == "json":
        print_object("planners", planners=known)
    if broken:
        raise FBError(d for error in broken for d in error.diagnostics)


def _entry(name: str, info: PlannerInfo) -> list[str]:
    """The planner as `--planner` takes it, and what to know about it, indented."""
    from textwrap import wrap

    planner = info.load()
    facts = [f"Takes: {getattr(planner, 'applicability', 'not said')}."]
    if source := getattr(planner, "source", ""):
        facts.append(f"Source: {source}.")
    if info.package != "remat-compile":
        facts.append(f"Of package {info.package}.")
    lines = [f"{_first_sentence(info)}.", " ".join(facts)]
    indented = [f"    {part}" for line in lines for part in wrap(line, WIDTH - 4)]
    return [_form(name, info), *indented, ""]


def _object(name: str, info: PlannerInfo) -> dict[str, object]:
    planner = info.load()
    return {
        "name": name,
        "form": _form(name, info),
        "summary": _first_sentence(info),
        "takes": getattr(planner, "applicability", None),
        "source": getattr(planner, "source", None) or None,
        "package": info.package,
    }


def _form(name: str, info: PlannerInfo) -> str:
    """The planner with its options at their defaults, as `--planner` takes it."""
    from dataclasses import MISSING, fields
    from typing import Any

    from ..planners.registry import format_option
    from ..planners.spelling.options import default_of

    planner: Any = info.load()
    values = {f.name: default_of(f) for f in fields(planner)}
    shown = [f"{k}={'...' if v is MISSING else format_option(v)}" for k, v in values.items()]
    return f"{name}{{{', '.join(shown)}}}" if shown else name


def _first_sentence(info: PlannerInfo) -> str:
    paragraph = (info.load().__doc__ or "").strip().partition("\n\n")[0]
    # A full stop before a capital: "Chen et al. 2016" goes on.
    return re.split(r"\.\s+(?=[A-Z`])", " ".join(paragraph.split()))[0].rstrip(".")


def devices(format: FormatOption = "text") -> None:
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
