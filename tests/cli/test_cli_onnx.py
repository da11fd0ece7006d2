"""ONNX files on the command line: one that works, and those that cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from helpers.cli import Cli
from remat_compile.api import load


def model(
    *,
    layers: int = 4,
    batch: int | str = 16,
    domain: str = "",
) -> onnx.ModelProto:
    """`layers` times Gemm and an activation, on float32[batch, 32]."""
    nodes, weights = [], []
    values = np.random.default_rng(0).normal(size=(layers, 32, 32)).astype(np.float32) / 8
    last = "x"
    for i in range(layers):
        weights.append(numpy_helper.from_array(values[i], f"w{i}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"h{i}"], name=f"mul{i}"))
        nodes.append(helper.make_node("Gelu", [f"h{i}"], [f"a{i}"], name=f"act{i}", domain=domain))
        last = f"a{i}"
    nodes.append(helper.make_node("ReduceMean", [last], ["loss"], keepdims=0))
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 32])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        weights,
    )
    opsets = [helper.make_opsetid("", 20)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def save(made: onnx.ModelProto, path: Path) -> Path:
    onnx.save(made, path)
    return path


def external(folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(model(), path, save_as_external_data=True, location="model.data", size_threshold=0)
    (folder / "model.data").unlink()
    return path


def truncated(folder: Path) -> Path:
    path = save(model(), folder / "model.onnx")
    path.write_bytes(path.read_bytes()[:-100])
    return path


def written(content: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / "model.onnx").write_bytes(content)
        return folder / "model.onnx"

    return write


BAD: dict[str, tuple[Callable[[Path], Path], list[str], str, int]] = {
    "missing": (lambda f: f / "model.onnx", [], "FB0701", 2),
    "a directory": (lambda f: (f / "model.onnx").mkdir() or f / "model.onnx", [], "FB0701", 2),  # type: ignore[func-returns-value]
    "empty": (written(b""), [], "FB0602", 1),
    "not ONNX": (written(b"hello, this is a text file\n" * 20), [], "FB0603", 1),
    "truncated": (truncated, [], "FB0603", 1),
    "missing weights": (external, [], "FB0605", 1),
    "unsupported operator": (
        lambda f: save(model(domain="com.acme"), f / "model.onnx"),
        [],
        "FB0607",
        1,
    ),
    "unbound dimension": (lambda f: save(model(batch="batch"), f / "model.onnx"), [], "FB0608", 2),
    "unknown dimension": (
        lambda f: save(model(batch="batch"), f / "model.onnx"),
        ["--dim", "batch=8", "--dim", "bacht=8"],
        "FB0609",
        2,
    ),
    "dimension of zero": (
        lambda f: save(model(batch="batch"), f / "model.onnx"),
        ["--dim", "batch=0"],
        "FB0609",
        2,
    ),
    "missing sample": (
        lambda f: save(model(), f / "model.onnx"),
        ["--sample", "no.npz"],
        "FB0610",
        1,
    ),
    "nothing to train": (
        lambda f: save(model(layers=0), f / "model.onnx"),
        [],
        "FB0611",
        1,
    ),
    "unreachable budget": (
        lambda f: save(model(), f / "model.onnx"),
        ["--budget", "1KiB"],
        "FB0466",
        1,
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files(case: str, cli: Cli, tmp_path: Path) -> None:
    make, words, code, exit_code = BAD[case]
    path = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    ran = cli(path, "-o", tmp_path / "plan.fbir", *words)
    assert f"error[{code}]" in ran.err, ran.err
    assert ran.code == exit_code
    assert "Traceback" not in ran.err
    assert ran.out == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_unsupported_operators_are_named_at_once(cli: Cli, tmp_path: Path) -> None:
    ran = cli(save(model(domain="com.acme"), tmp_path / "model.onnx"))
    for part in ("com.acme", "Gelu", "act0", "opset", "3 other nodes"):
        assert part in ran.err


def test_a_file_is_planned_and_run(cli: Cli, tmp_path: Path) -> None:
    path = save(model(batch="batch"), tmp_path / "model.onnx")
    plan = tmp_path / "plan.fbir"
    ran = cli(
        path, "-o", plan, "--dim", "batch=8", "--activation-budget", "80%", "--planner", "dtr"
    )
    assert ran.code == 0, ran.err
    for words in ([], ["--dim", "batch=8"]):  # the plan has its sizes
        assert "bit-equal" in cli("run", plan, "--repeats", "1", *words).out
    assert cli("verify", plan, "--model", path).code == 0
    bound = load(plan, model=path).bind()
    assert bound(torch.randn(8, 32)).shape == ()
    for shown in (cli("show", plan), cli("explain", plan)):
        assert "(MatMul, opset 20)" in shown.out
        assert "contextlib" not in shown.out
    page = tmp_path / "page.html"
    assert cli("report", plan, "-o", page).code == 0
    assert "MatMul, opset 20" in page.read_text()
    ran = cli("run", plan, "--dim", "batch=16", "--repeats", "1")
    assert (ran.code, "error[FB0710]" in ran.err) == (1, True)
    save(model(layers=5, batch="batch"), path)
    ran = cli("run", plan)
    assert (ran.code, "error[FB0715]" in ran.err) == (1, True)
