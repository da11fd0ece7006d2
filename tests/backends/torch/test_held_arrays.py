"""Arrays of NumPy that a forward reads: another one, or other numbers in it, after capture."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.clock import HANGS_S
from helpers.emitted.tiny import schedule
from helpers.warned import assert_warned_once, warnings_of
from remat_compile.backends.torch import GuardFailure, PlannedModule, build
from remat_compile.frontends.torch_export import export, lower
from remat_compile.ir.diagnostics import FBError

X = torch.linspace(-1, 1, 8).reshape(2, 4)
GLOBAL = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
MIXED: list[Any] = [torch.tanh, np.ones(4, np.float32), 2.0]
LARGE = 4 * np.ones(70_000, np.float32)


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
        inner: Any = nn.Linear(4, 4)
        self.inner = inner
        self.configuration = Configuration()
        self.scales = np.array([1.0, 2.0, 1.0, 0.5], np.float32)
        inner.listed = [np.zeros(4, np.float32), 1.0]
        inner.pair = (1, [np.ones(4, np.float32)])
        inner.mixed = [torch.relu, np.ones(4, np.float32)]
        inner.large = np.ones(70_000, np.float32)
        self.number, self.way = np.float32(2.0), Way.A
        self.seen, self.drawn = np.zeros(3), 0

    def forward(self, x: Tensor) -> Tensor:
        made = shifted(self.inner(x)) * torch.from_numpy(self.scales.copy()) * float(self.number)
        made = made + torch.from_numpy(self.inner.listed[0].copy()) * self.inner.listed[1]
        made = made * torch.from_numpy(self.configuration.scales.copy()) * self.way
        made = made * torch.from_numpy(self.inner.pair[1][0] * self.inner.mixed[1])
        made = MIXED[0](made) * float(MIXED[1][2]) * MIXED[2] * float(self.inner.large[0])
        made = made * torch.from_numpy(GLOBAL.copy()) * float(LARGE[5])
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
    "equal numbers that lie otherwise": (
        lambda m: setattr(m, "scales", np.repeat(m.scales, 2)[::2]),
        r"scales is another array\(\[1\. ",
    ),
    "in a tuple": (lambda m: _write(m.inner.pair[1][0]), r"inner\.pair is \(1, \[array"),
    "beside a function": (lambda m: _write(m.inner.mixed[1]), "inner.mixed is another list of"),
    "all of a large one": (
        lambda m: np.multiply(m.inner.large, 0.5, out=m.inner.large),
        r"inner\.large is another array of float32\[70000\]",
    ),
}

OUTSIDE: dict[str, tuple[Edit, Any, str]] = {
    "a global": (lambda _: _write(GLOBAL), GLOBAL, "test_held_arrays.GLOBAL is array"),
    "in a global list": (
        lambda _: _write(MIXED[1]),
        MIXED[1],
        r"test_held_arrays.MIXED[1] is array([1., 9., 1., 1.], dtype=float32), not array([1., 1.",
    ),
    "a large global": (
        lambda _: np.multiply(LARGE, 2.0, out=LARGE),
        LARGE,
        "test_held_arrays.LARGE is another array of float32[70000]",
    ),
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
    run(step)  # which names the large ones
    try:
        assert_warned_once(lambda: run(step), lambda: edit(step), "FB0528", says)
    finally:
        if array is not None:
            array[...] = before


NO_CHANGE: dict[str, Edit] = {
    "equal numbers": lambda m: setattr(m, "scales", m.scales.copy()),
    "numbers written again": lambda m: _write(m.scales, 1, 2.0),
    "a large one with equal numbers": lambda m: setattr(m.inner, "large", m.inner.large.copy()),
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
        inner: Any = nn.Linear(4, 4)
        self.inner = inner
        self.scales = np.ones(70_000, np.float32)
        inner.several = [np.ones(4, np.float32), np.ones(40_000), torch.relu]
        self.small = np.ones(65_536, np.float32)  # 256 KiB

    def forward(self, x: Tensor) -> Tensor:
        made = self.inner(x) * float(self.scales[3]) * float(LARGE[0]) * float(self.small[0])
        return made * torch.from_numpy(self.inner.several[0].copy())


def test_large_ones_are_named_at_the_first_call() -> None:
    model = Large()
    step = planned(model)
    (message,) = warnings_of(lambda: run(step))
    assert "FB0530" in message
    for name in ("scales", "inner.several", "test_held_arrays.LARGE"):
        assert name in message.partition(": of an array")[0]
    assert "small" not in message
    assert warnings_of(lambda: run(step)) == []


@pytest.mark.parametrize("at", [3, -1])
def test_another_large_one_is_compared_as_a_whole(at: int) -> None:
    model = Large()
    step: Any = planned(model)
    expected = run(step)
    model.scales = np.ones(70_000, np.float32)
    assert torch.equal(run(step), expected)
    other = model.scales.copy()
    other[at] = 2.0
    model.scales = other
    with pytest.raises(GuardFailure, match=r"FB0910.*scales is another array of float32\[70000\]"):
        step(X)


def test_all_of_the_largest_that_is_compared_is_compared() -> None:
    model = Large()
    step: Any = planned(model)
    for at in (0, 1, 12_345, -2, -1):
        expected = run(step)
        model.small[at] = np.nan
        with pytest.raises(GuardFailure, match=r"FB0910.*small is another array"):
            step(X)
        model.small[at] = 1.0
        assert torch.equal(run(step), expected)


class Keeping(nn.Module):
    """Reads what it keeps, and computes with none of it."""

    def __init__(self, kept: Any) -> None:
        super().__init__()
        self.inner, self.kept = nn.Linear(4, 4), kept

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.inner(x) * len(self.kept.shape)
        return made


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "none at all": (lambda: np.zeros((0, 3)), lambda a: np.zeros((0, 4))),
    "of no dimension": (lambda: np.array(3.0), lambda a: a + 1),
    "no number": (lambda: np.array([np.nan, 1.0]), lambda a: a + 1),
    "by columns": (lambda: np.asfortranarray(np.ones((2, 3))), lambda a: a + 1),
    "backwards": (lambda: np.arange(4.0)[::-1], lambda a: np.arange(1.0, 5.0)[::-1]),
    "repeated": (lambda: np.broadcast_to(np.float32(1), (3,)), lambda a: np.ones(3, np.float32)),
    "big-endian": (lambda: np.ones(3, ">f4"), lambda a: a.astype("<f4")),
    "texts": (lambda: np.array(["a", "bc"]), lambda a: np.array(["a", "bd"])),
    "dates": (lambda: np.array(["2020"], "M8[D]"), lambda a: a + 1),
    "a date": (lambda: np.datetime64("2020"), lambda a: a + 1),
    "bytes": (lambda: np.bytes_(b"a"), lambda a: np.bytes_(b"b")),
    "a structure": (lambda: np.zeros(2, [("a", "i1"), ("b", "f8")]), lambda a: np.ones(2, a.dtype)),
    "one structure": (lambda: np.zeros(1, "i4,f8")[0], lambda a: np.ones(1, "i4,f8")[0]),
    "records": (lambda: np.rec.array([(1, 2.0)]), lambda a: np.rec.array([(1, 3.0)])),
    "a matrix": (lambda: np.ones((1, 2)).view(np.matrix), lambda a: a + 1),
    "an array for a matrix": (lambda: np.ones((1, 2)).view(np.matrix), np.asarray),
    "objects": (lambda: np.array([print, None]), lambda a: np.array([print, 1])),
    "masked": (lambda: np.ma.array([1.0, 2.0], mask=[0, 1]), lambda a: a + 1),
    "another mask": (
        lambda: np.ma.array([1.0, 2.0], mask=[0, 1]),
        lambda a: np.ma.array([1.0, 2.0], mask=[1, 0]),
    ),
    "of a class": (lambda: np.ones(2).view(OwnArray), lambda a: a + 1),
}
"""What a module keeps, and another one made of it."""


class OwnArray(np.ndarray[Any, Any]):
    """Nothing of it may be called."""

    def __eq__(self, _: object) -> Any:
        raise AssertionError

    def tobytes(self, *_: Any) -> bytes:
        raise AssertionError

    def __repr__(self) -> str:
        raise AssertionError


@pytest.mark.filterwarnings("ignore:.*FB0530")
@pytest.mark.parametrize("kind", KINDS)
def test_arrays_of_all_kinds(kind: str) -> None:
    make, other = KINDS[kind]
    model = Keeping(make())
    kept = model.kept
    step: Any = planned(model)
    for same in (kept, make()):
        model.kept = step.kept = same
        assert torch.equal(run(step), eager_of(model))
    model.kept = other(kept)
    for _ in range(2):
        with pytest.raises(GuardFailure, match=r"FB0910.*kept is "):
            step(X)
    model.kept = kept
    assert torch.equal(run(step), eager_of(model))
    copied = copy.deepcopy(step)
    if copied.kept.strides == kept.strides:  # NumPy lays out some otherwise
        assert torch.equal(run(copied), eager_of(model))


def eager_of(model: Keeping) -> Tensor:
    return model(X).detach()


def test_an_array_in_a_file_is_one(tmp_path: Path) -> None:
    model = Keeping(np.memmap(tmp_path / "kept", np.float32, "w+", shape=(4,)))
    step: Any = planned(model)
    assert warnings_of(lambda: run(step)) == []
    model.kept[2] = 1.0
    with pytest.raises(GuardFailure, match=r"FB0910.*kept is memmap"):
        step(X)


def test_arrays_of_objects_and_with_masks_are_named() -> None:
    for kept in (np.array([print, None]), np.ma.array([1.0, 2.0], mask=[0, 1])):
        (message,) = warnings_of(lambda kept=kept: run(planned(Keeping(kept))))  # type: ignore[misc]
        assert "FB0530" in message
        assert ": kept:" in message


class CountingInEvaluation(nn.Module):
    def __init__(self, count: Any) -> None:
        super().__init__()
        self.inner, self.count = nn.Linear(4, 4), count

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            self.count += 1
        made: Tensor = self.inner(x)
        return made


@pytest.mark.parametrize("count", [0, np.zeros(1)], ids=["a number", "an array"])
def test_what_evaluation_alone_writes_is_refused_in_training_as_numbers_are(count: Any) -> None:
    """The training forward might read it: nothing says that it does not."""
    step: Any = planned(CountingInEvaluation(count))
    expected = run(step)
    step.eval()
    with torch.no_grad():
        assert torch.equal(step(X), expected)
    step.train()
    with pytest.raises(GuardFailure, match=r"FB0910.*count is .*1.*, not .*0.*, as at capture"):
        step(X)
    step.count -= 1
    assert torch.equal(run(step), expected)


class Averaging(nn.Module):
    """Keeps an average of what it sees in NumPy, and goes on by it or not."""

    def __init__(self, size: int, *, goes_on: bool, within: Callable[[Any], Any]) -> None:
        super().__init__()
        self.inner, self.goes_on = nn.Linear(4, 4), goes_on
        self.kept = within(np.zeros(size, np.float32))

    def average(self) -> Any:
        return self.kept if type(self.kept) is np.ndarray else self.kept[0]

    def forward(self, x: Tensor) -> Tensor:
        average = self.average()
        average *= np.float32(0.9)
        average += np.float32(x.shape[0])
        made: Tensor = self.inner(x)
        return made * float(average[0]) if self.goes_on else made


WITHIN: dict[str, Callable[[Any], Any]] = {
    "itself": lambda a: a,
    "a list": lambda a: [a],
    "a tuple": lambda a: (a,),
    "beside a function": lambda a: (a, torch.relu),
}


@pytest.mark.parametrize("within", WITHIN)
@pytest.mark.parametrize("size", [4, 70_000])
def test_an_average_that_the_forward_keeps_is_refused_or_told_and_left_alone(
    size: int, within: str
) -> None:
    model = Averaging(size, goes_on=True, within=WITHIN[within])
    with pytest.raises(FBError, match=r"FB0513.*computes otherwise from call to call"):
        export(model, (X,))
    assert not model.average().any()
    model = Averaging(size, goes_on=False, within=WITHIN[within])
    exported = export(model, (X,))
    assert [("FB0514", "kept" in w.message) for w in exported.warnings] == [("FB0514", True)]
    assert not model.average().any()


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


class _Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.losses, self.times = {"loss": np.zeros(3)}, (np.zeros(3),)
        self.table = np.ones(3)

    def scaled(self, x: Tensor) -> Tensor:
        return x

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(self.scaled(torch.tanh(x)))).square().mean()


def _compiled(model: nn.Module) -> Any:
    return remat_compile.compile(model, (torch.ones(8, 4),), planner="dtr")


def test_containers_of_arrays_that_no_forward_reads_may_change() -> None:
    model = _Plain()
    step = _compiled(model)
    step(torch.ones(8, 4)).backward()
    model.losses["loss"][0] = 1.0
    model.times[0][0] = 1.0
    step(torch.ones(8, 4)).backward()


def test_an_array_that_the_forward_writes_and_locks_ends_in_no_error() -> None:
    class Locks(_Plain):
        def scaled(self, x: Tensor) -> Tensor:
            if self.table.flags.writeable:
                self.table[0] += 1
                self.table.setflags(write=False)
            return x

    with pytest.warns(UserWarning, match="FB0514"):
        _compiled(Locks())


def test_large_tables_of_two_closures_of_one_function_are_two() -> None:
    def made(table: Any) -> Callable[[Tensor], Tensor]:
        return lambda x: x * float(table[0])

    class Closures(_Plain):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = made(np.ones(70_000)), made(2 * np.ones(70_000))

        def scaled(self, x: Tensor) -> Tensor:
            return self.other(self.one(x))

    step = _compiled(Closures())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            step(torch.ones(8, 4)).backward()
            copy.deepcopy(step)(torch.ones(8, 4)).backward()
    assert {str(w.message).split("]")[0] for w in caught} == {"warning[FB0530"}
