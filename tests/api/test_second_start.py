"""The second start: without a capture, with the same bits, and never believed too much."""

from __future__ import annotations

import copy
import enum
import errno
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.models import MODELS
from helpers.slow import default_only
from helpers.starts import Net, compiled, edit, entry
from helpers.training import assert_bit_equal, train_steps
from remat_compile import FBError
from remat_compile.backends.torch import measure_step
from remat_compile.driver.plan_cache import COSTS_SUFFIX, VARIABLE
from remat_compile.driver.start.entry import SUFFIX

ROOT = Path(__file__).parents[2]


def test_a_model_is_captured_once(folder: Path, captures: list[object]) -> None:
    torch.manual_seed(0)
    first = compiled(Net())
    second = compiled(Net())
    assert len(captures) == 1
    steps = first.planned_step, second.planned_step
    assert steps[0].schedule == steps[1].schedule
    assert steps[0].program.graph == steps[1].program.graph
    assert steps[0].source == steps[1].source


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("gpt", "resnet") else pytest.mark.slow)
        for name in ("mlp", "gpt", "llama-loss", "resnet", "unet", "vit", "two", "encdec-loss")
    ],
)
def test_a_step_that_was_not_captured_trains_as_eager(
    name: str, folder: Path, captures: list[object]
) -> None:
    model, args, kwargs = MODELS[name](torch.float32)
    options: dict[str, Any] = {"activation_budget": "80%", "planner": "dtr"}
    peaks = []
    for _ in range(2):
        ours = remat_compile.compile(copy.deepcopy(model), args, kwargs, **options)
        runs = train_steps(ours, args, kwargs), train_steps(copy.deepcopy(model), args, kwargs)
        assert_bit_equal(*runs)
        peaks.append(ours.planned_step.program.graph)
    assert len(captures) == (2 if name == "two" else 1)  # a result of it is a view
    assert peaks[0] == peaks[1]


SCRIPT = """
import hashlib, sys
import torch
import net
import remat_compile

torch.manual_seed(0)
model, x = net.Net(), torch.randn(16, 8)
ours = remat_compile.compile(model, (x,), activation_budget="70%", planner="dtr")
is_captured = "torch.export._trace" in sys.modules or "torch._dynamo" in sys.modules
out = ours(x)
out.sum().backward()
bits = b"".join(t.detach().numpy().tobytes() for t in (out, *(p.grad for p in ours.parameters())))
print(is_captured, hashlib.sha256(bits).hexdigest())
"""
FILE = """
import torch
from torch import nn
SCALE = 1.0
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x)) * SCALE
        return x
"""


def in_a_process(folder: Path) -> list[str]:
    """Whether it captured, and a digest of its results and gradients."""
    done = subprocess.run(
        [sys.executable, "run.py"], cwd=folder, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "FB0523" not in done.stderr
    return done.stdout.split()


def test_another_process_captures_nothing(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "net.py").write_text(FILE)
    (tmp_path / "run.py").write_text(SCRIPT)
    first, second = in_a_process(tmp_path), in_a_process(tmp_path)
    assert first[0] == "True"
    assert second == ["False", first[1]]


def test_processes_that_start_at_once_share_what_they_keep(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "net.py").write_text(FILE)
    (tmp_path / "run.py").write_text(SCRIPT)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(in_a_process, [tmp_path] * 2)
    assert first[1] == second[1]
    assert sorted(path.suffix for path in folder.iterdir()) == [COSTS_SUFFIX, ".remat-plan", SUFFIX]
    assert in_a_process(tmp_path) == ["False", first[1]]


def test_a_cache_on_a_disk_that_is_read_only(
    folder: Path, captures: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(Net())

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("utime", "replace", "mkdir", "unlink", "chmod"):
        monkeypatch.setattr(os, name, refuse)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(Net())
    assert len(captures) == 1


@pytest.mark.slow
def test_another_process_captures_what_was_edited(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "run.py").write_text(SCRIPT)
    for scale in ("1.0", "0.25"):  # of another length: Python keeps bytecode by second and size
        (tmp_path / "net.py").write_text(FILE.replace("SCALE = 1.0", f"SCALE = {scale}"))
        assert in_a_process(tmp_path)[0] == "True"


def test_what_changes_is_captured_again(folder: Path, captures: list[object]) -> None:
    compiled(Net())
    other = Net()
    other.scale = 0.5
    x = torch.randn(16, 8)
    ours = compiled(other, x)
    assert len(captures) == 2
    assert torch.equal(ours(x), other(x))


def test_guards_hold_on_a_second_start(folder: Path, captures: list[object]) -> None:
    compiled(Net())
    model = Net()
    ours = compiled(model)
    assert len(captures) == 1
    with pytest.raises(FBError, match="argument 0"):
        ours(torch.ones(3, 8))
    model.scale = 2.0
    ours.scale = 2.0
    with pytest.raises(FBError, match=r"scale is 2\.0, not 1\.0"):
        ours(torch.ones(16, 8))


def test_what_autograd_asks_of_a_step(folder: Path, captures: list[object]) -> None:
    x = torch.randn(16, 8)
    compiled(Net(), x)
    model = Net()
    ours, eager = compiled(model, x), copy.deepcopy(model)
    assert len(captures) == 1
    out = ours(x)
    out.sum().backward(retain_graph=True)
    out.sum().backward()
    for _ in range(2):
        eager(x).sum().backward()
    assert all(
        torch.equal(a.grad, b.grad)
        for a, b in zip(ours.parameters(), eager.parameters(), strict=True)
    )
    out = ours(x)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    with pytest.raises(FBError) as refused:
        torch.autograd.grad(ours(x).sum(), [*model.parameters()], create_graph=True)
    assert [d.code for d in refused.value.diagnostics] == ["FB0949"]


def test_a_gradient_in_another_layout(folder: Path, captures: list[object]) -> None:
    x = torch.randn(16, 8)
    grads = []
    torch.manual_seed(0)
    state = Net().state_dict()
    for make in (compiled, compiled, lambda model, _: model):
        model = Net()
        model.load_state_dict(state)
        ours = make(model, x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours(x).backward(torch.linspace(0, 1, 128).reshape(8, 16).t())
        grads.append([p.grad for p in model.parameters()])
    assert len(captures) == 1
    for first, second, eager in zip(*grads, strict=True):
        assert torch.equal(second, first)
        assert torch.equal(second, eager)


def test_the_bytes_are_those_of_a_captured_step(folder: Path, captures: list[object]) -> None:
    x = torch.randn(512, 8)
    used = [replace(measure_step(compiled(Net(), x), (x,)), time_s=0) for _ in range(2)]
    assert len(captures) == 1
    assert used[1].measured_bytes <= used[1].predicted_bytes == used[0].predicted_bytes
    assert abs(used[1].measured_bytes - used[0].measured_bytes) <= 64


def test_hooks_of_the_model_run_as_often_as_without_a_cache(folder: Path) -> None:
    inputs = []
    for cache in (False, True, True):
        model, x = Net(), torch.ones(16, 8)
        model.register_forward_pre_hook(_doubling)
        compiled(model, x, cache=cache)
        inputs.append(x[0, 0].item())
    assert inputs[1:] == inputs[:1] * 2


def _doubling(_: nn.Module, given: tuple[Tensor]) -> None:
    given[0].mul_(2)


def _other_op(start: dict[str, Any]) -> None:
    start["plan"] = start["plan"].replace("aten.tanh.default", "aten.no_such.default")


def _other_width(start: dict[str, Any]) -> None:
    start["plan"] = start["plan"].replace("[8, 8]", "[8, 9]")


def _freed_too_early(start: dict[str, Any]) -> None:
    lines = start["plan"].splitlines()
    at = next(i for i, line in enumerate(lines) if line.strip().startswith("free"))
    del lines[at]
    start["plan"] = "\n".join(lines) + "\n"


DAMAGE: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_text(""),
    "cut": lambda path: path.write_text(path.read_text()[:100]),
    "flipped": lambda path: path.write_text(path.read_text().replace("tanh", "sinh")),
    "list": lambda path: path.write_text("[]"),
    "writable": lambda path: path.chmod(0o666),
    "no such operator": lambda path: edit(path, _other_op),
    "other widths": lambda path: edit(path, _other_width),
    "not a plan": lambda path: edit(path, _freed_too_early),
    "constants": lambda path: edit(path, lambda s: s.update(constants=[["c", "f32", [1], "00"]])),
    "tangents": lambda path: edit(path, lambda s: s.update(tangents=[[1], [2]])),
    "tangents of another rank": lambda path: edit(path, lambda s: s.update(tangents=[[1]])),
}


@pytest.mark.parametrize("name", default_only(DAMAGE, ("empty", "no such operator")))
def test_a_damaged_entry_is_told_once_and_written_again(
    name: str, folder: Path, captures: list[object]
) -> None:
    compiled(Net())
    before = entry(folder).read_text()
    DAMAGE[name](entry(folder))
    with pytest.warns(UserWarning, match=rf"(?s)FB0523.*{SUFFIX} is not used"):
        compiled(Net())
    assert len(captures) == 2
    assert entry(folder).read_text() == before
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(Net())
    assert len(captures) == 2


@pytest.mark.skipif(os.name != "posix", reason="rights of files")
def test_nobody_else_may_write_to_an_entry_at_any_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = []
    inner = os.replace

    def seen(made: str, target: Path) -> None:
        modes.append(os.stat(made).st_mode & 0o777)
        inner(made, target)

    monkeypatch.setattr(os, "replace", seen)
    before = os.umask(0o002)
    try:
        compiled(Net())
    finally:
        os.umask(before)
    assert set(modes) == {0o600}


def test_an_entry_that_cannot_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "plans"))
    with pytest.warns(UserWarning, match=r"FB0523.*is not kept"):
        compiled(Net())


class Way(enum.Enum):
    SINE = 1
    COSINE = 2


class Shape:
    def __init__(self, way: Way) -> None:
        self.way = way


class ByObjects(nn.Module):
    def __init__(self, way: Way, act: Callable[[Tensor], Tensor] = torch.tanh) -> None:
        super().__init__()
        self.lin, self.shape, self.act = nn.Linear(8, 8), Shape(way), act

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.lin(x))
        return x.sin() if self.shape.way is Way.SINE else x.cos()


def test_another_object_than_at_capture_is_captured_again(
    folder: Path, captures: list[object]
) -> None:
    first = compiled(ByObjects(Way.SINE), activation_budget="100%")
    again: Any = compiled(ByObjects(Way.SINE), activation_budget="100%")
    assert len(captures) == 1
    compiled(ByObjects(Way.COSINE), activation_budget="100%")
    compiled(ByObjects(Way.SINE, torch.relu), activation_budget="100%")
    assert len(captures) == 3
    x = torch.ones(16, 8)
    assert first.planned_step.source == again.planned_step.source
    again.shape = Shape(Way.SINE)
    again(x)
    again.shape.way = Way.COSINE
    with pytest.warns(UserWarning, match=r"FB0528.*shape\.way is Way\.COSINE, not Way\.SINE"):
        again(x)
    again.act = torch.relu
    with pytest.raises(FBError, match="act is function relu, not function tanh"):
        again(x)
