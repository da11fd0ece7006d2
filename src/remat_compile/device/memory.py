"""Exact peaks of allocated memory, of a whole run and of marked regions of it.

On the CPU the profiler reports each allocation and free of a tensor's storage, also
those inside operators (measured: PyTorch 2.13 reports scalars that are wrapped, copies
that oneDNN makes, and buffers that an operator keeps). On an accelerator the allocator's
own counters are exact. Storage that was allocated before the measurement began is not
seen when it is freed on the CPU: start before whatever the run frees.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.autograd.profiler import profile, record_function

from ..ir.collector import collector_paused
from ..ir.diagnostics import fail
from .devices import counts_bytes, synchronize

T = TypeVar("T")

Mark = Callable[[str], AbstractContextManager[None]]
"""Opens a region under a name."""

_PREFIX = "remat_compile region "  # which is no name of an operator, as those of codecs are
_KINETO_SILENT = "99"


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes over what was allocated at entry: the most at any time, and at the end.

    `allocations` counts the allocations (0 on an accelerator, where only the counters are read).
    """

    peak_bytes_over_entry: int
    end_bytes_over_entry: int
    allocations: int = 0


def measure_peak(fn: Callable[[], T], device: torch.device | None = None) -> tuple[T, MemoryUse]:
    """Runs `fn` once; its result, and the memory it took on `device` (the CPU by default).

    Raises FBError FB0903 inside another profile. About 1 ms on top of the run.
    """
    with _recording(device) as recorder, recorder.region(""):
        result = fn()
    return result, recorder.uses()[""]


def free_memory(device: torch.device) -> tuple[int, int]:
    """Bytes that tensors can still take on an accelerator, those that PyTorch's allocator has
    cached among them, and all that it has."""
    free, total = torch.accelerator.get_memory_info(device)
    reserved = torch.accelerator.memory_reserved(device)
    return free + reserved - torch.accelerator.memory_allocated(device), total


def measure_regions(
    fn: Callable[[Mark], T], device: torch.device | None = None
) -> tuple[T, dict[str, MemoryUse]]:
    """Runs `fn(mark)` once; its result, and the memory of each region `with mark(name):`.

    One profile serves all regions; on the CPU they may nest (on an accelerator they may not). The
    last one counts where a name returns. Raises FBError FB0903 inside another profile.
    """
    with _recording(device) as recorder:
        result = fn(recorder.region)
    return result, recorder.uses()


class _CpuRecorder:
    """Regions as `record_function` marks on the timeline of allocation events."""

    def __init__(self) -> None:
        self._roots: list[Any] = []

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        with record_function(_PREFIX + name):
            yield

    @contextmanager
    def running(self) -> Iterator[None]:
        if torch._C._autograd._profiler_enabled():
            fail(
                "FB0903",
                "memory cannot be measured while a torch profiler is running",
                hint="leave the surrounding profiler first",
            )
        profiler = profile(use_cpu=True, profile_memory=True)
        with collector_paused():  # it may free older tensors in the middle of a run
            with _quiet_kineto():
                profiler.__enter__()  # type: ignore[no-untyped-call]
            try:
                yield
            finally:
                with _quiet_kineto():
                    profiler.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        if profiler.kineto_results is not None:
            self._roots = profiler.kineto_results.experimental_event_tree()

    def uses(self) -> dict[str, MemoryUse]:
        return _attribute(_timeline(self._roots))


class _AcceleratorRecorder:
    """Regions by resetting and reading the caching allocator's counters."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._uses: dict[str, MemoryUse] = {}

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        synchronize(self._device)
        torch.accelerator.reset_peak_memory_stats(self._device)
        entry = torch.accelerator.memory_allocated(self._device)
        yield
        synchronize(self._device)
        self._uses[name] = MemoryUse(
            torch.accelerator.max_memory_allocated(self._device) - entry,
            torch.accelerator.memory_allocated(self._device) - entry,
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        yield

    def uses(self) -> dict[str, MemoryUse]:
        return self._uses


@contextmanager
def _recording(device: torch.device | None) -> Iterator[_CpuRecorder | _AcceleratorRecorder]:
    counts = device is not None and counts_bytes(device)
    recorder = _AcceleratorRecorder(device) if counts and device else _CpuRecorder()
    with recorder.running():
        yield recorder


@contextmanager
def _quiet_kineto() -> Iterator[None]:
    """Keeps Kineto from writing a line to stderr at each start and stop."""
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["KINETO_LOG_LEVEL"] = _KINETO_SILENT
    try:
        yield
    finally:
        del os.environ["KINETO_LOG_LEVEL"]


_Event = tuple[int, int, str, int]
"""Time in ns, order among equal times, region name, bytes (0 for an edge of a region)."""

_OPEN, _CHANGE, _CLOSE = 0, 1, 2


def _timeline(roots: list[Any]) -> list[_Event]:
    """Allocations of all threads and edges of regions, in order of time."""
    events: list[_Event] = []
    stack = list(roots)
    while stack:
        event = stack.pop()
        stack.extend(event.children)
        if event.tag == torch._C._profiler._EventType.Allocation:
            fields = event.extra_fields
            if fields.device.type == "cpu":
                events.append((event.start_time_ns, _CHANGE, "", fields.alloc_size))
        elif event.name.startswith(_PREFIX):
            name = event.name.removeprefix(_PREFIX)
            events.append((event.start_time_ns, _OPEN, name, 0))
            events.append((event.end_time_ns, _CLOSE, name, 0))
    events.sort(key=lambda event: event[:2])
    return events


def _attribute(events: list[_Event]) -> dict[str, MemoryUse]:
    """The memory of each region; linear in events times the depth of nesting."""
    now = 0
    entry: dict[str, int] = {}
    peak: dict[str, int] = {}
    count: dict[str, int] = {}
    uses: dict[str, MemoryUse] = {}
    for _, what, name, size in events:
        if what == _OPEN:
            entry[name] = peak[name] = now
            count[name] = 0
        elif what == _CLOSE:
            uses[name] = MemoryUse(peak.pop(name) - entry[name], now - entry.pop(name), count[name])
        else:
            now += size
            for open_name, highest in peak.items():
                peak[open_name] = max(highest, now)
                count[open_name] += size > 0
    return uses
