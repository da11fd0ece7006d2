"""Python state that capture would freeze is refused with the model's line, or warned about."""

from __future__ import annotations

import logging
import random
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import remat_compile
from remat_compile.capture.torch import export, lower
from remat_compile.ir.diagnostics import FBError


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = 0
        self.table: Tensor | None = None
        self.generator = np.random.default_rng(0)


class DropPath(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if random.random() < 0.5 else x * self.linear.bias


class NumpyMask(Base):
    def forward(self, x: Tensor) -> Tensor:
        mask = np.random.rand(4).astype(np.float32)
        return self.linear(x) * torch.from_numpy(mask)


class OwnGenerator(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * float(self.generator.random())


class Schedule(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x) * min(1.0, self.calls / 10)


class Lazy(Base):
    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(4) * 2.0
        return self.linear(x) * self.table


class Counter(Base):
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x)


class DrawsForNothing(Base):
    def forward(self, x: Tensor) -> Tensor:
        random.random()
        return self.linear(x)


class Keeps(Base):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        self.seen.append(y)
        self.table = y
        return y


class TorchOnly(Base):
    def forward(self, x: Tensor) -> Tensor:
        return torch.dropout(self.linear(x), 0.5, True)


X = torch.ones(2, 4)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (DropPath, "Python's random"),
        (NumpyMask, "numpy.random"),
        (OwnGenerator, "from call to call"),
        (Schedule, "from call to call"),
        (Lazy, "first call"),
    ],
)
def test_what_capture_would_freeze_is_refused_with_its_line(kind: type[Base], says: str) -> None:
    model, before = kind(), (random.getstate(), np.random.get_state()[1].tolist())
    with pytest.raises(FBError, match="FB0513") as refused:
        export(model, (X,))
    assert says in str(refused.value)
    assert "test_python_state.py:" in str(refused.value)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert (model.calls, model.table) == (0, None)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Counter, "calls (from 0 to 1)"),
        (DrawsForNothing, "test_python_state.py:"),
        (Keeps, "table, seen"),
    ],
)
def test_what_is_not_seen_to_matter_is_a_warning(kind: type[Base], says: str) -> None:
    (warning,) = export(kind(), (X,)).warnings
    assert warning.code == "FB0514"
    assert says in warning.message


def test_a_model_that_was_called_once_has_made_what_it_makes() -> None:
    model = Lazy()
    model(X)
    assert export(model, (X,)).warnings == ()


def test_random_numbers_of_torch_are_no_python_state() -> None:
    assert export(TorchOnly(), (X,)).warnings == ()


def test_nothing_of_a_capture_stays_in_the_lists_of_a_model() -> None:
    model = Keeps()
    export(model, (X,))
    assert model.seen == []
    assert model.table is None


def test_a_forward_that_could_not_be_looked_at_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("remat_compile.capture.torch.observe._run", lambda *_, **__: None)
    (warning,) = export(TorchOnly(), (X,)).warnings
    assert warning.code == "FB0514"
    assert "not looked at" in warning.message


CALLS = {"n": 0}
SEEN: list[int] = []


class CountsOutside(Base):
    def forward(self, x: Tensor) -> Tensor:
        CALLS["n"] += 1
        SEEN.append(1)
        return self.linear(x)


class DrawsFromItsOwn(Base):
    def __init__(self) -> None:
        super().__init__()
        self.python = random.Random(0)
        self.older = np.random.RandomState(0)

    def forward(self, x: Tensor) -> Tensor:
        drawn = self.generator.random(), self.python.random(), self.older.rand()
        return self.linear(x) * (1.0 if min(drawn) >= 0 else 0.5)


def test_what_a_forward_changes_outside_of_modules_is_told_and_put_back() -> None:
    held = SEEN
    (warning,) = export(CountsOutside(), (X,)).warnings
    assert warning.code == "FB0514"
    assert "test_python_state.CALLS" in warning.message
    assert "test_python_state.SEEN" in warning.message
    assert (CALLS, SEEN) == ({"n": 0}, [])
    assert held is SEEN


def test_so_are_generators_that_a_module_holds() -> None:
    model = DrawsFromItsOwn()
    (warning,) = export(model, (X,)).warnings
    assert warning.code == "FB0514"
    assert all(name in warning.message for name in ("generator", "python", "older"))
    fresh = DrawsFromItsOwn()
    assert model.generator.random() == fresh.generator.random()
    assert model.python.random() == fresh.python.random()
    assert model.older.rand() == fresh.older.rand()


class DrawsFromTorchs(Base):
    def __init__(self) -> None:
        super().__init__()
        self.own = torch.Generator().manual_seed(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * torch.rand(x.shape, generator=self.own)


def test_a_generator_of_pytorchs_own_kind_is_refused() -> None:
    with (
        pytest.raises(FBError, match=r"FB0507.*torch\.Generator") as refused,
        lower(export(DrawsFromTorchs(), (X,))),
    ):
        raise AssertionError
    assert "test_python_state.py:" in str(refused.value)


class Reads(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) if bool(self.linear.bias.sum() > 0) else x


def test_pytorch_prints_nothing_of_a_model_that_is_refused(
    capfd: pytest.CaptureFixture[str],
) -> None:
    dims = ({0: torch.export.Dim("batch", min=2, max=8)},)
    for dynamic_shapes in (None, dims):
        with (
            pytest.raises(FBError, match="FB0501"),
            lower(export(Reads(), (X,), dynamic_shapes=dynamic_shapes)),
        ):
            raise AssertionError
    assert capfd.readouterr() == ("", "")


MISSING = float("nan")
log = logging.getLogger("remat_compile_test.python_state")


class Usual(Base):
    """Does what changes nothing: asks a logger, reads a number that is none, holds generators
    without a state that could be put back."""

    def __init__(self) -> None:
        super().__init__()
        self.system, self.seeds = random.SystemRandom(), np.random.SeedSequence(3)
        self.missing = float("nan")

    def forward(self, x: Tensor) -> Tensor:
        log.debug("called")
        return self.linear(x) if self.missing != MISSING else x


def test_what_changes_nothing_is_not_told() -> None:
    with lower(export(Usual(), (torch.ones(2, 4),))) as lowered:
        assert lowered.warnings == ()


def test_a_list_that_holds_itself_ends_in_no_recursion() -> None:
    model = Counter()
    model.held = [1.0]  # type: ignore[assignment]
    model.held.append(model.held)  # type: ignore[operator, union-attr, arg-type]
    with lower(export(model, (torch.ones(2, 4),))) as lowered:
        assert lowered.program.graph.cnodes


class Lazily(OrderedDict[str, int]):
    """As the tables of models in transformers: it imports what it is asked to list."""

    def _import(self) -> Any:
        raise ValueError("nobody is to list me")

    keys = values = items = __iter__ = __getitem__ = _import  # type: ignore[assignment]


LAZILY = Lazily()


def test_tables_that_import_what_they_list_are_not_asked() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.own = LAZILY

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.linear(x)
            return y if LAZILY is None or self.own is None else y * 2

    model, x = Looks(), torch.randn(2, 4)
    compiled = remat_compile.compile(model, (x,), activation_budget="100%")
    assert torch.equal(compiled(x), model(x))


def test_an_order_that_a_forward_changes_is_told_and_put_back() -> None:
    """Of an ordered dictionary, whose order is its own: a cache of what was used last."""

    class Uses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.used: OrderedDict[str, int] = OrderedDict(a=1, b=2)

        def forward(self, x: Tensor) -> Tensor:
            self.used.move_to_end("a")
            y: Tensor = self.linear(x)
            return y

    model = Uses()
    with pytest.warns(UserWarning, match=r"FB0514.*changes used"):
        remat_compile.compile(model, (torch.randn(2, 4),), activation_budget="100%")
    assert [*model.used] == ["a", "b"]


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_what_hooks_keep_is_told_and_put_back(phase: str) -> None:
    model, kept = nn.Sequential(nn.Linear(4, 4), nn.Tanh()), dict[str, Any]()
    if phase == "forward":
        model[1].register_forward_hook(lambda *made: kept.update(h=made[2]))
    else:
        model[1].register_full_backward_hook(lambda *made: kept.update(h=made[2]))
    exported = export(model, (torch.ones(2, 4),))
    with lower(exported) as lowered:
        (told,) = [*exported.warnings, *lowered.warnings]
    assert (told.code, told.message.startswith(f"the {phase} changes ")) == ("FB0514", True)
    assert not kept


class Kind(Base):
    """As models of transformers: the first call sets what later ones read, in an object that
    several modules hold."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(kind=None)
        self.linear.config = self.config  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        if self.config.kind is None:
            self.config.kind = "regression"
        return self.linear(x)


def test_what_the_forward_changes_is_not_guarded_under_any_name() -> None:
    model, x = Kind(), torch.ones(2, 4)
    with pytest.warns(UserWarning, match="FB0514"):
        step = remat_compile.compile(
            model, (x,), activation_budget="100%", planner="store-all", progress=False
        )
    assert step(x).equal(model(x))
    assert model.config.kind == "regression"
    assert step(x).equal(model(x))
