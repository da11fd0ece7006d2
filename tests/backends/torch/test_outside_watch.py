"""Constants outside of modules that change after a step was built are told."""

from __future__ import annotations

import copy
import functools
import warnings
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from helpers.emitted.tiny import schedule
from remat_compile.backends.torch import PlannedModule, build
from remat_compile.frontends.torch_export import export, lower


def planned(model: nn.Module, x: Tensor) -> PlannedModule:
    with lower(export(model, (x,))) as lowered:
        return build(lowered, schedule(lowered.program, ()))


SCALE = 2.0
TABLE = {"scale": 1.0}


def _scaled(by: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x * by


tripled = _scaled(3.0)


class Settings:
    def __init__(self) -> None:
        self.scale = 1.0


class Outside(nn.Module):
    scale = 1.5

    def __init__(self) -> None:
        super().__init__()
        self.a, self.settings = nn.Linear(4, 4), Settings()

    def forward(self, x: Tensor) -> Tensor:
        x = tripled(self.a(x)) * SCALE * TABLE["scale"] * self.settings.scale
        return x * self.scale


def _in_closure(by: float) -> None:
    assert tripled.__closure__ is not None
    tripled.__closure__[0].cell_contents = by


OUTSIDE: dict[str, tuple[Callable[[Outside, float], object], float, str]] = {
    "a global": (
        lambda _, x: globals().update(SCALE=x),
        2.0,
        "test_outside_watch.SCALE is 9.0, not 2.0",
    ),
    "in a global": (lambda _, x: TABLE.update(scale=x), 1.0, "test_outside_watch.TABLE is"),
    "a closure": (lambda _, x: _in_closure(x), 3.0, "_scaled.<locals>.<lambda>.by is 9.0, not 3.0"),
    "of a class": (lambda _, x: setattr(Outside, "scale", x), 1.5, "Outside.scale is 9.0, not 1.5"),
    "of an object": (lambda m, x: setattr(m.settings, "scale", x), 1.0, "settings.scale is 9.0"),
}


@pytest.mark.parametrize("change", OUTSIDE)
def test_a_constant_outside_of_modules_that_changes_is_told_once(change: str) -> None:
    edit, then, says = OUTSIDE[change]
    model, x = Outside(), torch.ones(2, 4)
    copied = copy.deepcopy(planned(model, x))
    made = planned(model, x)
    for step in (made, copied):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            step(x)
    try:
        edit(model, 9.0)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for _ in range(3):
                made(x)
        assert ["FB0528" in str(one.message) for one in warned] == [True]
        assert says in str(warned[0].message)
    finally:
        edit(model, then)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert copied(x).equal(made(x))


LAST: object = None
STEPS = 0


class Noted(nn.Module):
    """Names globals that a loop writes."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if LAST is not None and STEPS < 0:
            return x
        made: Tensor = self.a(x) * SCALE
        return made


def warned_by(step: nn.Module) -> list[str]:
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        step(torch.ones(2, 4))
    return [str(one.message) for one in warned if "FB0528" in str(one.message)]


def test_what_is_no_constant_any_more_is_told_and_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned(Noted(), torch.ones(2, 4))
    monkeypatch.setitem(globals(), "LAST", None)  # puts it back
    messages, held = [], []
    for _ in range(3):
        globals()["LAST"] = torch.ones(3)
        held.append(weakref.ref(globals()["LAST"]))
        messages += warned_by(made)
    assert len(messages) == 1
    assert "LAST is <class 'torch.Tensor'>, not None" in messages[0]
    assert [of() is None for of in held] == [True, True, False]


def test_where_one_is_gone_the_others_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned(Noted(), torch.ones(2, 4))
    monkeypatch.delitem(globals(), "LAST")
    assert ["LAST is gone" in message for message in warned_by(made)] == [True]
    assert warned_by(made) == []
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert ["SCALE is 5.0, not 2.0" in message for message in warned_by(made)] == [True]


def test_what_changes_at_each_step_is_told_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned(Noted(), torch.ones(2, 4))
    messages = []
    for step in range(1, 9):
        monkeypatch.setitem(globals(), "STEPS", step)
        messages += warned_by(made)
    assert ["looked at no more" in message for message in messages] == [False, False, True]
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert len(warned_by(made)) == 1, "others are"


def test_a_copy_goes_on_with_what_its_plan_was_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned(Noted(), torch.ones(2, 4))
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert ["SCALE is 5.0, not 2.0" in m for m in warned_by(copy.deepcopy(made))] == [True]


class Decorated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    @torch.autocast("cpu", enabled=False)  # type: ignore[untyped-decorator]
    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.a(x) * _cached()
        return made


@functools.lru_cache
def _cached() -> float:
    return SCALE


def test_code_behind_decorators_of_libraries_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = planned(Decorated(), torch.ones(2, 4))
    assert warned_by(made) == []
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert ["SCALE is 5.0, not 2.0" in message for message in warned_by(made)] == [True]
