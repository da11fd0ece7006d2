"""Operators and kernels are timed with caches as a step leaves them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.programs.hand_built import batch_norm_program, batch_norm_values
from remat_compile.costs import measured, meter
from remat_compile.costs.meter import Meter

caches_module = import_module("remat_compile.device.caches")
StepCaches, cache_bytes = caches_module.StepCaches, caches_module.cache_bytes
CPU = torch.device("cpu")
MB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "most"),
    [
        (("32K\n", "512K\n", "8192K\n"), 8 * MB),
        (("32K\n", "16M\n"), 16 * MB),
        (("1G\n",), 64 * MB),  # many processors share it
        (("", "much\n", "99999999999K\n", "-1K\n"), 32 * MB),
        ((), 32 * MB),
    ],
)
def test_the_largest_cache_counts(sizes: tuple[str, ...], most: int, tmp_path: Path) -> None:
    for index, size in enumerate(sizes):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size)
    assert cache_bytes(tmp_path) == most


def test_a_step_pushes_out_no_more_than_it_touches() -> None:
    assert StepCaches(CPU, 1000, ()).pushed_bytes == 1000
    assert StepCaches(CPU, 1 << 40, ()).pushed_bytes == cache_bytes()
    assert StepCaches(torch.device("cuda"), 1000, ()).pushed_bytes == 0


def test_it_is_as_many_bytes_whatever_the_default_type() -> None:
    caches = StepCaches(CPU, MB, [])
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        caches.leaver({})()
    finally:
        torch.set_default_dtype(before)
    assert caches._pushing.nbytes == caches.pushed_bytes


def test_what_was_made_last_is_at_hand() -> None:
    """What a step makes again is made after all else; what the caller holds is not made."""
    caches = StepCaches(CPU, MB, ("x", "y"))
    w, x, y, again, large = (torch.ones(n) for n in (3, 3, 3, 3, MB))
    assert caches.last({"y": y, "x": x, "w": w}) is y
    assert caches.last({"w": w}) is None
    caches.note(("x.2", "large"))
    assert caches.last({"x.2": again, "y": y}) is again
    assert caches.last({"large": large, "y": y}) is None  # no cache holds it


@pytest.mark.parametrize(
    "last",
    [
        torch.tensor([1.0, float("nan"), -0.0]),
        torch.arange(6).reshape(2, 3).t(),
        torch.ones(3).expand(4, 3),
        torch.tensor([True, False])[1:],
        torch.ones(2, dtype=torch.complex64),
        torch.ones(0),
    ],
    ids=lambda last: f"{last.dtype}{[*last.shape]}",
)
def test_values_stay_as_they_are(last: Tensor) -> None:
    before = last.untyped_storage().tolist()
    StepCaches(CPU, 1000, ("x",)).leaver({"x": last})()
    assert last.untyped_storage().tolist() == before


def test_each_run_is_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "_ENOUGH_S", 1e9)
    monkeypatch.setattr(meter, "_EQUAL", 0.0)
    events: list[str] = []

    def run() -> None:
        events.append("run")

    timed = Meter(CPU, 1, 1e9)
    timed._time_ns(run, lambda: events.append("leave"))
    assert events == ["leave", "run"] * meter._MOST_COLD
    events.clear()
    timed._time_ns(run)
    assert events == ["run"] * meter._MOST_REPEATS


def test_nothing_of_the_callers_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may lie in memory that cannot be."""
    values = batch_norm_values()
    asked: list[Tensor] = []
    last = StepCaches.last

    def noted(self: Any, given: Mapping[str, Tensor]) -> Tensor | None:
        tensor: Tensor | None = last(self, given)
        asked.extend(() if tensor is None else (tensor,))
        return tensor

    monkeypatch.setattr(StepCaches, "last", noted)
    measured(batch_norm_program(), values)
    held = {value.untyped_storage().data_ptr() for value in values.values()}
    assert asked
    assert held.isdisjoint(tensor.untyped_storage().data_ptr() for tensor in asked)


# -- Times of operators that run in several threads, on a machine that does more ------------------

devices = import_module("remat_compile.device.devices")
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
