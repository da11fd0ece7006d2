"""`.pt2` files: the same program as the live module, and refusals of what cannot be read."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import remat_compile
from helpers.models import FACTORIES
from helpers.slow import default_only
from remat_compile.capture.torch import Exported, export, load_pt2, lower
from remat_compile.costs import load_device, roofline
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.text.printer import format_program


@pytest.mark.parametrize(
    "name",
    default_only(
        ["gpt", "resnet", "gpt-loss", "small-resnet", "mlp-loss"], ["small-resnet", "mlp-loss"]
    ),
)
def test_a_pt2_file_gives_the_graph_of_the_module(name: str, tmp_path: Path) -> None:
    module, args, kwargs = FACTORIES[name](torch.float32)
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(module, args, kwargs, strict=False), path)
    with lower(load_pt2(path)) as loaded:
        theirs = loaded.program
    with lower(export(module, args, kwargs)) as live:
        ours = live.program
    assert [(c.name, c.call, c.writes) for c in theirs.graph.cnodes] == [
        (c.name, c.call, c.writes) for c in ours.graph.cnodes
    ]
    assert theirs.binding == ours.binding


def test_a_file_that_is_no_pt2(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"not a zip")
    with pytest.raises(FBError) as error:
        load_pt2(path)
    assert error.value.diagnostics[0].code == "FB0503"


def test_a_file_without_example_inputs(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    program = torch.export.export(nn.Linear(2, 2), (torch.randn(1, 2),))
    program.example_inputs = None
    torch.export.save(program, path)
    with pytest.raises(FBError) as error:
        load_pt2(path)
    assert error.value.diagnostics[0].code == "FB0504"


def test_a_pt2_file_that_cannot_be_trained(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(nn.ReLU(), (torch.randn(2),)), path)
    with pytest.raises(FBError) as error:
        load_pt2(path)
    assert error.value.diagnostics[0].code == "FB0502"


class Tables(nn.Module):
    """What a file made on `meta` says of no tensor: a buffer, a frozen part, made tensors."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.1)
        self.register_buffer("table", torch.ones(4, 8), persistent=False)
        self.second.weight.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.arange(8, device=x.device, dtype=torch.float32)
        made = self.second(self.drop(torch.tanh(self.norm(self.first(x * self.table + steps)))))
        loss: torch.Tensor = made.to(x.device).square().mean()
        return loss


def _in_file(model: nn.Module, args: tuple[torch.Tensor, ...], path: Path) -> Exported:
    torch.export.save(torch.export.export(model, args, strict=False), path)
    return load_pt2(path)


def _text(exported: Exported) -> str:
    with lower(exported) as lowered:
        program = roofline(lowered.program, load_device("h200"))
    return format_program(replace(program, header=replace(program.header, replays="")))


def _with_dynamic_batch(model: nn.Module, x: torch.Tensor, path: Path) -> Exported:
    shapes = {"x": {0: torch.export.Dim("batch", min=2, max=64)}}
    torch.export.save(torch.export.export(model, (x,), dynamic_shapes=shapes), path)
    return load_pt2(path)


def test_a_pt2_file_of_a_model_on_meta_gives_its_graph(tmp_path: Path) -> None:
    with torch.device("meta"):
        on_meta, x = Tables(), torch.ones(4, 8)
    loaded = _in_file(on_meta, (x,), tmp_path / "m.pt2")
    there = _in_file(Tables(), (torch.ones(4, 8),), tmp_path / "c.pt2")
    assert _text(loaded) == _text(there)
    (warning,) = loaded.warnings
    assert warning.code == "FB0522"
    assert "first.weight and second.weight" in warning.message


@pytest.mark.parametrize("name", default_only(FACTORIES, ["small-resnet-loss"]))
def test_every_model_on_meta_gives_its_graph(name: str, tmp_path: Path) -> None:
    module, args, kwargs = FACTORIES[name](torch.float32)
    if len([*module.parameters()]) < len([*module.named_parameters(remove_duplicate=False)]):
        pytest.skip("a file made on meta keeps no ties")
    on_meta = copy.deepcopy(module).to("meta")
    args = tuple(a.detach().to("meta").requires_grad_(a.requires_grad) for a in args)
    kwargs = {key: value.to("meta") for key, value in kwargs.items()}
    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(on_meta, args, kwargs, strict=False), path)
    loaded = load_pt2(path)
    module, args, kwargs = FACTORIES[name](torch.float32)
    torch.export.save(torch.export.export(module, args, kwargs, strict=False), path)
    assert _text(loaded) == _text(load_pt2(path))


def test_a_pt2_file_on_meta_with_a_dynamic_batch(tmp_path: Path) -> None:
    with torch.device("meta"):
        on_meta, x = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)), torch.ones(4, 8)

    class Mean(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = self.inner(x).square().mean()
            return loss

    loaded = _with_dynamic_batch(Mean(on_meta), x, tmp_path / "m.pt2")
    there = _with_dynamic_batch(
        Mean(on_meta.to_empty(device="cpu")), torch.ones(4, 8), tmp_path / "c.pt2"
    )
    assert _text(loaded) == _text(there)


def test_a_plan_of_a_pt2_file_on_meta_tells_that_ties_are_lost(tmp_path: Path) -> None:
    with torch.device("meta"):
        model, x = Tables(), torch.ones(4, 8)
    torch.export.save(torch.export.export(model, (x,), strict=False), tmp_path / "m.pt2")
    plan = remat_compile.plan(tmp_path / "m.pt2", costs="roofline", device="h200", planner="chen")
    assert [d.code for d in plan.warnings].count("FB0522") == 1
    with pytest.raises(FBError, match="FB0516"):  # what needs values has none to compute with
        remat_compile.plan(tmp_path / "m.pt2", planner="chen", costs="measured")


def test_a_tied_model_is_not_given_the_plan_of_its_pt2_file_on_meta(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
            self.second.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            loss: torch.Tensor = self.second(torch.tanh(self.first(x))).square().mean()
            return loss

    with torch.device("meta"):
        model, x = Tied(), torch.ones(4, 8)
    torch.export.save(torch.export.export(model, (x,), strict=False), tmp_path / "m.pt2")
    plan = remat_compile.plan(tmp_path / "m.pt2", costs="roofline", device="cpu", planner="chen")
    with pytest.raises(FBError) as error:
        plan.bind(Tied(), (torch.ones(4, 8),))
    assert [d.code for d in error.value.diagnostics] == ["FB0710"]
