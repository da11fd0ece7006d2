"""Second starts of forwards that do what no key sees: numbers, other Python, what they set."""

from __future__ import annotations

import copy
import importlib.util
import os
import random
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.starts import compiled, edit, entry
from helpers.training import assert_bit_equal, train_steps
from remat_compile import FBError
from remat_compile.driver.start import code
from remat_compile.driver.start.entry import SUFFIX


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

    edit(entry(folder), other)
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


class Calls:
    """What it holds is not put back behind a capture, where it is kept in a queue."""

    def __init__(self) -> None:
        self.count = 0


class Calling(Classifying):
    def __init__(self) -> None:
        super().__init__()
        self.calls = deque([Calls()])

    def forward(self, x: Tensor) -> Tensor:
        self.calls[0].count += 1
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
    assert torch.equal(compiled(model, x, activation_budget="100%")(x), model(x))
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


class OfExactType(nn.Module):
    """Looks at numbers where it is given plain tensors, and nowhere else."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.a(x)
        is_plain = {
            "is": type(x) is Tensor and type(y) is Tensor,
            "in": type(self.a.weight) in (Tensor, nn.Parameter) and type(y) in (Tensor,),
            "class": y.__class__ is Tensor,
            "table": {Tensor: True}.get(type(y), False),
        }[self.kind]
        if is_plain and bool(x.sum() > 0):
            y = y * 3.0
        return y


@pytest.mark.parametrize("kind", ["is", "in", "class", "table"])
def test_a_forward_that_asks_for_the_type_before_it_looks(
    folder: Path, captures: list[object], kind: str
) -> None:
    """A capture's tensors are of another class, and so is not refused with these numbers."""
    model = OfExactType(kind)
    compiled(model, -torch.ones(2, 4), activation_budget="100%")
    with pytest.raises(FBError) as refused:  # and not a step that was captured for other numbers
        compiled(model, torch.ones(2, 4), activation_budget="100%")
    assert [d.code for d in refused.value.diagnostics] == ["FB0512"]
    assert len(captures) == 2


class TransposedNorm(nn.Module):
    """A result that is viewed, which tracing by itself would take for transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.a(x).transpose(1, 2))
        return torch.tanh(y.view(x.shape[0], -1))


def test_layouts_of_real_kernels_start_again(folder: Path, captures: list[object]) -> None:
    x = torch.randn(3, 5, 4)
    model = TransposedNorm()
    eager = copy.deepcopy(model)
    for _ in range(2):
        ours = compiled(copy.deepcopy(model), x, activation_budget="100%")
    assert len(captures) == 1
    assert_bit_equal(train_steps(eager, (x,)), train_steps(ours, (x,)))


OPERATOR = """
import torch

@torch.library.custom_op("remat_tests::{name}", mutates_args=())
def operator(x: torch.Tensor) -> torch.Tensor:
    return x.sin()

@operator.register_fake
def _(x):
    return torch.empty_like(x)

@torch.library.custom_op("remat_tests::{name}_backward", mutates_args=())
def backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return grad * x.cos()

@backward.register_fake
def _(grad, x):
    return torch.empty_like(grad)

operator.register_autograd(
    lambda ctx, grad: backward(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)
"""


class CallsOperator(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.a, self.name = nn.Linear(4, 4), name

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = getattr(torch.ops.remat_tests, self.name)(self.a(x))
        return made * x


def _registered(path: Path, name: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(OPERATOR.format(name=name))
    spec = importlib.util.spec_from_file_location(f"of_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    OPERATORS.append(module)
    spec.loader.exec_module(module)


OPERATORS: list[object] = []
"""PyTorch forgets an operator whose definition nobody holds."""


LIBRARIES = vars(code)["is_library"].__globals__
"""Of the module that says what is installed."""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose code counts as installed."""
    folders = (*LIBRARIES["_folders"](), f"{tmp_path / 'installed'}{os.sep}")
    monkeypatch.setitem(LIBRARIES, "_folders", lambda: folders)
    return tmp_path / "installed"


def test_an_operator_of_an_installed_library_starts_again(
    installed: Path, folder: Path, captures: list[object]
) -> None:
    _registered(installed / "library.py", "of_library")
    x = torch.randn(8, 4)
    for _ in range(2):
        torch.manual_seed(0)
        model = CallsOperator("of_library")
        ours = compiled(copy.deepcopy(model), x, activation_budget="100%")
        assert_bit_equal(train_steps(ours, (x,), {}), train_steps(model, (x,), {}))
    assert len(captures) == 1
    with (installed / "library.py").open("a") as file:
        file.write("# another version\n")
    LIBRARIES["stamp"].cache_clear()
    compiled(CallsOperator("of_library"), x, activation_budget="100%")
    assert len(captures) == 2


def test_an_operator_of_the_users_own_is_captured_each_time(
    tmp_path: Path, folder: Path, captures: list[object]
) -> None:
    _registered(tmp_path / "mine" / "operators.py", "of_user")
    for _ in range(2):
        compiled(CallsOperator("of_user"), torch.randn(8, 4), activation_budget="100%")
    assert len(captures) == 2
