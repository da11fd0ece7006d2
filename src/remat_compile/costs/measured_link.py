"""The link between an accelerator and its host, measured with pinned buffers."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from ..ir.program import Target

_BLOCK_BYTES = 1 << 26
"""A copy of 64 MiB takes milliseconds, beside which its start is nothing."""

_SMALL_BYTES = 1 << 12
_SMALL_COPIES = 64
_ROUNDS = 5


def with_measured_link(target: Target, device: torch.device) -> Target:
    """The target with the link of a device, which is measured once per process: some tenths of a
    second. As it is where the memory for that (128 MiB on each side, pinned on the host) is not to
    be had."""
    try:
        return target.with_link(*_measured(device))
    except RuntimeError:  # of which running out of memory is one
        return target


@lru_cache
def _measured(device: torch.device) -> tuple[int, int, int, int, int]:
    """Bytes per second to the host, back, and of both ways together; nanoseconds that each of many
    small copies in a row takes, and for which the compute stream is given nothing else while one
    is issued and waited for."""
    here = [torch.empty(_BLOCK_BYTES, dtype=torch.uint8, device=device) for _ in range(2)]
    there = [torch.empty(_BLOCK_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    out, back = torch.Stream(device), torch.Stream(device)
    small = [t[:_SMALL_BYTES] for t in (here[0], there[0])]

    def copy(stream: torch.Stream, target: Tensor, source: Tensor, times: int = 1) -> None:
        with stream:
            for _ in range(times):
                target.copy_(source, non_blocking=True)

    def d2h() -> None:
        copy(out, there[0], here[0])

    def h2d() -> None:
        copy(back, here[1], there[1])

    def both() -> None:
        d2h()
        h2d()

    out_s, back_s, both_s = (_least_s(run, device) for run in (d2h, h2d, both))
    small_s = _least_s(lambda: copy(out, small[1], small[0], _SMALL_COPIES), device)
    issue_s = _issue_s(small[1], small[0], out, device)
    rates = round(_BLOCK_BYTES / out_s), round(_BLOCK_BYTES / back_s)
    together = min(max(round(2 * _BLOCK_BYTES / both_s), *rates), sum(rates))
    return *rates, together, round(small_s / _SMALL_COPIES * 1e9), round(issue_s * 1e9)


def _issue_s(target: Tensor, source: Tensor, stream: torch.Stream, device: torch.device) -> float:
    """Seconds in which one copy is issued and waited for, by the calls that the engine of an
    accelerator makes; without those of its bookkeeping, so a little less than a step takes."""
    compute = torch.accelerator.current_stream(device)
    everything = source.untyped_storage()

    def issued() -> None:
        for _ in range(_SMALL_COPIES):
            ready, ended = torch.Event(device), torch.Event(device)
            whole = torch.empty(0, dtype=torch.uint8, device=device)
            whole.set_(everything, 0, (everything.nbytes(),), (1,))
            ready.record(compute)
            stream.wait_event(ready)
            with stream:
                target.copy_(whole[: target.numel()], non_blocking=True)
            ended.record(stream)
            compute.wait_event(ended)

    return _least_s(issued, device, until_done=False) / _SMALL_COPIES


def _least_s(run: Callable[[], None], device: torch.device, *, until_done: bool = True) -> float:
    """The least of several times, as whatever else the machine does adds; the first, in which
    memory is touched, is left out. Until the device has done what it was given, or only until it
    was given that."""
    times = []
    for _ in range(1 + _ROUNDS):
        torch.accelerator.synchronize(device)
        start = time.perf_counter()
        run()
        if until_done:
            torch.accelerator.synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])
