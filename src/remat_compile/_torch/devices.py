"""What differs between kinds of devices: to wait for them, their bytes, their generators."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

__all__ = [
    "clock_ns",
    "counts_bytes",
    "forked_generators",
    "generator_module",
    "get_rng_state",
    "set_rng_state",
    "synchronize",
]

_WITH_GENERATORS = ("cuda", "mps", "mtia", "xpu")
_FINE_S = 1e-6
"""A clock that counts more coarsely than this times no operator."""


def counts_bytes(device: torch.device) -> bool:
    """Whether `torch.accelerator` tells the bytes that are allocated there."""
    return device.type not in ("cpu", "meta", "mps")


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


def generator_module(device: str) -> str:
    """What has `get_rng_state` and `set_rng_state` for a device, as code names it."""
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
