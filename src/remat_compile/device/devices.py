"""Differences between kinds of devices: to wait for them, their bytes, their generators."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

_WITH_GENERATORS = ("cuda", "mps", "mtia", "xpu")
_FINE_S = 1e-6
"""A clock that counts more coarsely than this times no operator."""
_TURN_NS = 500_000
"""Less than a thread waits for its turn on a processor."""
_LONG_NS = 100_000_000
"""Turns are short beside this."""
_ALONE_REPEATS = 5
_QUEUES = 6
_MOST_QUEUED = 32
_QUEUE_NS = 2_000_000
"""Length of a queue of runs, so that waiting for its end does not count."""
_NO_SLOWER = 1.2
"""Several threads take no longer than this share of what one takes, where each has a processor."""


def queue_length(least_ns: int) -> int:
    """Return the number of runs of so many nanoseconds that an accelerator's queue takes to be
    timed."""
    return min(_MOST_QUEUED, max(1, _QUEUE_NS // max(1, least_ns)))


def queued_ns(run: Callable[[], object], device: torch.device) -> int:
    """Return the time of one of several runs in an accelerator's queue: the longer of issuing and
    computing it. The least of a few queues, the first of one run."""
    times: list[int] = []
    queued = 1
    for _ in range(_QUEUES):
        synchronize(device)
        start = time.perf_counter_ns()
        for _ in range(queued):
            run()
        synchronize(device)
        times.append((time.perf_counter_ns() - start) // queued)
        queued = queue_length(min(times))
    return max(1, min(times))


def counts_bytes(device: torch.device) -> bool:
    """Return whether `torch.accelerator` tells the bytes that are allocated there."""
    return device.type not in ("cpu", "meta", "mps")


def allocation_unit(device: torch.device) -> int:
    """The bytes in whose multiples its allocator counts."""
    return 512 if device.type == "cuda" else 1


def synchronize(device: torch.device) -> None:
    """Returns when all that the device was given is done."""
    if counts_bytes(device):
        torch.accelerator.synchronize(device)


def clock_ns(device: torch.device) -> Callable[[], int]:
    """The clock to time operators of the device by, in nanoseconds.

    Where all of an operator runs on the thread that calls it (on the CPU, with one thread) that
    thread's processor time: other programs do not stretch it. Else the time that passes.
    """
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    if alone and time.get_clock_info("thread_time").resolution <= _FINE_S:
        return time.thread_time_ns
    return time.perf_counter_ns


def undisturbed_ns(
    least_ns: int,
    run: Callable[[], object],
    device: torch.device,
    clock: Callable[[], int] | None = None,
    leave: Callable[[], None] | None = None,
) -> int:
    """Return the time of `run`, measured as `least_ns`, where other programs leave it its
    processors; each time after `leave`.

    On the CPU with several threads, one that waits for its turn holds up the others, for
    milliseconds and in every run: a kernel of 0.1 ms was measured as 8 ms, thirty times in a row.
    Where several threads are slower than one, the time is that of one, divided among them. One
    thread has a clock that others do not stretch (`clock_ns`).
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1 or least_ns < _TURN_NS:
        return least_ns
    torch.set_num_threads(1)
    try:
        clock = clock_ns(device) if clock is None else clock
        times: list[int] = []
        for _ in range(_ALONE_REPEATS if least_ns < _LONG_NS else 1):
            if leave is not None:
                leave()
            start = clock()
            run()
            times.append(clock() - start)
    finally:
        torch.set_num_threads(threads)
    alone_ns = min(times)
    return least_ns if least_ns <= _NO_SLOWER * alone_ns else max(1, alone_ns // threads)


def generator_module(device: str) -> str:
    """Return the module with `get_rng_state` and `set_rng_state` for a device, as code names it."""
    kind = device.split(":")[0]
    own = (*_WITH_GENERATORS, torch._C._get_privateuse1_backend_name())
    return f"torch.{kind}" if kind in own else "torch"


def get_rng_state(device: torch.device) -> Tensor:
    """The state of the device's default generator, as a CPU tensor of bytes."""
    if generator_module(device.type) == "torch":
        return torch.get_rng_state()
    state: Tensor = torch.get_device_module(device).get_rng_state()
    return state


def set_rng_state(state: Tensor, device: torch.device) -> None:
    """Inverse of `get_rng_state`."""
    if generator_module(device.type) == "torch":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state)


def forked_generators() -> AbstractContextManager[None]:
    """Random states of the CPU and of every accelerator are, at the end, as they were."""
    here = torch.accelerator.current_accelerator()
    if here is None or not counts_bytes(here):
        return torch.random.fork_rng(devices=[])
    count = torch.accelerator.device_count()
    return torch.random.fork_rng(devices=range(count), device_type=here.type)
