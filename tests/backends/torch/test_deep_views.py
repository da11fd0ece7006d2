"""Views of views in a row, more of them than Python calls go deep."""

from __future__ import annotations

import sys
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from remat_compile.backends.readback.values import (
    ANodeInstance,
    Items,
    Literal,
    Value,
    ViewValue,
    shown,
    storages,
)
from remat_compile.ir.expr import Const
from remat_compile.ir.graph import ANode, Call, Graph, Ref, View

DEEP = 5000


def chain(anode: str) -> Value:
    value: Value = ANodeInstance(anode, 0)
    for _ in range(DEEP):
        value = ViewValue("aten.slice.Tensor", (Items((value,)), Literal("0")))
    return value


def test_values_that_look_through_many_views() -> None:
    assert sys.getrecursionlimit() < DEEP
    one, same, other = chain("x"), chain("x"), chain("y")
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert list(storages(one)) == [ANodeInstance("x", 0)]
    assert shown(one).endswith("aten.slice.Tensor(...)], 0)" + "], 0)" * 19)


def test_what_is_looked_at_tells_views_apart() -> None:
    of = ANodeInstance("x", 0)
    view = ViewValue("op", (of,), frozenset({("dim", Literal("0"))}))
    assert view == ViewValue("op", (of,), frozenset({("dim", Literal("0"))}))
    assert view != ViewValue("op", (of,), frozenset({("dim", Literal("1"))}))
    assert view != ViewValue("op", (of,), frozenset({("end", Literal("0"))}))
    assert view != ViewValue("op", (of, of), frozenset({("dim", Literal("0"))}))
    assert view != ViewValue("op", (of,), frozenset({("dim", Literal("0"))}), 0)
    assert view != ViewValue("op", (Items((of,)),), frozenset({("dim", Literal("0"))}))
    assert ViewValue("op", (Items((of,)),)) != ViewValue("op", (Items((of, of)),))
    assert view != of


def deep_graph() -> Graph:
    names = ["x", *(f"v{i}" for i in range(DEEP))]
    views = tuple(
        View(name, "x", Call("aten.transpose.int", (Ref(below), 0, 1)))
        for below, name in pairwise(names)
    )
    anode = ANode("x", "act", "f32", (Const(2), Const(3)), Const(24))
    return Graph("deep", (anode,), views, ())


def test_views_come_in_the_order_in_which_they_can_be_derived() -> None:
    graph = deep_graph()
    assert graph.views_below(f"v{DEEP - 1}") == graph.views
    assert graph.views_below("v3", ("v0", "v1")) == graph.views[2:4]
    assert graph.views_below("v3", ("v3",)) == ()
    assert graph.views_below("x") == ()


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.lin(x)
        for _ in range(1200):
            made = made.transpose(0, 1)
        return made.contiguous().sin().sum()


@pytest.mark.slow  # 25 s, of which 20 are PyTorch's trace
def test_a_model_of_many_views_in_a_row() -> None:
    model, x = Turned(), torch.randn(3, 4)
    ours = remat_compile.compile(model, (x,), planner="store-all", costs="roofline", device="cpu")
    ours(x).backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model(x).backward()
    for mine, theirs in zip(gradients, model.parameters(), strict=True):
        assert theirs.grad is not None
        assert torch.equal(mine, theirs.grad)
