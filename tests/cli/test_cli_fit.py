"""`remat-compile fit` of models: factories that take sizes, ONNX files, one on `meta`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.cli import Cli
from helpers.paths import ROOT

NET = """\
import torch
from torch import nn

def net(width):
    return nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(width, width), nn.Tanh())))

def make(batch=4, width=64):
    torch.manual_seed(0)
    return net(width), (torch.ones(batch, width),)

def stepping(batch=4):
    model, args = make(batch)
    return model, args, torch.optim.AdamW(model.parameters())

def on_meta(batch=4):
    with torch.device("meta"):
        return net(16384), (torch.ones(batch, 16384),)
"""
SMALL = """\
name = "small"
memory = "1MiB"
granularity = 512
memory_bandwidth = "20GB/s"
launch_overhead_us = 1
[flops]
f32 = 1e12
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "small.toml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_next_command_makes_the_plan_that_was_shown(cli: Cli, folder: Path) -> None:
    words = ("fit", "net.py:make", "--device", "small.toml", "--batch", "1..2000", "-q")
    made = json.loads(cli(*words, "--format", "json").out)
    size = made["size"]["size"]
    assert made["fits"]
    assert (made["fits_now"], 1 < size < 2000) == (False, True)
    assert sum(row["plan_bytes"] for row in made["rows"]) == made["plan_bytes"] <= 1 << 20
    ran = cli(*made["next_command"].split()[1:], "-q")
    assert ran.code == 0, ran.err
    shown = json.loads(cli("show", "plan.fbir", "--format", "json").out)
    assert shown["fit"]["rows"] == made["rows"]
    states = next(r["plan_bytes"] for r in made["rows"] if r["kind"] == "optimizer states")
    room = ("--dim", f"batch={size + 1}", "--budget", f"{(1 << 20) - states}B", "--planner", "dtr")
    assert "error[FB0466]" in cli("net.py:make", *words[2:4], *room, "-q").err
    ran = cli(
        "run",
        "plan.fbir",
        "--model",
        "net.py:make",
        "--dim",
        f"batch={size}",
        "-q",
        "--threads",
        "1",
    )
    assert "bit-equal" in ran.out, ran.err


def test_an_optimizer_of_the_factory_is_in_the_rows(cli: Cli, folder: Path) -> None:
    made = json.loads(cli("fit", "net.py:stepping", "--device", "t4", "-q", "--format", "json").out)
    states = next(row for row in made["rows"] if row["kind"] == "optimizer states")
    assert made["optimizer"] is None
    assert states["source"] == "of the optimizer that steps in this program"
    assert states["now_bytes"] >= 2 * 6 * (64 * 64 + 64) * 4


def test_a_model_on_meta_that_is_too_large(cli: Cli, folder: Path) -> None:
    ran = cli("fit", "net.py:on_meta", "--device", "t4", "-q")
    assert ran.code == 1
    first, *_, following = ran.out.splitlines()
    assert first.startswith("the plan does not lower the device's peak: 30.1 GiB, in the update")
    assert "it does not fit into t4: 30.1 GiB for 14.7 GiB, 15.4 GiB too many" in ran.out
    assert following.startswith("next: remat-compile fit net.py:on_meta --device ")
    assert "error[FB0972]" in cli("fit", "net.py:on_meta", "--device", "small.toml", "-q").err


def test_an_onnx_file_by_the_size_it_leaves_open(cli: Cli, folder: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(__import__("numpy").ones((64, 64), "float32"), "w")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 64]) for n in ("x", "y"))
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, folder / "net.onnx")
    words = ("fit", "net.onnx", "--device", "small.toml", "-q", "--format", "json")
    made = json.loads(cli(*words, "--batch", "1..4000").out)
    assert made["size"]["name"] == "N"
    assert 1 < made["size"]["size"] < 4000
    assert made["fits"]
    assert "error[FB0975]" in cli(*words, "--dim", "N=3000..4000").err


def test_a_size_that_the_factory_does_not_take(cli: Cli, folder: Path) -> None:
    ran = cli("fit", "net.py:make", "--device", "t4", "--dim", "sequence=1..8", "-q")
    assert (ran.code, "error[FB0976]" in ran.err) == (2, True)
    assert "sequence=8" in ran.err
    assert str(ROOT) not in ran.err
