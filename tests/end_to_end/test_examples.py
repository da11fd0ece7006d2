"""The examples run, and so does the benchmark that is quick."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import typer
from nbclient import NotebookClient
from typer.testing import CliRunner, Result

ROOT = Path(__file__).parents[2]
SMALL = ["--layers", "1", "--width", "16", "--heads", "2", "--vocab", "32", "--seq", "8"]


def python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / script), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def gpt2_onnx(*arguments: str) -> Result:
    """The example in this process."""
    app = typer.Typer()
    app.command()(runpy.run_path(str(ROOT / "examples/gpt2_onnx.py"))["main"])
    return CliRunner().invoke(app, list(arguments))


def test_train_mlp(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples/train_mlp.py"), run_name="__main__")
    assert "bit-equal to eager: True" in capsys.readouterr().out


def test_gpt2_onnx_keeps_every_weight(tmp_path: Path) -> None:
    import onnx

    file = tmp_path / "gpt2.onnx"
    done = gpt2_onnx("-o", str(file), *SMALL)
    assert done.exit_code == 0, done.output
    weights = [
        i for i in onnx.load(file).graph.initializer if i.data_type == onnx.TensorProto.FLOAT
    ]
    # Two embeddings, twelve tensors in the block, two in the last norm; the head is tied.
    assert len(weights) == 16


def test_gpt2_onnx_refuses_what_cannot_be(tmp_path: Path) -> None:
    odd = gpt2_onnx("-o", str(tmp_path / "x.onnx"), "--heads", "3")
    assert odd.exit_code == 2
    assert "do not divide" in odd.output
    nowhere = gpt2_onnx("-o", str(tmp_path / "no" / "x.onnx"), *SMALL)
    assert nowhere.exit_code == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_phases_benchmark(tmp_path: Path) -> None:
    figures = tmp_path / "phases.json"
    arguments = ["--budget", "range:1.0", "--json", str(figures), "--check"]
    done = python("benchmarks/phases.py", *SMALL, *arguments)
    assert done.returncode == 0, done.stderr
    seconds = json.loads(figures.read_text())["seconds"]
    assert {"capture", "lower", "costs", "plan", "verify", "save", "total"} <= set(seconds)
    assert sum(s for name, s in seconds.items() if name != "total") <= seconds["total"] * 1.01


@pytest.mark.slow
def test_plans_of_planners_run(tmp_path: Path) -> None:
    """12 layers at half of the bytes: equal bits, and the measured peak within the budget.
    `multichain` runs on towers, which it is made for."""
    figures = tmp_path / "executed.json"
    planners = "dtr,rotor,multichain"
    arguments = ["--planners", planners, "--no-peers", "--rounds", "1", "--time-limit", "3"]
    done = python("benchmarks/executed.py", *arguments, "--check", "--json", str(figures))
    assert done.returncode == 0, done.stdout + done.stderr
    plans = json.loads(figures.read_text())["plans"]
    assert [p["planner"] for p in plans] == planners.split(",")
    for plan in plans:
        assert plan["bit_equal"]
        assert plan["measured_bytes"] <= plan["budget_bytes"]
        assert plan["model"] == ("towers" if plan["planner"] == "multichain" else "gpt2-12")
        assert plan["predicted"] > 1.0


@pytest.mark.slow
def test_tools_are_compared(tmp_path: Path) -> None:
    """Every tool runs, with the gradients of ordinary autograd; ours within the bytes of it."""
    table, page, figures = (tmp_path / name for name in ("c.md", "c.html", "c.json"))
    shape = ["--layers", "2", "--width", "32", "--seq", "32", "--vocab", "64", "--batch", "4"]
    written = ["-o", str(table), "--html", str(page), "--json", str(figures)]
    done = python("benchmarks/compare.py", *shape, "--planners", "dtr", "--rounds", "2", *written)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {r["name"]: r for r in json.loads(figures.read_text())["rows"]}
    eager = rows["ordinary autograd"]
    for name in ("checkpoint per block", "checkpoint per √L blocks", "save_on_cpu"):
        assert rows[name]["difference"] == 0, name
        assert name in table.read_text()
        assert name in page.read_text()
    ours = [r for name, r in rows.items() if name.startswith("remat-compile")]
    assert ours
    assert all(r["difference"] == 0 and r["bytes"] < eager["bytes"] for r in ours)
    assert any(name.startswith("torch.compile") for name in rows)
    assert rows["jax.checkpoint per block"]["difference"] < 1e-3


@pytest.mark.slow
def test_the_first_hour() -> None:
    done = python("examples/first_hour.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("bit-equal to ordinary") >= 3
    assert "0 wrong" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [(), ("--bf16",)], ids=str)
def test_train_transformers(arguments: tuple[str, ...]) -> None:
    pytest.importorskip("transformers", reason="needs transformers")
    pytest.importorskip("accelerate", reason="needs accelerate")
    done = python("examples/train_transformers.py", *arguments)
    assert done.returncode == 0, done.stderr
    assert "bit-equal to eager: True" in done.stdout


# -- In a real kernel -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_notebook_shows_plans() -> None:
    notebook = nbformat.read(ROOT / "examples/plan.ipynb", 4)
    # What is slow says so under its cell from the beginning.
    slow = "from remat_compile.plans import progress\nprogress.SLOW_S = 0.0"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(slow))
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert {output["output_type"] for output in outputs} <= {"display_data", "execute_result"}
    lines = [o["data"] for o in outputs if o["output_type"] == "display_data"]
    assert len(lines) == 2, "one for the plan and one for the sweep"
    assert all(line == {"text/plain": ""} for line in lines), "each is gone once its work is over"
    plan, picture, size, sweep = (
        o["data"] for o in outputs if o["output_type"] == "execute_result"
    )
    assert "nothing recomputed" in plan["text/html"]
    assert "<svg" in plan["text/html"]
    assert plan["text/plain"].startswith("Plan(@plan by ")
    assert "<svg" in picture["image/svg+xml"]
    assert len(plan["text/html"]) < 150_000 < int(size["text/plain"])
    assert sweep["text/plain"] == "Sweep(3 cells, 3 planned)"
    assert "<svg" in sweep["image/svg+xml"]
