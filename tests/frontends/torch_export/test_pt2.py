"""`.pt2` files: the same program as the live module, and refusals of what cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from helpers.models import MODELS
from helpers.slow import default_only
from remat_compile.frontends.torch_export import export, load_pt2, lower
from remat_compile.ir.diagnostics import FBError


@pytest.mark.parametrize(
    "name", default_only(["gpt", "resnet", "gpt-loss", "mlp-loss"], ["resnet", "mlp-loss"])
)
def test_a_pt2_file_gives_the_graph_of_the_module(name: str, tmp_path: Path) -> None:
    module, args, kwargs = MODELS[name](torch.float32)
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


def test_a_pt2_file_of_a_model_on_meta_is_refused(tmp_path: Path) -> None:
    with torch.device("meta"):
        model, x = nn.Linear(4, 4), torch.ones(2, 4)
    torch.export.save(torch.export.export(model, (x,)), tmp_path / "m.pt2")
    with pytest.raises(FBError, match=r"m\.pt2 was exported on the meta device") as error:
        load_pt2(tmp_path / "m.pt2")
    assert [d.code for d in error.value.diagnostics] == ["FB0516"]
