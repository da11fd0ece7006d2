"""A reshape of a reshape is one line of generated code, and is read back as what it is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from remat_compile.backends.torch import emit
from remat_compile.backends.torch.readback import check_source
from remat_compile.capture.torch import export, lower
from remat_compile.ir.analysis.order import capture_order, frees_after_last_use
from remat_compile.ir.analysis.reshapes import with_short_reshapes
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.expr import Sym
from remat_compile.ir.graph import Arg, Call, Graph, Ref, View
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Schedule


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
