"""Views in generated code: the bits of eager, and equal views derived once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

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
from remat_compile.backends.torch import emit
from remat_compile.backends.torch.readback import check_source
from remat_compile.capture.torch import export, lower
from remat_compile.ir.analysis.order import capture_order, frees_after_last_use
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.expr import Const, Sym
from remat_compile.ir.graph import ANode, Arg, Call, Graph, Ref, View
from remat_compile.ir.program import Program
from remat_compile.ir.rewrites.identities import equal_views
from remat_compile.ir.rewrites.reshapes import with_short_reshapes
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


# -- A reshape of a reshape is one line of generated code, and is read back as w ------------------


class Heads(nn.Module):
    """A product of matrices whose result is seen by heads."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 8, bias=False), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x).view(2, 3, 4, 2).transpose(1, 2)
        made: Tensor = self.outer((h * h).transpose(1, 2).reshape(2, 3, 8))
        return made


def emitted() -> tuple[Program, Schedule, str]:
    with lower(export(Heads(), (torch.randn(2, 3, 6),))) as lowered:
        program = lowered.program
    graph = program.graph
    schedule = Schedule("p", "", frees_after_last_use(graph, capture_order(graph)))
    program = program.with_schedule(schedule)
    return program, schedule, emit(program, schedule)


def test_what_lies_between_is_not_derived() -> None:
    program, schedule, source = emitted()
    ops = {view.call.op for view in program.graph.views}
    assert "aten._unsafe_view.default" in ops
    assert "_unsafe_view" not in source
    forward = source[source.index("def forward") : source.index("def backward")]
    assert "mm.view(2, 3, 4, 2)" in forward
    check_source(source, program, schedule)


@pytest.mark.parametrize(
    "other", ["mm.view(2, 3, 2, 4)", "mm.view(3, 2, 4, 2)", "mm.view(2, 3, 8)"]
)
def test_other_sizes_are_another_view(other: str) -> None:
    program, schedule, source = emitted()
    with pytest.raises(FBError) as caught:
        check_source(source.replace("mm.view(2, 3, 4, 2)", other, 1), program, schedule)
    assert caught.value.diagnostics[0].code in ("FB0945", "FB0946")


def test_a_step_of_them_has_the_bits_of_eager() -> None:
    model, x = Heads(), torch.randn(2, 3, 6)
    planned = remat_compile.compile(model, (x,), activation_budget="100%")
    for made, wanted in zip(planned(x).split(1), model(x).split(1), strict=True):
        assert torch.equal(made, wanted)
    model(x).square().sum().backward()
    wanted_grads = [p.grad for p in model.parameters()]
    model.zero_grad()
    planned(x).square().sum().backward()
    for p, grad in zip(planned.parameters(), wanted_grads, strict=True):
        assert p.grad is not None
        assert grad is not None
        assert torch.equal(p.grad, grad)


VIEW, UNSAFE = "aten.view.default", "aten._unsafe_view.default"


def chain(*steps: tuple[str, tuple[Arg, ...]]) -> list[Call]:
    """The calls of views, each of the one before, and of what `with_short_reshapes` makes."""
    names = ["x", *(f"v{i}" for i in range(len(steps)))]
    views = tuple(
        View(name, "x", Call(op, (Ref(before), *args)))
        for before, name, (op, args) in zip(names, names[1:], steps, strict=False)
    )
    return [view.call for view in with_short_reshapes(Graph("g", (), views, ())).views]


def test_reshapes_in_a_row_look_at_the_first() -> None:
    made = chain((UNSAFE, ((2, 12),)), (VIEW, ((2, 3, 4),)), (UNSAFE, ((6, 4),)))
    assert made == [Call(VIEW, (Ref("x"), sizes)) for sizes in ((2, 12), (2, 3, 4), (6, 4))]


def test_other_views_and_unknown_sizes_stay_as_they_are() -> None:
    """The stride of a dimension of one element is anything, and -1 or a symbol may be one."""
    transposed = chain((VIEW, ((4, 6),)), ("aten.t.default", ()), (VIEW, ((2, 3, 4),)))
    assert transposed[1:] == [
        Call("aten.t.default", (Ref("v0"),)),
        Call(VIEW, (Ref("v1"), (2, 3, 4))),
    ]
    for size in (1, -1, 0, Sym("s0")):
        first, second = chain((VIEW, ((2, 12),)), (UNSAFE, ((24, size),)))
        assert second == Call(UNSAFE, (Ref("v0"), (24, size)))
        first, second = chain((UNSAFE, ((24, size),)), (VIEW, ((2, 12),)))
        assert first == Call(UNSAFE, (Ref("x"), (24, size)))
        assert second == Call(VIEW, (Ref("x"), (2, 12)))


# -- Views of views in a row, more of them than Python calls go deep ------------------------------

DEEP = 5000


def deep_chain(anode: str) -> Value:
    value: Value = ANodeInstance(anode, 0)
    for _ in range(DEEP):
        value = ViewValue("aten.slice.Tensor", (Items((value,)), Literal("0")))
    return value


def test_values_that_look_through_many_views() -> None:
    assert sys.getrecursionlimit() < DEEP
    one, same, other = deep_chain("x"), deep_chain("x"), deep_chain("y")
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
