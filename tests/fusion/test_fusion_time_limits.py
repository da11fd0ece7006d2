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
from remat_compile.backends.torch.kernels import price
from remat_compile.fusion import fold, folded, gather, gathered
from remat_compile.ir.analysis.order import capture_order, frees_after_last_use
from remat_compile.ir.graph import Call, CNode, Ref
from remat_compile.ir.schedule import Schedule

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

    monkeypatch.setattr(gather, "within", moved)
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

    monkeypatch.setattr(price, "_measured", lambda *_: price._Times(1, 1))
    kernels: Any = SimpleNamespace(kernel=kernel, device=torch.device("cpu"))
    prices = price.InductorPrice(kernels, {"x": torch.ones(1)}, 100 * UNIT_S)
    calls = [CNode(f"F{i}", "fwd", (f"y{i}",), Call("ns.f", (Ref("x"),))) for i in range(6)]
    costs = [prices.cost(c) for c in calls]
    assert [cost is not None for cost in costs] == [True] * 3 + [False] * 3
    assert made == ["F0", "F1", "F2"]
    assert prices.is_late
