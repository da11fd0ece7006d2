"""Views in generated code: the bits of eager, and equal views derived once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from remat_compile.backends.torch import emit
from remat_compile.backends.torch.readback import check_source
from remat_compile.capture.torch import export, lower
from remat_compile.ir.analysis.identities import equal_views
from remat_compile.ir.analysis.order import capture_order, frees_after_last_use
from remat_compile.ir.graph import Call, Graph, Ref, View
from remat_compile.ir.schedule import Schedule


class Attention(nn.Module):
    """Queries, keys and values of one product, by heads; `split` takes them apart."""

    def __init__(self, split: Callable[[Tensor], Sequence[Tensor]]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.all, self.out, self.split = nn.Linear(8, 24), nn.Linear(8, 8), split

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.all(x))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        made: Tensor = self.out(mixed.transpose(1, 2).reshape(2, 3, 8))
        return made


def by_split(x: Tensor) -> list[Tensor]:
    return [part.view(2, 3, 2, 4).transpose(1, 2) for part in x.split(8, -1)]


def by_unbind(x: Tensor) -> Sequence[Tensor]:
    return x.view(2, 3, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)


def by_select(x: Tensor) -> list[Tensor]:
    parts = x.view(2, 3, 3, 2, 4)
    return [parts.select(2, place).transpose(1, 2) for place in range(3)]


@pytest.mark.parametrize("split", [by_split, by_unbind, by_select])
def test_a_step_has_the_bits_and_the_bytes_that_it_says(
    split: Callable[[Tensor], Sequence[Tensor]],
) -> None:
    model, x = Attention(split).double(), torch.randn(2, 3, 8, dtype=torch.float64)
    planned = remat_compile.compile(model, (x,), activation_budget="100%")
    made: list[list[Any]] = []
    wanted: list[list[Any]] = []
    for _ in range(3):
        for of, into in ((planned, made), (model, wanted)):
            model.zero_grad()
            y = of(x)
            y.square().sum().backward()
            into.append([y.detach(), *(p.grad for p in model.parameters())])
    for ours, theirs in zip(made, wanted, strict=True):
        assert all(map(torch.equal, ours, theirs))


class Three(nn.Module):
    """Products of one input, of which the capture takes a view each time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(8, 8, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x)
        made: Tensor = self.q(x) * self.k(x) + self.v(x)
        return made


def test_a_view_that_is_there_twice_is_derived_once() -> None:
    model, x = Three(), torch.randn(2, 3, 8)
    with lower(export(model, (x,))) as lowered:
        program = lowered.program
    twice = equal_views(program.graph)
    assert {program.graph.view[name].call for name in twice.values()} == {
        program.graph.view[name].call for name in twice
    }
    schedule = Schedule("p", "", frees_after_last_use(program.graph, capture_order(program.graph)))
    program = program.with_schedule(schedule)
    source = emit(program, schedule)
    check_source(source, program, schedule)
    forward = source[source.index("def forward") : source.index("def backward")]
    assert forward.count("tanh.view(6, 8)") == 1
    planned = remat_compile.compile(model, (x,), activation_budget="100%")
    assert torch.equal(planned(x), model(x))


@pytest.mark.parametrize(
    ("one", "other"), [((1, 0), (True, 0)), ((0, 1), (1, 0)), ((0, 1), (-2, 1))]
)
def test_views_by_other_arguments_are_not_equal(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    calls = [Call("aten.transpose.int", (Ref("x"), *dims)) for dims in (one, other, other)]
    views = tuple(View(f"v{i}", "x", call) for i, call in enumerate(calls))
    assert equal_views(Graph("g", (), views, ())) == {"v2": "v1"}
