"""What is written: a module that runs alone, with its values beside it; or nothing."""

from __future__ import annotations

import ast
import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import jax
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.jax.plans import run_python
from remat_compile import FBError, Plan
from remat_compile.backends.jax.emit.template import CHECK
from remat_compile.backends.jax.runtime.arrays import write_npz
from remat_compile.cli import main
from remat_compile.ir.expr import Const
from remat_compile.ir.graph import ANode, Call, CNode, Ref
from remat_compile.ir.schedule import Compute
from remat_compile.plans.files.files import write_together

GOLDEN = Path(__file__).parent / "golden"
NET = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.Dropout(0.5)) for _ in range(3)]
    return nn.Sequential(*layers, nn.BatchNorm1d(6)), (torch.randn(8, 6),)
"""


class Tiny(nn.Module):
    """A linear layer, a dropout and a batch norm: a view, a token and a replay form."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.bn = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.bn(self.drop(self.lin(x)).relu())
        return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and its plan, as the command line makes them."""
    path = tmp_path_factory.mktemp("files")
    (path / "net.py").write_text(NET)
    made = main(
        [
            f"{path}/net.py:make",
            "-o",
            f"{path}/plan.fbir",
            "-q",
            "--device",
            "cpu",
            "--planner",
            "periodic{segments=2}",
        ]
    )
    assert made == 0
    return path


@pytest.fixture(scope="module")
def written(folder: Path) -> Path:
    words = ["--emit", "jax", "-o", f"{folder}/step.py", "-q", "--trust-source"]
    assert main([f"{folder}/plan.fbir", *words]) == 0
    return folder / "step.py"


@pytest.fixture(autouse=True)
def x64_as_before() -> Iterator[None]:
    before = jax.config.jax_enable_x64
    yield
    jax.config.update("jax_enable_x64", before)


def test_the_module_imports_only_jax_and_numpy(written: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(written.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    assert imported <= {"jax", "numpy", "sys", "pathlib"}


def test_the_module_checks_itself(written: Path, tmp_path: Path, capsys: Any) -> None:
    """Equal to PyTorch as it is; not once a value is another; and alone in a folder."""
    alone = tmp_path / "step.py"
    shutil.copy(written, alone)
    shutil.copy(written.with_suffix(".npz"), alone.with_suffix(".npz"))
    done = run_python(alone)
    assert done.returncode == 0, done.stderr
    assert "grad: largest difference" in done.stdout
    with np.load(alone.with_suffix(".npz")) as file:
        stored = {name: file[name] for name in file.files}
    (name,) = (n for n in stored if n.startswith("grad|0.0.weight"))
    stored[name] = stored[name] * 1.01
    np.savez(alone.with_suffix(".npz"), **stored)
    assert run_here(alone) == 1
    assert "not as stored" in capsys.readouterr().out


def run_here(script: Path) -> Any:
    """The exit code of what a user would start; in this process JAX is loaded already."""
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    return ended.value.code


def test_the_plan_in_the_file_is_written_not_another(written: Path, folder: Path) -> None:
    text = written.read_text()
    assert "Planned by periodic{segments=2}" in text
    plan = remat_compile.load(folder / "plan.fbir")
    again = [name for name, n in plan.trace.executions.items() if n > 1]
    assert again
    assert all(f'"{name}#2"' in text for name in again)
    assert plan.emit("jax") == text


def test_golden(golden: Callable[[Path, str], None]) -> None:
    plan = remat_compile.plan(
        Tiny(), (torch.zeros(2, 4),), planner="periodic{segments=1}", costs="roofline", device="cpu"
    )
    source = plan.emit("jax")
    body = source[source.index("def forward(") : source.index("@jax.custom_vjp")]
    golden(GOLDEN / "tiny_periodic.txt", body.rstrip() + "\n")


BAD = {
    "standard output": (["-o", "-"], "FB0707"),
    "no .py file": (["-o", "step.txt"], "FB0707"),
    "no file": ([], "FB0707"),
    "missing model": (["-o", "step.py", "--model", "other.py:make"], "FB0701"),
    "unknown style": (["-o", "step.py", "--jax-style", "best"], "FB0707"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options(
    name: str, folder: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words, code = BAD[name]
    assert main([f"{folder}/plan.fbir", "--emit", "jax", *words, "-q"]) == 2
    assert f"error[{code}]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_jax_options_need_jax(folder: Path, capsys: Any) -> None:
    assert main([f"{folder}/plan.fbir", "-o", "x.fbir", "--jax-style", "explicit"]) == 2
    assert "only applies to code for JAX" in capsys.readouterr().err


def test_without_the_model_nothing_is_written(folder: Path, tmp_path: Path, capsys: Any) -> None:
    shutil.copy(folder / "plan.fbir", tmp_path / "plan.fbir")
    assert main([f"{tmp_path}/plan.fbir", "--emit", "jax", "-o", f"{tmp_path}/step.py"]) == 2
    assert "give --model" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["plan.fbir"]


def test_run_tells_what_xla_does(folder: Path, capsys: Any) -> None:
    code = main(["run", f"{folder}/plan.fbir", "--backend", "jax", "-q", "--trust-source"])
    out = capsys.readouterr().out
    assert code == 0, out
    for part in ("temporary memory", "products and convolutions", "lowered for CUDA"):
        assert part in out
    assert "times the predicted temporary memory" in out
    assert "largest difference from PyTorch" in out


def test_run_tells_of_merged_executions(
    folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = import_module("remat_compile.backends.jax.emit.module")
    monkeypatch.setattr(module, "barriers", lambda graph, schedule, shared: {})
    monkeypatch.setattr(module._Functions, "_border", lambda self, saved: None)
    words = ["run", f"{folder}/plan.fbir", "--backend", "jax", "-q", "--trust-source"]
    assert main(words) == 1
    assert "error[FB0945]" in capsys.readouterr().err  # the read-back misses the barriers
    readback = import_module("remat_compile.backends.jax.readback.explicit")
    monkeypatch.setattr(readback, "check_told_apart", lambda *args: None)
    assert main(words) == 1
    err = capsys.readouterr().err
    assert "error[FB0938]: XLA merged away" in err
    assert "compiler_options" in err


def test_a_parameter_may_have_a_bar_in_its_name(tmp_path: Path) -> None:
    stored = {"param": {"a|b": np.ones(2)}, "grad": {"|": np.zeros(3)}}
    with (tmp_path / "step.npz").open("wb") as file:
        write_npz(file, stored)
    space: dict[str, Any] = {"np": np, "jnp": jax.numpy, "KINDS": tuple(stored), "__name__": "step"}
    exec(compile(CHECK, "<check>", "exec"), space)
    loaded = space["load"](tmp_path / "step.npz")
    assert {kind: [*arrays] for kind, arrays in loaded.items()} == {"param": ["a|b"], "grad": ["|"]}


@pytest.mark.parametrize("version", [None, (0, 9, 2)])
def test_jax_missing_or_too_old(
    version: Any, folder: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if version is None:
        monkeypatch.setitem(sys.modules, "jax", None)
    else:
        monkeypatch.setattr(jax, "__version_info__", version)
    assert main([f"{folder}/plan.fbir", "--emit", "jax", "-o", f"{tmp_path}/step.py"]) == 1
    assert "error[FB0931]" in capsys.readouterr().err
    assert main(["run", f"{folder}/plan.fbir", "--backend", "jax"]) == 1
    assert list(tmp_path.iterdir()) == []


def altered(plan: Plan, *cnodes: CNode, anodes: tuple[ANode, ...] = ()) -> Plan:
    """The plan with computations put at its end, proven or not."""
    graph = plan.graph
    graph = replace(graph, cnodes=(*graph.cnodes, *cnodes), anodes=(*graph.anodes, *anodes))
    steps = (*plan.schedule.steps, *(Compute(c.name) for c in cnodes))
    schedule = replace(plan.schedule, steps=steps)
    program = replace(plan.program, graph=graph, schedules=(schedule,))
    return replace(plan, program=program, schedule=schedule, _is_proven=True)


def test_all_that_jax_cannot_do_is_told_at_once(folder: Path) -> None:
    plan = remat_compile.load(folder / "plan.fbir")
    argument = plan.program.binding.arguments[0].name
    made = [ANode(n, "grad", "f32", (Const(8), Const(6)), Const(192)) for n in ("n1", "n2", "n3")]
    wrong = altered(
        plan,
        CNode("X1", "bwd", ("n1",), Call("mylib.first.default", (Ref(argument),))),
        CNode("X2", "bwd", ("n2",), Call("mylib.second.default", (Ref(argument),))),
        CNode("U1", "opt", ("n3",), Call("aten.add.Tensor", (Ref(argument), 1))),
        anodes=tuple(made),
    )
    with pytest.raises(FBError) as error:
        wrong.emit("jax")
    assert [d.code for d in error.value.diagnostics] == ["FB0920", "FB0920", "FB0933"]
    text = str(error.value)
    assert "mylib.first.default" in text
    assert "used at X2" in text
    assert "U1" in text


def test_both_files_or_neither(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")

    def writes(data: bytes) -> Callable[[IO[bytes]], None]:
        def write(file: IO[bytes]) -> None:
            file.write(data)

        return write

    def fails(file: IO[bytes]) -> None:
        file.write(b"half")
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        write_together({tmp_path / "a": writes(b"new"), tmp_path / "b": fails})
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "old"}
    write_together({tmp_path / "a": writes(b"1"), tmp_path / "b": writes(b"2")})
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"a": "1", "b": "2"}
    (tmp_path / "d").mkdir()
    with pytest.raises(FBError, match="FB0703"):
        write_together({tmp_path / "a": lambda f: f.write(b"3"), tmp_path / "d": fails})  # type: ignore
    assert (tmp_path / "a").read_text() == "1"


def test_bfloat16_goes_through_the_file(tmp_path: Path) -> None:
    from remat_compile.plans.jax.source import write_module

    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).bfloat16()
    plan = remat_compile.plan(
        model,
        (torch.randn(3, 4, dtype=torch.bfloat16),),
        planner="periodic{segments=2}",
        costs="roofline",
        device="cpu",
    )
    assert plan._exported is not None
    values = write_module(plan.program, plan.schedule, plan._exported, tmp_path / "half.py")
    with np.load(values) as file:
        assert "param|0.weight|bfloat16" in file.files
        assert file["param|0.weight|bfloat16"].dtype == np.uint16
    assert run_here(tmp_path / "half.py") == 0
