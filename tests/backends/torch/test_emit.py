"""The generated source: golden text, names, and what the borders carry."""

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

from helpers.emitted.tiny import Tiny, replayable, schedule, tiny
from helpers.models import SMALL
from helpers.slow import default_only
from remat_compile.backends.python.layout import WIDTH, fitted
from remat_compile.backends.torch import build, emit
from remat_compile.backends.torch.code.interface import saved_at_loss
from remat_compile.capture.torch import export, lower
from remat_compile.ir.analysis.order import capture_order, frees_after_last_use
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Compute, Schedule
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("again", [False, True], ids=["store_all", "recompute_all"])
def test_golden(again: bool, golden: Callable[[Path, str], None]) -> None:
    program = tiny()
    plan = schedule(program, replayable(program) if again else ())
    simulate(program, plan)
    name = f"tiny_{'recompute_all' if again else 'store_all'}.py"
    source = emit(program, plan)
    golden(GOLDEN / name, source if again else source.partition("\nDEVICE = ")[0])


def test_the_source_that_runs_is_the_source_that_is_shown() -> None:
    with lower(export(Tiny(), (torch.zeros(2, 4),))) as lowered:
        program = lowered.program
        module = build(lowered, schedule(program, replayable(program)))
    tree = ast.parse(module.planned_source)
    assert {n.name for n in tree.body if isinstance(n, ast.FunctionDef)} == {
        "replay",
        "forward",
        "backward",
    }


def test_saved_is_what_the_backward_reads_before_writing_it() -> None:
    program = tiny()
    stored = set(saved_at_loss(program, schedule(program, ())))
    recomputed = set(saved_at_loss(program, schedule(program, replayable(program))))
    kinds = {program.graph.anode[name].kind for name in recomputed}
    assert kinds <= {"param", "input", "rng", "output"}
    assert any(program.graph.anode[name].kind == "phantom" for name in stored)


def test_every_bound_name_is_freed_or_returned() -> None:
    """No variable outlives its last use: each activation is deleted where it is freed."""
    program = tiny()
    plan = schedule(program, ())
    tree = ast.parse(emit(program, plan))
    (backward,) = [n for n in tree.body if getattr(n, "name", "") == "backward"]
    deleted = {
        target.id
        for node in ast.walk(backward)
        if isinstance(node, ast.Delete)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for a in program.graph.anodes:
        if a.kind in ("phantom", "grad", "tangent"):
            assert a.name in deleted


def test_a_name_that_is_no_python_variable() -> None:
    text = """fbir 1
captured device cpu threads 1 torch "2.13.0" costs none
target "cpu" { granularity 1 }
graph @odd {
  %lambda : param f32[2] bytes 8
  %torch : input f32[2] bytes 8
  %args : output f32[2] bytes 8
  %dy : tangent f32[2] bytes 8
  %dw : param_grad f32[2] bytes 8
  F1: fwd %args = aten.mul.Tensor(%torch, %lambda)
  L: loss %dy = loss(%args)
  B1: bwd %dw = aten.mul.Tensor(%dy, %torch) of F1
}
bind {
  arg "args[0]" = %torch
  param "lambda" = %lambda grad %dw
  result %args tangent %dy
  grads fresh
}
"""
    program = parse_program(text)
    order = frees_after_last_use(program.graph, capture_order(program.graph))
    source = emit(program, Schedule("p", "by hand", order))
    space: dict[str, object] = {}
    exec(compile(source, "odd", "exec"), space)
    run = space["forward"]
    assert callable(run)
    with torch.no_grad():
        result = run([torch.ones(2) * 3, torch.ones(2) * 2])
    assert torch.equal(result[0], torch.ones(2) * 6)


def test_an_operator_that_does_not_exist() -> None:
    program = tiny()
    text = (Path(__file__).parent / "missing_operator.fbir").read_text()
    program = parse_program(text)
    order = frees_after_last_use(program.graph, capture_order(program.graph))
    with pytest.raises(FBError) as error:
        emit(program, Schedule("p", "by hand", order))
    assert error.value.diagnostics[0].code == "FB0901"


@pytest.mark.parametrize("name", default_only(["two", "resnet", "gpt"], ["two", "resnet"]))
def test_a_computation_replayed_alone(name: str) -> None:
    """One cNode in each third of the forward runs again just after the loss."""
    module, args, _ = SMALL[name](torch.float64)
    exported = export(module, args)
    values = {p: v.detach() for p, v in module.named_parameters()}
    with lower(exported) as lowered:
        candidates = replayable(lowered.program)
    for turn in range(1, len(candidates), len(candidates) // 3):
        with lower(exported) as lowered:
            program = lowered.program
            again = candidates[turn : turn + 1]
            plan = schedule(program, again)
            assert sum(isinstance(s, Compute) and [s.cnode] == again for s in plan.steps) == 2
            drop_in = build(lowered, plan)
        reference, _, _ = SMALL[name](torch.float64)
        assert all(torch.equal(p, values[n]) for n, p in reference.named_parameters())
        ours = _gradients(drop_in, args)
        theirs = _gradients(reference, args)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def _gradients(module: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    outputs = module(*args)
    leaves = outputs if isinstance(outputs, tuple) else (outputs,)
    total = torch.stack([leaf.square().sum() for leaf in leaves]).sum()
    return torch.autograd.grad(total, list(module.parameters()))


class Halves(nn.Module):
    """A split read in parts, its views transposed back and forth."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.lin(x).split(4, 1)
        return (a.t().t().detach() * b).sum()


def test_views_that_change_nothing_are_not_derived_and_a_split_runs_once() -> None:
    with lower(export(Halves(), (torch.ones(3, 4),))) as lowered:
        program = lowered.program
        source = emit(program, schedule(program, ()))
    source = source[: source.index("\nDEVICE = ")]
    forward, backward = source.split("def backward")
    assert forward.count("split_Tensor(") == 1
    assert backward.count("split_Tensor(") == 1
    assert ".detach()" not in source
    assert ".t()" in forward, "the transposed weight is another tensor"
    transposed = re.findall(r"(\w+) = (\w+)\.t\(\)", source)
    assert not {new for new, _ in transposed} & {old for _, old in transposed}, "t(t(x)) is x"


# -- Emitted PyTorch code as a file ---------------------------------------------------------------


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
    assert status == 1
    assert "nothing to compare: remat-compile run, asked for values, writes step.pt" in said
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
