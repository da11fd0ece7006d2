"""Arrays of NumPy that a forward reads: another one, or other numbers in it, after capture."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helpers.clock import HANGS_S
from helpers.emitted.tiny import schedule
from helpers.warned import assert_warned_once, warnings_of
from remat_compile.backends.torch import GuardFailure, PlannedModule, build
from remat_compile.frontends.torch_export import export, lower

X = torch.linspace(-1, 1, 8).reshape(2, 4)
GLOBAL = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
LARGE = 4 * np.ones(2000, np.float32)


class Way(IntEnum):
    A = 1


class Configuration:
    def __init__(self) -> None:
        self.scales = np.array([1.0, 0.5, 2.0, 1.0], np.float32)


def _closed() -> Callable[[Tensor], Tensor]:
    shift = np.array([0.5, 0.0, 0.0, 1.0], np.float32)
    return lambda x: x + torch.from_numpy(shift.copy())


shifted = _closed()


class Scaled(nn.Module):
    of_class = np.array([1.0, 1.0, 2.0, 1.0], np.float32)

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.configuration = nn.Linear(4, 4), Configuration()
        self.scales = np.array([1.0, 2.0, 1.0, 0.5], np.float32)
        self.inner.listed = [np.zeros(4, np.float32), 1.0]
        self.number, self.way = np.float32(2.0), Way.A
        self.seen, self.drawn = np.zeros(3), 0

    def forward(self, x: Tensor) -> Tensor:
        made = shifted(self.inner(x)) * torch.from_numpy(self.scales.copy()) * float(self.number)
        made = made + torch.from_numpy(self.inner.listed[0].copy()) * self.inner.listed[1]
        made = made * torch.from_numpy(self.configuration.scales.copy()) * self.way
        made = made * torch.from_numpy(GLOBAL.copy())
        return made * torch.from_numpy(self.of_class.copy())


def planned(model: nn.Module, x: Tensor = X) -> PlannedModule:
    with lower(export(model, (x,))) as lowered:
        return build(lowered, schedule(lowered.program, ()))


Edit = Callable[[Any], object]


def eager(model: Any) -> Tensor:
    """What the user's own model gives now."""
    made: Tensor = model(X) if type(model) is Scaled else Scaled.forward(model, X)
    return made.detach()


def run(step: Any) -> Tensor:
    """A whole step, so that no second forward waits for its backward."""
    made: Tensor = step(X)
    made.sum().backward()
    return made.detach()


def _write(array: Any, at: int = 1, number: float = 9.0) -> None:
    array[at] = number


ON_MODULES: dict[str, tuple[Edit, str]] = {
    "in place": (
        lambda m: _write(m.scales),
        r"scales is array\(\[1\. , 9\. , 1\. , 0\.5\], dtype=f",
    ),
    "in a list": (lambda m: _write(m.inner.listed[0]), r"inner\.listed is \[array"),
    "another": (
        lambda m: setattr(m, "scales", np.ones(4, np.float32)),
        r"scales is array\(\[1\., 1",
    ),
    "another dtype": (lambda m: setattr(m, "scales", m.scales.view(np.int32)), r"dtype=int32"),
    "another shape": (lambda m: setattr(m, "scales", m.scales.reshape(1, 4)), r"array\(\[\[1\. "),
    "a number": (
        lambda m: setattr(m, "number", np.float32(3.0)),
        r"number is .*3\.0.*, not .*2\.0",
    ),
    "a number of another dtype": (
        lambda m: setattr(m, "number", np.uint32(np.float32(2.0).view(np.uint32))),
        "number is .*1073741824",
    ),
    "gone": (lambda m: delattr(m, "scales"), "scales is gone"),
    "no array any more": (lambda m: setattr(m, "scales", 1.0), r"scales is 1\.0, not array"),
    "a view with steps": (
        lambda m: setattr(m, "scales", np.repeat(m.scales + 1, 2)[::2]),
        r"scales is array\(\[2\. ",
    ),
}

OUTSIDE: dict[str, tuple[Edit, Any, str]] = {
    "a global": (lambda _: _write(GLOBAL), GLOBAL, "test_held_arrays.GLOBAL is array"),
    "a closure": (
        lambda _: _write(shifted.__closure__[0].cell_contents),  # type: ignore[attr-defined]
        shifted.__closure__[0].cell_contents,  # type: ignore[attr-defined]
        "shift is array",
    ),
    "of a class": (lambda _: _write(Scaled.of_class), Scaled.of_class, "Scaled.of_class is array"),
    "of a configuration": (
        lambda m: _write(m.configuration.scales),
        None,
        "configuration.scales is array",
    ),
}


@pytest.mark.parametrize("of", ["the drop-in", "the model", "a copy"])
@pytest.mark.parametrize("change", ON_MODULES)
def test_other_numbers_on_a_module_are_refused(change: str, of: str) -> None:
    edit, says = ON_MODULES[change]
    model = Scaled()
    step: Any = planned(model)
    if of == "a copy":
        model = step = copy.deepcopy(step)
    assert torch.equal(run(step), eager(model))
    edit(model if of == "the model" else step)
    for _ in range(2):
        with pytest.raises(GuardFailure, match=f"FB0910.*{says}"):
            step(X)


@pytest.mark.parametrize("change", OUTSIDE)
def test_other_numbers_outside_of_modules_are_told_once(change: str) -> None:
    edit, array, says = OUTSIDE[change]
    step: Any = planned(Scaled())
    before = None if array is None else array.copy()
    try:
        assert_warned_once(lambda: run(step), lambda: edit(step), "FB0528", says)
    finally:
        if array is not None:
            array[...] = before


NO_CHANGE: dict[str, Edit] = {
    "equal numbers": lambda m: setattr(m, "scales", m.scales.copy()),
    "numbers written again": lambda m: _write(m.scales, 1, 2.0),
    "equal numbers that lie otherwise": lambda m: setattr(m, "scales", np.repeat(m.scales, 2)[::2]),
    "an array that no forward reads": lambda m: _write(m.seen),
    "a new array that no forward reads": lambda m: setattr(m, "seen", np.ones(7)),
}


@pytest.mark.parametrize("change", NO_CHANGE)
def test_what_is_no_change(change: str) -> None:
    step: Any = planned(Scaled())
    expected = run(step)
    NO_CHANGE[change](step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(run(step), expected)


def test_what_is_put_back_runs_again() -> None:
    step: Any = planned(Scaled())
    expected = run(step)
    _write(step.scales)
    with pytest.raises(GuardFailure):
        step(X)
    _write(step.scales, 1, 2.0)
    assert torch.equal(run(step), expected)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.calls = nn.Linear(4, 4), np.zeros(1)

    def forward(self, x: Tensor) -> Tensor:
        self.calls[0] += 1
        made: Tensor = self.inner(x)
        return made


def test_an_array_that_the_forward_changes_is_told_at_capture_and_left_alone() -> None:
    model = Counting()
    exported = export(model, (X,))
    assert [("FB0514", "calls" in w.message) for w in exported.warnings] == [("FB0514", True)]
    step = planned(model)
    assert model.calls[0] == 0
    with torch.no_grad():
        step(X)
    assert model.calls[0] == 1
    step(X)  # which counts in eager alone


class Large(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scales = nn.Linear(4, 4), np.ones(2000, np.float32)
        self.inner.several = [np.ones(4, np.float32), *(np.ones(500) for _ in range(3))]

    def forward(self, x: Tensor) -> Tensor:
        made = self.inner(x) * float(self.scales[3]) * float(LARGE[0])
        return made * torch.from_numpy(self.inner.several[0].copy())


def test_large_ones_are_named_at_the_first_call_and_looked_at_by_which_one_stands_there() -> None:
    model = Large()
    step = planned(model)
    (message,) = warnings_of(lambda: run(step))
    assert "FB0530" in message
    for name in ("scales", "inner.several", "test_held_arrays.LARGE"):
        assert name in message
    assert warnings_of(lambda: run(step)) == []
    expected = run(step)
    model.scales = model.scales.copy()
    assert torch.equal(run(step), expected)
    model.scales = model.scales + 1
    with pytest.raises(GuardFailure, match=r"FB0910.*scales is another array of float32\[2000\]"):
        step(X)


WITHOUT = """
import sys
sys.modules["numpy"] = None
import torch
from remat_compile._torch.constants import is_constant
assert is_constant((1, "a")) and not is_constant(object())
"""


def test_numpy_need_not_be_there() -> None:
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS_S, check=False)
    assert done.returncode == 0, done.stderr
