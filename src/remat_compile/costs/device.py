"""Device files: memory, bandwidths and peak rates for a roofline."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ..ir.checks.binding import MOST, MOST_BYTES
from ..ir.diagnostics import Diagnostic, FBError, fail, nearest
from ..ir.graph import DTYPE_BYTES
from ..ir.program import Target
from ..ir.span import Span


@dataclass(frozen=True, slots=True)
class Device:
    """`flops_per_s` is the dense peak by dtype of the IR (`f32`); the other dtypes count as
    the slowest one. Link bandwidths are those to and from pinned host memory; `both` is what the
    two directions move together while both are busy (None: each its own rate). Of `memory_bytes`,
    `library_bytes` are held by the driver's context and libraries (None: not known)."""

    name: str
    memory_bytes: int
    granularity_bytes: int
    memory_bytes_per_s: int
    launch_ns: int
    flops_per_s: Mapping[str, float]
    host_bytes: int | None = None
    d2h_bytes_per_s: int | None = None
    h2d_bytes_per_s: int | None = None
    both_bytes_per_s: int | None = None
    copy_latency_ns: int = 0
    copy_issue_ns: int = 0
    library_bytes: int | None = None

    @property
    def target(self) -> Target:
        """The device as a program's target."""
        return Target(
            self.name,
            self.memory_bytes,
            self.granularity_bytes,
            self.host_bytes,
            self.d2h_bytes_per_s,
            self.h2d_bytes_per_s,
            self.both_bytes_per_s,
            self.copy_latency_ns,
            self.copy_issue_ns,
        )

    def peak_flops_per_s(self, dtype: str) -> float:
        return self.flops_per_s.get(dtype, min(self.flops_per_s.values()))


def device_names() -> tuple[str, ...]:
    """The devices that come with the package, sorted."""
    folder = resources.files(__package__).joinpath("devices")
    names = (entry.name for entry in folder.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def load_device(name_or_path: str) -> Device:
    """A device by name (`h200`) or by the path of a file (`my-gpu.toml`).

    Raises FBError FB0906 for an unknown device, FB0907 with every problem of a file.
    """
    if name_or_path.endswith(".toml") or "/" in name_or_path or "\\" in name_or_path:
        try:
            text = Path(name_or_path).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:  # no text, or a name that no file can have
            reason = getattr(error, "strerror", None) or "not a text file"
            message = f"cannot read device file {name_or_path}: {reason}"
            fail("FB0906", message, usage=True)
        return _parse(text, name_or_path)
    known = device_names()
    if name_or_path not in known:
        message = f'unknown device "{name_or_path}".{nearest(name_or_path, known)}'
        hint = f"known devices: {', '.join(known)}; or give the path of a .toml file"
        fail("FB0906", message, hint=hint, usage=True)
    file = resources.files(__package__).joinpath("devices", f"{name_or_path}.toml")
    return _parse(file.read_text(encoding="utf-8"), f"{name_or_path}.toml")


def library_bytes(name: str) -> int | None:
    """Bytes that driver and libraries hold on a device of ours; None where that is not known."""
    return load_device(name).library_bytes if name in device_names() else None


_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{prefix}i": 2 ** (10 * power) for power, prefix in enumerate("KMGT", start=1)}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?) ?([kMGT]|[KMGT]i)?B(/s)?")


def parse_rate(text: str) -> int | None:
    """Bytes per second of text such as `25GB/s`; None where it is no rate from 1 B/s to those that
    a program may have."""
    match = _QUANTITY.fullmatch(text)
    return _amount(match) if match is not None and match[3] else None


def _amount(match: re.Match[str]) -> int | None:
    """Return the amount of a quantity, None where it is 0 or more than a program may have."""
    value = float(match[1]) * _UNITS[match[2] or ""]
    return round(value) or None if value < MOST_BYTES else None


class _TableReader:
    """Takes typed entries out of a TOML table and collects what is wrong with them."""

    def __init__(self, table: dict[str, Any], file: str):
        self.table = table
        self.file = file
        self.known: list[str] = []
        self.problems: list[Diagnostic] = []

    def report(self, message: str, hint: str | None = None) -> None:
        span = Span(1, 1, 1, self.file)
        self.problems.append(Diagnostic("FB0907", message, span, hint=hint))

    def take(self, key: str, required: bool) -> Any:
        self.known.append(key)
        if key not in self.table and required:
            self.report(f"`{key}` is missing")
        return self.table.get(key)

    def quantity(self, key: str, per_second: bool = False, required: bool = True) -> int | None:
        """Bytes, or bytes per second, of text such as `139GiB` or `4.8TB/s`."""
        value = self.take(key, required)
        if value is None:
            return None
        match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
        amount = None if match is None or bool(match[3]) != per_second else _amount(match)
        if amount is None:
            example = '"4.8TB/s"' if per_second else '"139GiB"'
            self.report(f"`{key}` is {value!r}, not an amount", f"write it like {example}")
        return amount

    def number(
        self, key: str, least: float, required: bool = True, most: float = MOST_BYTES
    ) -> float | None:
        value = self.take(key, required)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
            self.report(f"`{key}` is {value!r}, not a number of at least {least:g}")
            return None
        if not value <= most:  # nor is `nan`
            self.report(f"`{key}` is {value!r}, not a number of at most {most:g}")
            return None
        return float(value)

    def copy_us(self, key: str) -> float:
        """A time of each copy, which a target may have; 0 if left out."""
        return self.number(key, 0, required=False, most=MOST[key.removesuffix("_us")] / 1000) or 0

    def flops(self) -> dict[str, float]:
        table = self.take("flops", True)
        if not isinstance(table, dict) or not table:
            if table is not None:
                self.report("`flops` is not a table of operations per second by dtype")
            return {}
        for dtype, rate in table.items():
            if dtype not in DTYPE_BYTES:
                self.report(f"`flops.{dtype}` is no dtype.{nearest(dtype, DTYPE_BYTES)}")
            elif not isinstance(rate, int | float) or rate is True or not 0 < rate < 1e30:
                self.report(f"`flops.{dtype}` is {rate!r}, not a positive number")
        return {dtype: float(rate) for dtype, rate in table.items() if not self.problems}

    def check_unknown(self) -> None:
        for key in self.table:
            if key not in self.known:
                self.report(f"unknown entry `{key}`.{nearest(key, self.known)}")


def _parse(text: str, file: str) -> Device:
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        place = re.search(r"line (\d+), column (\d+)", str(error))
        line, column = (int(place[1]), int(place[2])) if place else (1, 1)
        span = Span(line, column, column + 1, file)
        fail("FB0907", f"not TOML: {error}", span, usage=True)
    reader = _TableReader(table, file)
    name = reader.take("name", True)
    if name is not None and (not isinstance(name, str) or not name):
        reader.report(f"`name` is {name!r}, not a text")
    granularity = reader.number("granularity", 1) or 0
    device = Device(
        str(name),
        reader.quantity("memory") or 0,
        int(granularity),
        reader.quantity("memory_bandwidth", per_second=True) or 0,
        round(1000 * (reader.number("launch_overhead_us", 0) or 0)),
        reader.flops(),
        reader.quantity("host_memory", required=False),
        d2h := reader.quantity("d2h", per_second=True, required=False),
        h2d := reader.quantity("h2d", per_second=True, required=False),
        both := reader.quantity("both", per_second=True, required=False),
        round(1000 * reader.copy_us("copy_latency_us")),
        round(1000 * reader.copy_us("copy_issue_us")),
        reader.quantity("libraries", required=False),
    )
    reader.check_unknown()
    if granularity != int(granularity):
        reader.report(f"`granularity` is {granularity}, not a whole number of bytes")
    rates = (d2h or 0, h2d or 0)
    if both is not None and not max(rates) <= both <= sum(rates):
        hint = f"the directions alone move {rates[0]} and {rates[1]} B/s: measure with both busy"
        reader.report(f"`both` is {both} B/s, less than one direction or more than two", hint)
    if reader.problems:
        raise FBError(reader.problems, usage=True)
    return device
