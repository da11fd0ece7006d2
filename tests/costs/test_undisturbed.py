"""Times of operators that run in several threads, on a machine that does more."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import pytest
import torch

devices = import_module("remat_compile.device.devices")
CPU = torch.device("cpu")
MS = 1_000_000


class Kernel:
    """Takes `alone_ns` on one thread, `spread_ns` on several; one run in `every` is held up."""

    def __init__(self, alone_ns: int, spread_ns: int, every: int = 0) -> None:
        self.now_ns = self.runs = 0
        self.alone_ns, self.spread_ns, self.every = alone_ns, spread_ns, every

    def __call__(self) -> None:
        self.runs += 1
        self.now_ns += self.alone_ns if torch.get_num_threads() == 1 else self.spread_ns
        if self.every and self.runs % self.every == 1:
            self.now_ns += 8 * MS

    def undisturbed_ns(self, least_ns: int, device: torch.device = CPU) -> int:
        made: int = devices.undisturbed_ns(least_ns, self, device, lambda: self.now_ns)
        return made


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2, "as it was"
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("alone", "spread", "every"), [(1, 16, 0), (6, 9, 0), (1, 16, 2)])
def test_threads_that_wait_for_each_other_do_not_count(alone: int, spread: int, every: int) -> None:
    """Nor does waiting for a part of the time, nor a run that is held up alone."""
    kernel = Kernel(alone * MS, spread * MS, every)
    assert kernel.undisturbed_ns(spread * MS) == alone * MS // 2


@pytest.mark.parametrize("alone_ns", [8 * MS, 10 * MS, 11 * MS, 20 * MS])
def test_what_is_as_fast_as_alone_is_as_measured(alone_ns: int) -> None:
    assert Kernel(alone_ns, 9 * MS).undisturbed_ns(9 * MS) == 9 * MS


def test_what_is_done_before_each_run_does_not_count() -> None:
    kernel = Kernel(1 * MS, 16 * MS)

    def leave() -> None:
        kernel.now_ns += 100 * MS

    clock = lambda: kernel.now_ns  # noqa: E731
    assert devices.undisturbed_ns(16 * MS, kernel, CPU, clock, leave) == MS // 2


def test_what_is_short_is_not_run_again() -> None:
    kernel = Kernel(100, 1)
    assert kernel.undisturbed_ns(400_000) == 400_000
    assert kernel.runs == 0


def test_what_is_long_is_run_once_more() -> None:
    kernel = Kernel(900 * MS, 500 * MS)
    assert kernel.undisturbed_ns(500 * MS) == 500 * MS
    assert kernel.runs == 1


def test_one_thread_and_other_devices_are_as_measured() -> None:
    kernel = Kernel(1 * MS, 16 * MS)
    assert kernel.undisturbed_ns(16 * MS, torch.device("cuda")) == 16 * MS
    torch.set_num_threads(1)
    assert kernel.undisturbed_ns(16 * MS) == 16 * MS
    torch.set_num_threads(2)
    assert kernel.runs == 0


def test_an_error_leaves_the_threads_as_they_were() -> None:
    def fails() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        devices.undisturbed_ns(9 * MS, fails, CPU)
