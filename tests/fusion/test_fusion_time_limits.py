"""What looks for a better order, and what compiles kernels, ends at its time limit: the clock moves
on with what is tried, and that is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from helpers.clock import HANGS_S, skips
from helpers.planners.graphs import transformer
from remat_compile.backends.torch.kernels import Kernels, price
from remat_compile.fusion import fold, folded, gather, gathered
from remat_compile.ir.analysis.order import capture_order, frees_after_last_use
from remat_compile.ir.graph import Call, CNode, Ref
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.text.parser import parse_program
from remat_compile.plans.fusion import kernels as regions

UNIT_S = 10 * HANGS_S
"""A limit is 100 of them, and each try takes 40: nothing that really passes counts."""


@pytest.mark.parametrize("units", [0, 40])
@pytest.mark.parametrize("way", ["gathered", "folded"])
def test_nothing_is_tried_past_the_limit(
    way: str, units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = transformer(4)
    steps = frees_after_last_use(program.graph, capture_order(program.graph))
    schedule = Schedule("captured", "", steps)
    skip, tries = skips(monkeypatch), list[object]()

    def moved(*_: object) -> bool:
        tries.append(_)
        skip(units * UNIT_S)
        return False

    def cuts(*_: object) -> Iterator[object]:
        moved()
        yield from ()

    monkeypatch.setattr(gather, "is_within", moved)
    monkeypatch.setattr(fold._Fold, "cuts", cuts)
    run: Callable[..., Schedule] = gathered if way == "gathered" else folded
    until = monotonic() + 100 * UNIT_S
    options = {"until": until} if way == "folded" else {"until": until, "peaks": (1 << 50, 1 << 50)}
    run(program, schedule, lambda c: c.name[-1] in "02468", **options)
    assert len(tries) == 3 if units else len(tries) > 3


def test_no_kernel_is_made_past_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling each takes 40 of 100 units: the third is the last."""
    skip, made = skips(monkeypatch), list[str]()

    def kernel(c: CNode, tensors: object) -> object:
        made.append(c.name)
        skip(40 * UNIT_S)
        return SimpleNamespace(workspace_bytes=0, of=c.name)

    monkeypatch.setattr(price, "_measured", lambda *_: price.KernelTimes(1, 1))
    cpu = torch.device("cpu")
    nothing: Any = {"wait": lambda: None, "known": lambda *_: None, "begin": lambda *_: None}
    named: Any = {"text": lambda c, _: c.name}
    kernels: Any = SimpleNamespace(kernel=kernel, device=cpu, compiling=0, **nothing, **named)
    prices = price.InductorPrice(kernels, {"x": torch.ones(1)}, 100 * UNIT_S)
    calls = [CNode(f"F{i}", "fwd", (f"y{i}",), Call("ns.f", (Ref("x"),))) for i in range(6)]
    costs = [prices.cost(c) for c in calls]
    assert [cost is not None for cost in costs] == [True] * 3 + [False] * 3
    assert made == ["F0", "F1", "F2"]
    assert prices.is_late


class Compilers:
    """Kernels that take no time to begin, and `each_s` each to wait for."""

    device = torch.device("cpu")

    def __init__(self, skip: Callable[[float], None], each_s: float):
        self.skip, self.each_s = skip, each_s
        self.begun: list[str] = []
        self.compiling = 0

    def text(self, c: CNode, tensors: object) -> str:
        return c.name

    def known(self, c: CNode, tensors: object) -> None:
        return None

    def begin(self, c: CNode, tensors: object) -> None:
        if c.name not in self.begun:
            self.begun.append(c.name)
            self.compiling += 1

    def wait(self) -> None:
        self.skip(self.compiling * self.each_s)
        self.compiling = 0

    def kernel(self, c: CNode, tensors: object) -> object:
        assert c.name in self.begun
        assert not self.compiling  # nothing is measured meanwhile
        return SimpleNamespace(workspace_bytes=0, of=c.name)


@pytest.mark.parametrize(
    ("units", "priced", "begun", "spent"),
    [(1, 20, 20, 20), (10, 9, 12, 120), (30, 1, 4, 120), (1000, 1, 4, 4000)],
)
def test_the_limit_is_overrun_by_what_is_compiled_at_once_at_most(
    units: int, priced: int, begun: int, spent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All was begun, and the first price waited for it: 1 of 20 was priced after 10 times the
    limit."""
    skip = skips(monkeypatch)
    monkeypatch.setattr(price, "_measured", lambda *_: price.KernelTimes(1, 1))
    monkeypatch.setattr(price, "AT_ONCE", 4)
    kernels: Any = Compilers(skip, units * UNIT_S)
    prices = price.InductorPrice(kernels, {"x": torch.ones(1)}, 100 * UNIT_S)
    calls = [CNode(f"F{i}", "fwd", (f"y{i}",), Call("ns.f", (Ref("x"),))) for i in range(20)]
    prices.prepare(calls)
    assert kernels.begun == ["F0", "F1", "F2", "F3"]
    costs = [prices.cost(c) for c in calls]
    assert [cost is not None for cost in costs] == [True] * priced + [False] * (20 - priced)
    assert len(kernels.begun) == begun
    assert skip.ahead_s == pytest.approx(spent * UNIT_S)
    assert prices.is_late is (spent > 100)


def test_compilers_have_work_while_a_plan_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another is asked for than was prepared first: it is begun beside those. What follows is begun
    when there is something else to do, and what was asked for meanwhile is not begun again."""
    skip = skips(monkeypatch)
    monkeypatch.setattr(price, "_measured", lambda *_: price.KernelTimes(1, 1))
    monkeypatch.setattr(price, "AT_ONCE", 4)
    kernels: Any = Compilers(skip, UNIT_S)
    prices = price.InductorPrice(kernels, {"x": torch.ones(1)}, 100 * UNIT_S)
    calls = [CNode(f"F{i}", "fwd", (f"y{i}",), Call("ns.f", (Ref("x"),))) for i in range(8)]
    prices.prepare(calls)
    assert prices.cost(calls[6]) is not None
    assert kernels.begun == ["F0", "F1", "F2", "F3", "F6"]
    assert kernels.compiling == 0
    prices.begin_more()
    assert kernels.begun == ["F0", "F1", "F2", "F3", "F6", "F4", "F5", "F7"]
    assert kernels.compiling == 3


def test_kernels_of_a_plan_from_a_file_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes 40 of 100 units: the third is the last. What is made already is given all the
    same, and each of the others is told."""
    skip, compiled = skips(monkeypatch), list[object]()

    def make(_: object, key: object, *of: object) -> object:
        compiled.append(key)
        skip(40 * UNIT_S)
        return SimpleNamespace()

    monkeypatch.setattr(Kernels, "_make", make)
    monkeypatch.setattr(regions, "lacking", lambda _: None)
    monkeypatch.setattr(regions, "KERNELS_S", 100 * UNIT_S)
    program = parse_program(FUSED)
    kernels = regions.kernels_here(program)
    assert kernels is not None
    given = [[torch.ones(n)] for n in range(2, 8)]
    (c,) = (c for c in program.graph.cnodes if c.is_fused)
    made = [kernels.kernel(c, args) for args in given]
    assert [kernel is not None for kernel in made] == [True] * 3 + [False] * 3
    assert kernels.kernel(c, given[0]) is made[0]
    assert len(compiled) == 3
    assert kernels.failures == ["F1: the time for kernels is over"] * 3


FUSED = """fbir 1
graph @g {
  %x : input f32[4] bytes 16
  %y : output f32[4] bytes 16
  F1: fwd %y = fused(%x) {
    %h = aten.neg.default(%x)
    %y = aten.tanh.default(%h)
  }
  L: loss loss(%y)
}
bind {
  arg "args[0]" = %x
  result %y
}
"""
