"""What is particular to kernels for CUDA, as far as it shows without one. (tests/gpu runs them.)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from remat_compile.backends.torch.kernels import InductorPrice, Kernel, Kernels, made
from remat_compile.backends.torch.kernels import price as price_module
from remat_compile.backends.torch.kernels.inductor import Compiling, Layout
from remat_compile.ir.graph import Call, CNode, InnerCall, Ref

CPU = torch.device("cpu")
REGION = CNode(
    "F1_F2",
    "fwd",
    ("y",),
    Call(
        "fused",
        (Ref("x"),),
        region=(
            InnerCall(("s",), Call("aten.sin.default", (Ref("x"),))),
            InnerCall(("y",), Call("aten.neg.default", (Ref("s"),))),
        ),
    ),
    time_ns=10**6,
)
X = torch.randn(64, 32)


def by_hand(args: list[Tensor]) -> Sequence[Tensor]:
    """As Inductor's code: it takes another layout than that which it asserts for an error."""
    (x,) = args
    assert tuple(x.shape) == (64, 32)
    assert x.stride() == (32, 1)
    return (-torch.sin(x),)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    """Kernels without a compiler."""
    monkeypatch.setattr(made, "compile_traced", lambda _: Compiling(by_hand))
    return Kernels(CPU)


def test_what_begins_elsewhere_runs_by_the_calls(kernels: Kernels) -> None:
    """Code for CUDA would copy it: to where no plan has bytes for it."""
    kernel = kernels.kernel(REGION, [X])
    assert isinstance(kernel, Kernel)
    assert kernel.aligned_bytes == 1  # on the CPU any tensor will do
    asked: list[Tensor] = []

    def noted(args: list[Tensor]) -> Sequence[Tensor]:
        asked.extend(args)
        return by_hand(args)

    kernel = replace(kernel, aligned_bytes=16, compiled=noted)
    flat = torch.empty(64 * 32 + 8)
    first = -(flat.data_ptr() // 4) % 4  # elements until a multiple of 16 bytes
    there = flat[first:][: 64 * 32].view(64, 32).copy_(X)
    for run in (kernel, kernel.runner()):
        assert torch.equal(run(there)[0], -torch.sin(X))
    assert len(asked) == 2
    elsewhere = flat[first + 1 :][: 64 * 32].view(64, 32).copy_(X)
    with pytest.warns(UserWarning, match=r"FB0915.*begins at no multiple of 16 bytes") as said:
        results = [run(elsewhere)[0] for run in (kernel, kernel.runner(), kernel)]
    assert all(torch.equal(result, -torch.sin(X)) for result in results)
    assert len(said) == 1
    assert len(asked) == 2


def test_what_fails_at_its_first_use_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton compiles its launcher there."""

    def fails(_: list[Tensor]) -> Sequence[Tensor]:
        raise RuntimeError("Failed to find C compiler\nand more")

    monkeypatch.setattr(made, "compile_traced", lambda _: Compiling(fails))
    kernels = Kernels(CPU)
    assert kernels.kernel(REGION, [X]) is None
    assert kernels.failures == ["F1_F2: RuntimeError: Failed to find C compiler"]


def test_where_memory_is_short_there_is_no_kernel(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Layout) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(made, "made_up", full)
    assert kernels.kernel(REGION, [X]) is None
    assert kernels.failures == ["F1_F2: the device has no memory left to try a kernel"]
    other = Kernels(CPU)
    price = InductorPrice(other, {"x": X}, 3600.0)
    monkeypatch.undo()
    monkeypatch.setattr(made, "compile_traced", lambda _: Compiling(by_hand))
    monkeypatch.setattr(price_module, "made_up", full)
    for _ in range(2):  # not tried again
        assert price.cost(REGION) is None
    assert other.failures == ["F1_F2: the device has no memory left to try a kernel"]


def test_a_queue_is_timed_by_the_run(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an accelerator, by a clock on which each run takes 10 us: two calls take two such."""
    now = [0]

    class Clock:
        perf_counter_ns = staticmethod(lambda: now[0])

    monkeypatch.setattr("remat_compile.device.devices.time", Clock)
    runs: list[None] = []

    def run(*_: Any, **__: Any) -> None:
        now[0] += 10_000
        runs.append(None)

    assert price_module.queued_ns(run, CPU) == 10_000
    assert len(runs) == 1 + 5 * 32
    monkeypatch.setattr(price_module, "counts_bytes", lambda _: True)
    monkeypatch.setattr(price_module, "queued_ns", lambda *_: 10_000)
    cost = InductorPrice(kernels, {"x": X}, 3600.0).cost(REGION)
    assert cost is not None
    assert cost.time_ns == 10**6 // 2


def test_the_generator_of_the_user_is_left_alone(kernels: Kernels) -> None:
    before = torch.get_rng_state()
    assert InductorPrice(kernels, {"x": X}, 3600.0).cost(REGION) is not None
    assert torch.equal(torch.get_rng_state(), before)
    one, other = (made.made_up(Layout.of(X)) for _ in range(2))
    assert not torch.equal(one, other)


def test_bytes_are_counted_as_the_allocator_does() -> None:
    assert made.allocation_unit(torch.device("cuda", 0)) == 512
    assert made.allocation_unit(CPU) == 1
