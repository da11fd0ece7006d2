"""Emitted PyTorch code as a file: what it looks like, and what it says when it is run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.models import SMALL
from remat_compile.backends.python.layout import WIDTH, fitted
from remat_compile.backends.torch import emit
from remat_compile.capture.torch import export, lower
from remat_compile.ir.analysis.order import capture_order, frees_after_last_use
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Schedule


class Net(nn.Module):
    """Dropout and batch normalisation, so that the seed and the buffers count too."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(nn.functional.dropout(self.norm(self.first(x)), 0.5))
        return out


def emitted(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> str:
    with lower(export(module, args, kwargs or {})) as lowered:
        return source_of(lowered.program)


def source_of(program: Program) -> str:
    order = frees_after_last_use(program.graph, capture_order(program.graph))
    return emit(program, Schedule("plan", "store-all", order))


@cache
def net() -> tuple[str, dict[str, dict[str, Tensor]]]:
    """The code of a net, and one step of the net itself."""
    torch.manual_seed(1)
    module, x = Net(), torch.randn(4, 8)
    source = emitted(module, (x,))
    stored = {
        "param": {name: p.detach().clone() for name, p in module.named_parameters()},
        "buffer": {name: b.clone() for name, b in module.named_buffers()},
        "arg": {"0": x},
        "tangent": {"0": torch.randn(4, 3)},
    }
    torch.manual_seed(0)
    out = module(x)
    out.backward(stored["tangent"]["0"])
    stored["output"] = {"0": out.detach()}
    stored["grad"] = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    stored["new_buffer"] = dict(module.named_buffers())
    return source, stored


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs the net's code as a script in this process; its exit status and what it says."""

    def run(values: object = None) -> tuple[int, str]:
        path = tmp_path / "step.py"
        monkeypatch.setattr(sys, "argv", [str(path)])
        if values is not None:
            torch.save(values, path.with_suffix(".pt"))
        space = {"__name__": "step", "__file__": str(path)}
        exec(compile(net()[0], str(path), "exec"), space)
        status = space["main"]()  # type: ignore[operator]
        return status, capsys.readouterr().out

    return run


def test_alone_it_makes_up_its_tensors(run: Callable[..., tuple[int, str]]) -> None:
    status, said = run()
    assert status == 0
    assert re.search(r"peak: \d+ bytes measured, \d+ planned\n", said)
    assert "outputs and gradients: 0 wrong, 0 compared" in said


def test_the_step_is_the_models_own_to_the_bit(run: Callable[..., tuple[int, str]]) -> None:
    status, said = run(net()[1])
    assert status == 0, said
    assert "outputs and gradients: 0 wrong, 10 compared with step.pt" in said


def test_a_state_dict_is_loaded(run: Callable[..., tuple[int, str]]) -> None:
    state = Net().state_dict()
    state["first.weight"][0, 0] = float("nan")
    status, said = run(state)
    assert status == 1
    assert "output 0 is not finite" in said


@pytest.mark.parametrize(
    ("kind", "name"), [("grad", "last.bias"), ("new_buffer", "norm.running_var")]
)
def test_another_value_is_told(kind: str, name: str, run: Callable[..., tuple[int, str]]) -> None:
    stored = {k: dict(tensors) for k, tensors in net()[1].items()}
    stored[kind][name] = stored[kind][name] + 1e-6
    status, said = run(stored)
    assert status == 1
    assert f"{kind} {name} is not as stored\noutputs and gradients: 1 wrong, 10 compared" in said


def test_a_tensor_of_another_shape_is_refused(run: Callable[..., tuple[int, str]]) -> None:
    with pytest.raises(SystemExit, match=r"param first.bias is torch.float32\[3\], not .*\[16\]"):
        run({"param": {"first.bias": torch.ones(3)}})


def test_it_runs_where_only_pytorch_is(tmp_path: Path) -> None:
    path = tmp_path / "step.py"
    path.write_text(net()[0], encoding="utf-8")
    torch.save(net()[1], tmp_path / "values.pt")
    command = [sys.executable, "-I", str(path), str(tmp_path / "values.pt")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    assert "0 wrong, 10 compared with values.pt" in ran.stdout


def test_lines_can_be_read() -> None:
    module, args, kwargs = SMALL["gpt"](torch.float32)
    source = emitted(module, args, kwargs)
    assert max(map(len, source.splitlines())) <= WIDTH
    functions = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef)]
    for node in (n for function in functions for n in ast.walk(function)):
        # What a function takes and gives stands one a line; no other tuple is long.
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            assert len(node.targets[0].elts) <= 8
    names = [name for name, _ in module.named_parameters()]
    assert all(f"  # {name}" in source for name in names)
    assert "# for the backward" in source
    assert ast.get_docstring(ast.parse(source))


@pytest.mark.parametrize(
    "statement",
    [
        "y = f(x)",
        f"(a, b,) = f({', '.join(f'argument_{i}' for i in range(20))})",
        f"({', '.join(f'result_{i}' for i in range(20))},) = f(x, [1, 2])[:20]",
        f"y = f({', '.join(f'argument_{i}' for i in range(12))}, 'a, (b', [1, (2,)], k=g(1, 2))",
        f"y = ({' + '.join(f'size_{i}' for i in range(20))})",
        f"{'x' * 70} = torch.ops.{'y' * 70}",
        f"y = f({' * '.join(f'size_{i}' for i in range(20))})",
    ],
)
def test_a_broken_line_means_the_same(statement: str) -> None:
    lines = fitted(statement, "    ")
    assert all(line.startswith("    ") for line in lines)
    again = ast.parse("\n".join(line[4:] for line in lines))
    assert ast.dump(again) == ast.dump(ast.parse(statement))
    if " + " not in statement and " * " not in statement:  # a sum is not broken
        assert max(map(len, lines)) <= WIDTH
