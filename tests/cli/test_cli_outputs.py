"""No output lands on a file that the command or the plan reads, or that is somebody else's."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import remat_compile
from helpers.cli import Cli, chain_text
from remat_compile import FBError
from remat_compile.driver.files import FileRead
from remat_compile.driver.outputs import check_code, check_output, files_of_plan
from remat_compile.ir.program import Header

SOURCE = "def make(): raise RuntimeError('not to be loaded')\n"
TOML = Path(remat_compile.__file__).parent / "costs" / "devices" / "h200.toml"


@pytest.fixture
def folder(planned: Path) -> Path:
    """A plan that can be emitted, beside the Python file that it records."""
    folder = planned.parent
    (folder / "gpt.py").write_text(SOURCE)
    digest = hashlib.sha256(SOURCE.encode()).hexdigest()
    text = planned.read_text()
    two_results = r"(bwd %dw\d+, %d\d+ =) toy.op.default"
    text = re.sub(two_results, r"\1 aten.aminmax.default", text)
    text = text.replace("toy.op.default", "aten.cat.default")
    text = text[: text.index("\nproven")]
    head = f'source "gpt.py:make" sha256 "{digest}"\n'
    planned.write_text(re.sub(r"^target", f"{head}target", text, count=1, flags=re.M))
    return folder


def kept(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


WRITING: dict[str, list[str]] = {
    "plan": ["PLAN", "-o", "OUT"],
    "torch": ["PLAN", "--emit", "torch", "-o", "OUT"],
    "jax": ["PLAN", "--emit", "jax", "-o", "OUT"],
    "report": ["report", "PLAN", "-o", "OUT"],
    "trace": ["PLAN", "--emit", "trace", "-o", "OUT"],
    "dot": ["PLAN", "--emit", "dot", "-o", "OUT"],
    "snapshot": ["PLAN", "--emit", "memory-snapshot", "-o", "OUT"],
    "import": ["import-plan", "PLAN", "--from", "jax-names", "--save", "x3", "-o", "OUT"],
    "sweep": ["sweep", "PLAN", "-o", "OUT", "--activation-budgets", "100%"],
}


def write(cli: Cli, command: str, plan: Path, output: Path) -> tuple[int, str]:
    files = {"PLAN": str(plan), "OUT": str(output)}
    ran = cli(*(files.get(word, word) for word in WRITING[command]))
    return ran.code, ran.err


@pytest.mark.parametrize("command", WRITING)
def test_the_recorded_source_stays(command: str, cli: Cli, folder: Path, tmp_path: Path) -> None:
    os.link(folder / "gpt.py", folder / "hard.py")
    (folder / "soft.py").symlink_to("gpt.py")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "copy.py").write_text(SOURCE)
    before = {p: p.read_bytes() for p in folder.rglob("*.py")}
    for name in ("gpt.py", "hard.py", "soft.py", "elsewhere/copy.py"):
        code, err = write(cli, command, folder / "plan.fbir", folder / name)
        assert (code, "error[FB0703]" in err) == (2, True), err
        assert "it is the model that the plan records" in err
    assert {p: p.read_bytes() for p in folder.rglob("*.py")} == before


@pytest.mark.parametrize("command", ["torch", "jax", "sweep"])
def test_the_plan_itself_stays(command: str, cli: Cli, folder: Path) -> None:
    before = kept(folder)
    plan = folder / "plan.fbir"
    (folder / "link.py").symlink_to(plan)
    code, err = write(cli, command, plan, folder / "link.py")
    assert (code, "error[FB0703]" in err) == (2, True), err
    (folder / "link.py").unlink()
    assert kept(folder) == before


def test_a_plan_may_take_the_place_of_a_plan(cli: Cli, folder: Path) -> None:
    plan = folder / "plan.fbir"
    assert write(cli, "plan", plan, plan)[0] == 0
    assert write(cli, "plan", plan, folder / "other")[0] == 0
    assert write(cli, "plan", plan, folder / "other")[0] == 0
    (folder / "other").write_text("// a comment\n\nfbir 1\n")
    assert write(cli, "plan", plan, folder / "other")[0] == 0
    (folder / "other.txt").write_text("")
    assert write(cli, "plan", plan, folder / "other.txt")[0] == 0


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("plan", "net.py"),
        ("plan", "net.onnx"),
        ("plan", "net.pt2"),
        ("plan", "device.toml"),
        ("plan", "notes"),
        ("torch", "net.py"),
        ("torch", "other.fbir"),
        ("jax", "net.py"),
        ("import", "net.py"),
        ("sweep", "net.py"),
    ],
)
def test_files_of_others_stay(command: str, name: str, cli: Cli, folder: Path) -> None:
    (folder / name).write_text("# written by hand\n")
    before = kept(folder)
    code, err = write(cli, command, folder / "plan.fbir", folder / name)
    assert (code, "error[FB0719]" in err) == (2, True), err
    assert "name another file, or remove it first" in err
    assert kept(folder) == before


def test_what_we_wrote_is_replaced(cli: Cli, folder: Path) -> None:
    plan, out = folder / "plan.fbir", folder / "step.py"
    for _ in range(2):
        code, err = write(cli, "torch", plan, out)
        assert code == 0, err
    for name in ("a.csv", "a.txt"):
        for _ in range(2):
            assert write(cli, "sweep", plan, folder / name)[0] == 0


def test_the_values_beside_a_jax_module(tmp_path: Path) -> None:
    module, values = tmp_path / "step.py", tmp_path / "step.npz"
    np.savez(values, x=np.ones(2))
    for reads in ((), (FileRead(values, "the sample of the inputs"),)):
        with pytest.raises(FBError) as caught:
            check_code(module, reads, has_values=True)
        assert caught.value.diagnostics[0].code == ("FB0703" if reads else "FB0719")
        check_code(module, reads, has_values=False)
    np.savez(values, **{"param|w|float32": np.ones(2)})
    check_code(module, (), has_values=True)
    values.write_bytes(b"")
    check_code(module, (), has_values=True)


def test_the_sample_and_the_device_stay(cli: Cli, chain: Path, tmp_path: Path) -> None:
    device = tmp_path / "my.toml"
    device.write_text(TOML.read_text())
    ran = cli(chain, "--device", device, "-o", device)
    assert (ran.code, "it is the file of the device" in ran.err) == (2, True), ran.err
    net = save_model(tmp_path)
    sample = tmp_path / "sample.npz"
    np.savez(sample, x=np.ones((2, 4), np.float32))
    for words in (["-o", sample], ["--emit", "jax", "-o", tmp_path / "sample.py"]):
        ran = cli(net, "--sample", sample, *words)
        assert (ran.code, "it is the sample of the inputs" in ran.err) == (2, True), ran.err
    with np.load(sample) as file:
        assert file.files == ["x"]


def test_the_second_model_stays(cli: Cli, folder: Path) -> None:
    other = folder / "other.py"
    other.write_text(SOURCE)
    ran = cli(
        folder / "plan.fbir", "--emit", "jax", "--model", f"{other}:make", "-o", folder / "other.py"
    )
    assert (ran.code, "error[FB0703]" in ran.err) == (2, True), ran.err
    assert other.read_text() == SOURCE


def save_model(folder: Path) -> Path:
    """An ONNX model whose weights lie in `model.data` beside it."""
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("ReduceMean", ["h"], ["loss"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [weight],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path = folder / "model.onnx"
    onnx.save(made, path, save_as_external_data=True, location="model.data", size_threshold=0)
    return path


def test_the_weights_of_a_model_stay(cli: Cli, chain: Path, tmp_path: Path) -> None:
    net = save_model(tmp_path)
    weights = tmp_path / "model.data"
    before = weights.read_bytes()
    ran = cli(net, "-o", weights)
    assert (ran.code, "the weights of the model itself" in ran.err) == (2, True), ran.err
    chain.write_text(chain.read_text().replace("fbir 1\n", 'fbir 1\nsource "model.onnx"\n', 1))
    ran = cli(chain, "-o", weights)
    assert (ran.code, "the weights of the model that the plan records" in ran.err) == (2, True)
    assert weights.read_bytes() == before


def test_python_api(folder: Path) -> None:
    plan = remat_compile.load(folder / "plan.fbir")
    swept = remat_compile.sweep(
        folder / "plan.fbir", activation_budgets="100%", planners="store-all"
    )
    for save in (plan.save, swept.save):
        with pytest.raises(FBError) as caught:
            save(folder / "gpt.py")
        assert caught.value.diagnostics[0].code == "FB0703"
    assert (folder / "gpt.py").read_text() == SOURCE
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(FBError) as caught:
        plan.save(folder / "notes.txt")
    assert caught.value.diagnostics[0].code == "FB0719"
    plan.save(folder / "plan.fbir")


def test_a_model_planned_here_stays(tmp_path: Path) -> None:
    net = tmp_path / "net.py"
    net.write_text("import torch\ndef make(): return torch.nn.Linear(2, 2), (torch.ones(1, 2),)\n")
    plan = remat_compile.plan(f"{net}:make", planner="store-all")
    with pytest.raises(FBError) as caught:
        plan.save(net)
    assert caught.value.diagnostics[0].code == "FB0703"


def test_a_source_that_is_no_bare_name_is_known_by_its_content(tmp_path: Path) -> None:
    digest = hashlib.sha256(SOURCE.encode()).hexdigest()
    (tmp_path / "gpt.py").write_text(SOURCE)
    header = Header(source="../far/gpt.py:make", sha256=digest)
    with pytest.raises(FBError) as caught:
        check_output(tmp_path / "gpt.py", "plan", files_of_plan(tmp_path / "p.fbir", header))
    assert caught.value.diagnostics[0].code == "FB0703"
    (tmp_path / "p.fbir").write_text(chain_text())
    check_output(tmp_path / "p.fbir", "plan", files_of_plan(tmp_path / "p.fbir", header))
