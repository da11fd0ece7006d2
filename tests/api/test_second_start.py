"""The second start: without a capture, with the same bits, and never believed too much."""

from __future__ import annotations

import copy
import errno
import hashlib
import json
import os
import random
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
from helpers.training import assert_bit_equal, train_steps
from remat_compile import FBError, api
from remat_compile.backends.torch import measure_step
from remat_compile.driver.plan_cache import VARIABLE
from remat_compile.driver.start.entry import SUFFIX

ROOT = Path(__file__).parents[2]


class Net(nn.Module):
    def __init__(self, depth: int = 4, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)) * self.scale
        return x


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "plans"))
    return tmp_path / "plans"


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Models that were captured."""
    models: list[object] = []
    inner: Callable[..., Any] = api._source

    def counted(model: object, *rest: Any) -> Any:
        models.append(model)
        return inner(model, *rest)

    monkeypatch.setattr(api, "_source", counted)
    return models


def compiled(model: nn.Module, *args: Any, **options: Any) -> Any:
    chosen = {"activation_budget": "70%", "planner": "dtr", **options}
    return remat_compile.compile(model, args or (torch.ones(16, 8),), **chosen)


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
    assert sorted(path.suffix for path in folder.iterdir()) == [".remat-plan", SUFFIX]
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


class Counting(nn.Module):
    """Says what it does otherwise, for tests of Python state."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) * random.random()


def test_what_was_refused_is_refused_again(folder: Path) -> None:
    for _ in range(2):
        with pytest.raises(FBError) as refused:
            compiled(Counting(), torch.ones(2, 4))
        assert [d.code for d in refused.value.diagnostics] == ["FB0513"]
    assert not list(folder.glob(f"*{SUFFIX}"))


class Table:
    """A number that a key does not see: a slot of a metaclass instance is none."""

    chosen = 1


def _looked_up() -> int:
    return int(sys.modules[__name__].Table.chosen)  # type: ignore[attr-defined]


class Reading(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) * _looked_up()


def test_what_the_key_does_not_see_is_seen_in_what_is_computed(
    folder: Path, captures: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(2, 4)
    options = {"activation_budget": "100%"}
    compiled(Reading(), x, **options)
    compiled(Reading(), x, **options)
    assert len(captures) == 1
    monkeypatch.setattr(Table, "chosen", 3)
    model = Reading()
    ours = compiled(model, x, **options)
    assert torch.equal(ours(x), model(x))
    assert len(captures) == 2


class Literal(nn.Module):
    """Makes a tensor from a number that the key does not see."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) * torch.tensor([_looked_up(), 2.0, 3.0, 4.0])


def test_tensors_that_a_forward_makes_from_numbers(
    folder: Path, captures: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(2, 4)
    for chosen, count in ((1, 1), (1, 1), (3, 2)):
        monkeypatch.setattr(Table, "chosen", chosen)
        model = Literal()
        ours, eager = compiled(model, x, activation_budget="100%"), copy.deepcopy(model)
        for one in (ours, eager):
            one(x).square().sum().backward()
        assert torch.equal(model.a.weight.grad, eager.a.weight.grad)
        assert len(captures) == count


def test_constants_that_the_model_does_not_make(folder: Path, captures: list[object]) -> None:
    x = torch.randn(2, 4)
    compiled(Literal(), x, activation_budget="100%")

    def other(start: dict[str, Any]) -> None:
        (name, dtype, shape, bits), *rest = start["constants"]
        start["constants"] = [[name, dtype, shape, f"{bits[:-2]}42"], *rest]

    _edited(_entry(folder), other)
    with pytest.warns(UserWarning, match="FB0523.*it has other constants"):
        compiled(Literal(), x, activation_budget="100%")
    assert len(captures) == 2


class Tracing(nn.Module):
    """Computes for a capture what it does not compute on tensors that are of no use for it."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        if torch.compiler.is_compiling():
            return y
        if type(y).__name__ == "_Shadow":
            y.tolist()
        return y * _looked_up()


def test_a_branch_that_was_not_captured_stands_for_nothing(
    folder: Path, captures: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(2, 4)
    compiled(Tracing(), x, activation_budget="100%")
    monkeypatch.setattr(Table, "chosen", 3)
    model = Tracing()
    assert torch.equal(compiled(model, x, activation_budget="100%")(x), model(x))
    assert len(captures) == 2


class Masked(nn.Module):
    """Looks at numbers unless it is compiled, as the masks of `transformers` do."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and bool((x[:, -1] == 0).all()):
            return self.a(x)
        return torch.tanh(self.a(x))


def test_a_forward_that_looks_at_numbers_unless_compiled_starts_again(
    folder: Path, captures: list[object]
) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4)
    model = Masked()
    for _ in range(2):
        assert torch.equal(compiled(model, x, activation_budget="100%")(x), model(x))
    assert len(captures) == 1


class Config:
    """Of a model, for what its forward finds out at the first call."""

    def __init__(self) -> None:
        self.kind: object = None
        self.calls = 0


class Classifying(nn.Module):
    """Sets what its configuration leaves open, as those of `transformers` set the kind of problem
    from the labels."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.config = Config()

    def forward(self, x: Tensor) -> Tensor:
        if self.config.kind is None:
            self.config.kind = "single" if x.dtype == torch.float32 else "multi"
        return self.a(x) if self.config.kind == "single" else self.a(x).tanh()


def test_a_forward_that_sets_what_is_not_there_yet_starts_again(
    folder: Path, captures: list[object]
) -> None:
    x = torch.randn(2, 4)
    for count in (1, 1, 2):
        model = Classifying()
        if count == 2:  # a model that would compute something else is another one
            model.config.kind = "multi"
        ours, eager = compiled(model, x, activation_budget="100%"), copy.deepcopy(model)
        assert model.config.kind == ("multi" if count == 2 else "single")
        assert torch.equal(ours(x), eager(x))
        assert len(captures) == count


class Calling(Classifying):
    def forward(self, x: Tensor) -> Tensor:
        self.config.calls += 1
        return super().forward(x)


def test_a_forward_that_leaves_another_model_each_time_is_captured(
    folder: Path, captures: list[object]
) -> None:
    for _ in range(2):
        compiled(Calling(), torch.randn(2, 4), activation_budget="100%")
    assert len(captures) == 2
    assert not list(folder.glob(f"*{SUFFIX}"))


class Remembering(Classifying):
    def forward(self, x: Tensor) -> Tensor:
        if self.config.kind is None:
            self.config.kind = _looked_up()
        return self.a(x)


def test_a_forward_that_sets_something_else_than_it_did_is_captured(
    folder: Path, captures: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(2, 4)
    for chosen, count in ((1, 1), (1, 1), (3, 2)):
        monkeypatch.setattr(Table, "chosen", chosen)
        model = Remembering()
        compiled(model, x, activation_budget="100%")
        assert model.config.kind == chosen
        assert len(captures) == count


class Pooled(nn.Module):
    """PyTorch gives what one adaptive pooling to a single place returns other strides in place."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.pool = nn.AdaptiveAvgPool1d(1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = self.pool(self.a(x).transpose(1, 2))
        assert pooled.stride() == (4, 1, 4)
        return pooled.flatten(1).tanh()


def test_operators_that_change_strides_in_place(folder: Path, captures: list[object]) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 4)
    for _ in range(2):
        model = Pooled()
        ours, eager = compiled(model, x, activation_budget="100%"), copy.deepcopy(model)
        assert_bit_equal(train_steps(ours, (x,), {}), train_steps(eager, (x,), {}))
    assert len(captures) == 1


def test_numbers_that_send_eager_another_way_are_seen_at_the_second_start(
    folder: Path, captures: list[object]
) -> None:
    model, x = Masked(), torch.randn(2, 4)
    compiled(model, x, activation_budget="100%")
    x[:, -1] = 0
    with pytest.raises(FBError, match="FB0512"):
        compiled(model, x, activation_budget="100%")
    assert len(captures) == 2


def _is_equal(x: Tensor) -> bool:
    return torch.equal(x, torch.ones_like(x))


def _is_one_in_numpy(x: Tensor) -> bool:
    return bool(x.detach().numpy()[0, 0] == 1)


def _is_written_with_ones(x: Tensor) -> bool:
    return "-1" not in str(x)


class Hiding(nn.Module):
    """Hides that it asks for numbers: what it then does is no way of eager."""

    def __init__(self, asks: Callable[[Tensor], bool]) -> None:
        super().__init__()
        self.a, self.asks = nn.Linear(4, 4), asks

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.a(x)
        try:
            return y if self.asks(x) else 2 * y
        except Exception:
            return y


@pytest.mark.parametrize("asks", [_is_equal, _is_one_in_numpy, _is_written_with_ones])
def test_a_forward_that_hides_that_it_asks_for_numbers_is_captured(
    asks: Callable[[Tensor], bool], folder: Path, captures: list[object]
) -> None:
    model, x = Hiding(asks), torch.ones(2, 4)
    assert torch.equal(compiled(model, x, activation_budget="100%")(x), model(x))
    with pytest.raises(FBError, match="FB0512"):
        compiled(model, -x, activation_budget="100%")
    assert len(captures) == 2


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


def _entry(folder: Path) -> Path:
    (entry,) = folder.glob(f"*{SUFFIX}")
    return entry


def _edited(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """The file with another content, and a digest that fits."""
    held = json.loads(path.read_text())
    start = json.loads(held["start"])
    change(start)
    held["start"] = json.dumps(start)
    held["sha256"] = hashlib.sha256(held["start"].encode()).hexdigest()
    path.write_text(json.dumps(held))
    path.chmod(0o600)


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
    "no such operator": lambda path: _edited(path, _other_op),
    "other widths": lambda path: _edited(path, _other_width),
    "not a plan": lambda path: _edited(path, _freed_too_early),
    "constants": lambda path: _edited(
        path, lambda s: s.update(constants=[["c", "f32", [1], "00"]])
    ),
    "tangents": lambda path: _edited(path, lambda s: s.update(tangents=[[1], [2]])),
    "tangents of another rank": lambda path: _edited(path, lambda s: s.update(tangents=[[1]])),
}


@pytest.mark.parametrize("name", default_only(DAMAGE, ("empty", "no such operator")))
def test_a_damaged_entry_is_told_once_and_written_again(
    name: str, folder: Path, captures: list[object]
) -> None:
    compiled(Net())
    before = _entry(folder).read_text()
    DAMAGE[name](_entry(folder))
    with pytest.warns(UserWarning, match=rf"(?s)FB0523.*{SUFFIX} is not used"):
        compiled(Net())
    assert len(captures) == 2
    assert _entry(folder).read_text() == before
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
