"""A plan meets a model whose tensors lie in memory in another way than when it was made."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import remat_compile
from remat_compile.api import load
from remat_compile.capture.torch.assemble import layout_of
from remat_compile.cli import main
from remat_compile.device.strides import lie_alike
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import TensorLayout
from remat_compile.ir.text.parser import parse_program
from remat_compile.ir.text.printer import format_program
from remat_compile.plans.plan import Plan
from remat_compile.verifier import check_certificate

SAMPLE = (2, 3, 6, 6)
MODEL = """
import torch
from torch import nn

def contiguous():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
    return nn.Sequential(*layers), (torch.randn(2, 3, 6, 6),)

def channels_last():
    net, (x,) = contiguous()
    form = torch.channels_last
    return net.to(memory_format=form), (x.to(memory_format=form),)
"""


def net(form: torch.memory_format = torch.contiguous_format) -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
    model = nn.Sequential(*layers)
    model.to(memory_format=form)  # type: ignore[call-overload]
    return model


def images(form: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    return torch.randn(SAMPLE).to(memory_format=form)


def planned(model: nn.Module, x: torch.Tensor) -> Plan:
    return remat_compile.plan(model, (x,), planner="store-all", cache=False)


@pytest.fixture(scope="module")
def plain() -> Plan:
    return planned(net(), images())


@pytest.fixture(scope="module")
def last() -> Plan:
    form = torch.channels_last
    return planned(net(form), images(form))


def as_text(plan: Plan, *, known: bool = True) -> str:
    text = format_program(plan.program)
    if known:
        return text
    return re.sub(r"(?m)^layouts \{(?:\}|.*?^\})\n", "", text, flags=re.S)


def codes(caught: pytest.ExceptionInfo[FBError]) -> list[str]:
    return [d.code for d in caught.value.diagnostics]


def test_the_header_has_what_is_not_contiguous(plain: Plan, last: Plan) -> None:
    assert plain.program.header.layouts == ()
    assert "\nlayouts {}\n" in as_text(plain)
    layouts = last.program.header.layouts
    assert layouts is not None
    # Of the convolution by one pixel both layouts are one.
    assert [layout.numbers for layout in layouts] == [(0, 2, 3, 1)] * 2
    assert [layout.form for layout in layouts] == ["order"] * 2
    for plan in (plain, last):
        assert parse_program(as_text(plan)).header == plan.program.header


def test_a_plan_for_contiguous_tensors_refuses_channels_last(plain: Plan) -> None:
    form = torch.channels_last
    model, x = net(form), images(form)
    for meet in (plain.bind, plain.check_model):
        with pytest.raises(FBError) as caught:
            meet(model, (x,))
        assert codes(caught) == ["FB0740"]
        (refusal,) = caught.value.diagnostics
        assert 'argument "args[0]"' in refusal.message
        assert "channels_last, order [0, 2, 3, 1]" in refusal.message
        assert "contiguous" in refusal.message
        assert any('parameter "0.weight"' in note.message for note in refusal.notes)
        assert refusal.hint is not None
        assert "plan the model again" in refusal.hint


def test_a_plan_for_channels_last_refuses_contiguous_tensors(last: Plan) -> None:
    with pytest.raises(FBError) as caught:
        last.bind(net(), (images(),))
    assert codes(caught) == ["FB0740"]
    assert "is contiguous in memory" in caught.value.diagnostics[0].message


def test_an_order_without_its_dimensions_of_one_element() -> None:
    """Both begin with dimension 0, then 3, then 2; the one element of dimension 1 lies anywhere."""
    model = nn.Linear(3, 2)
    first, second = (
        torch.randn(24).as_strided((2, 1, 4, 3), (12, step, 1, 4)) for step in (1, 100)
    )
    plan = planned(model, first)
    orders = [layout.numbers for x in (first, second) if (layout := layout_of("x", x)) is not None]
    assert orders == [(0, 3, 1, 2), (1, 0, 3, 2)]
    plan.check_model(model, (second,))
    plan.bind(model, (second,))(second).sum().backward()
    with pytest.raises(FBError) as caught:
        plan.check_model(model, (first.contiguous(),))
    assert codes(caught) == ["FB0740"]


def test_one_tensor_is_enough(plain: Plan, last: Plan) -> None:
    with pytest.raises(FBError) as caught:
        plain.bind(net(), (images(torch.channels_last),))
    assert codes(caught) == ["FB0740"]
    assert not caught.value.diagnostics[0].notes
    with pytest.raises(FBError) as caught:
        last.bind(net(), (images(torch.channels_last),))
    assert 'parameter "0.weight"' in caught.value.diagnostics[0].message


def test_the_same_layouts_bind_and_give_the_bits_of_eager(plain: Plan, last: Plan) -> None:
    for plan, form in ((plain, torch.contiguous_format), (last, torch.channels_last)):
        model, x = net(form), images(form)
        bound = plan.bind(model, (x,))
        ours = bound(x)
        again = net(form)
        assert torch.equal(ours, again(x))
        assert plan.check_model(model, (x,)).how == ""


def test_an_old_file_warns_of_what_is_not_contiguous(tmp_path: Path, plain: Plan) -> None:
    path = tmp_path / "old.fbir"
    path.write_text(as_text(plain, known=False))
    old = load(path)
    assert old.program.header.layouts is None
    form = torch.channels_last
    with pytest.warns(match=r"FB0741.*%arg0 \(argument .*channels_last.*0\.weight"):
        old.bind(net(form), (images(form),))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        old.bind(net(), (images(),))


def test_run_and_verify_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text(MODEL)
    plan, model = str(tmp_path / "plan.fbir"), f"{tmp_path}/net.py"
    assert main([f"{model}:contiguous", "-o", plan, "--planner", "store-all", "--quiet"]) == 0
    for word in ("run", "verify"):
        capsys.readouterr()
        assert main([word, plan, "--model", f"{model}:channels_last"]) == 1
        assert "FB0740" in capsys.readouterr().err
        assert main([word, plan, "--model", f"{model}:contiguous"]) == 0


def test_layouts_are_part_of_what_is_proven(last: Plan) -> None:
    """A proof is not that of a plan for other layouts, nor of one that does not say."""
    program = parse_program(as_text(last))
    (proven,) = program.proven
    assert check_certificate(program, proven) is None
    for text in (
        as_text(last).replace("order [0, 2, 3, 1]", "order [0, 1, 3, 2]", 1),
        as_text(last, known=False),
    ):
        edited = parse_program(text)
        refusal = check_certificate(edited, edited.proven[0])
        assert refusal is not None
        assert refusal.code == "FB0830"


def tensors() -> Iterator[tuple[torch.Tensor, TensorLayout | None]]:
    x = torch.empty(2, 3, 4)
    yield x, None
    yield x.transpose(0, 2), TensorLayout("a", "order", (2, 1, 0))
    yield x[:, :, ::2], TensorLayout("a", "strides", (12, 4, 2))
    yield torch.empty(2, 1, 4).transpose(1, 2), None
    yield torch.empty(4).expand(3, 4), TensorLayout("a", "strides", (0, 1))
    yield torch.empty(0, 3).t(), None
    yield torch.empty(()), None
    yield (
        torch.empty(1, 3, 5, 5).to(memory_format=torch.channels_last),
        TensorLayout("a", "order", (0, 2, 3, 1)),
    )


@pytest.mark.parametrize(("tensor", "expected"), list(tensors()))
def test_layouts_of_tensors(tensor: torch.Tensor, expected: TensorLayout | None) -> None:
    layout = layout_of("a", tensor)
    assert layout == expected
    assert (layout is None) == (tensor.is_contiguous() or tensor.numel() == 0)


class AsksForLayout(nn.Module):
    """In eager another factor for another layout, and a copy that is none at capture."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.conv(x.contiguous())
        return made * (2 if x.is_contiguous() else 3)


@pytest.mark.parametrize("way", ["error", "eager", "replan"])
def test_a_call_with_other_strides_is_as_one_with_other_shapes(way: Any) -> None:
    """FB0910 says which, or the call has the bits of eager."""
    torch.manual_seed(0)
    model, last = AsksForLayout(), images(torch.channels_last)
    options: dict[str, Any] = {"planner": "store-all", "budget": "1GiB", "cache": False}
    step = remat_compile.compile(model, (images(),), on_new_shape=way, **options)
    x = images()
    assert torch.equal(step(x), model(x))
    if way == "error":
        with pytest.raises(
            FBError, match=r"strides \[108, 1, 18, 3\]; .*\[108, 36, 6, 1\]"
        ) as caught:
            step(last)
        assert codes(caught) == ["FB0910"]
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(step(last), model(last))


def test_parameters_that_were_laid_out_otherwise_are_refused(plain: Plan) -> None:
    model, x = net(), images()
    bound = plain.bind(model, (x,))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with pytest.raises(FBError, match=r"0\.weight stride mismatch") as caught:
        bound(x)
    assert codes(caught) == ["FB0910"]


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (((2, 3), (3, 1)), ((2, 3), (1, 2)), False),
        (((2, 1, 3), (3, 3, 1)), ((2, 1, 3), (3, 1, 1)), True),  # of the one nothing is told
        (((2, 3), (3, 1)), ((2, 3), (6, 2)), False),
        (((2, 3), (3, 1)), ((4, 3), (6, 2)), False),  # of another size: a slice
        (((2, 3), (6, 2)), ((4, 3), (9, 2)), True),
        (((2, 3), (3, 1)), ((4, 3), (3, 1)), True),
        (((2, 3), (3, 1)), ((2, 5), (5, 1)), True),
        (((2, 3), (3, 1)), ((4, 3), (1, 4)), False),
        (((2, 3), (3, 1)), ((4, 3), (0, 1)), False),
        (((2, 3), (3, 1)), ((0, 3), (1, 7)), True),
        (((2, 3), (3, 1)), ((2, 3), None), False),
    ],
)
def test_strides_that_lie_alike(one: Any, other: Any, alike: bool) -> None:
    assert lie_alike(*one, *other) is alike
    assert lie_alike(*other, *one) is alike


def test_dynamic_dimensions_stay_dynamic() -> None:
    form = torch.channels_last
    model, x = net(form), images(form)
    shapes = ({0: torch.export.Dim("b", min=2, max=8)},)
    plan = remat_compile.plan(model, (x,), planner="store-all", cache=False, dynamic_shapes=shapes)
    assert plan.program.symbols
    assert plan.program.header.layouts is not None
    larger = torch.randn(5, 3, 6, 6).to(memory_format=form)
    assert plan.bind()(larger).shape[0] == 5
