"""What objects that a forward reads lead to: classes that theirs come from, lists of objects, what
stands open. A change of it is told; what no forward reads is not looked at."""

from __future__ import annotations

import argparse
import copy
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.emitted.tiny import schedule
from helpers.warned import assert_warned_once, warnings_of
from remat_compile.backends.torch import GuardFailure, PlannedModule, build
from remat_compile.frontends.torch_export import export, lower

reached = import_module("remat_compile._torch.reached")
X = torch.ones(2, 4)


class Defaults:
    scale = 2.0


class Config(Defaults):
    factor = 1.0


class Part:
    def __init__(self, by: float = 1.0) -> None:
        self.by = by


class Options:
    def __init__(self) -> None:
        self.limit: float | None = None
        self.filled: float | None = None
        self.step, self.seen = 0, [1.0]
        self.parts, self.by_key = [Part(), Part()], {"first": Part(), 2: Part()}
        self.pair = (Part(), [Part()])


PARTS = [Part(), Part()]
FACTOR = 1.0


def scaled(x: Tensor) -> Tensor:
    return x * FACTOR


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.config, self.options = nn.Linear(4, 4), Config(), Options()
        self.own: list[Any] = [Part(), [Part(), scaled]]
        self.namespace = argparse.Namespace(by=1.0, step=0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x) * self.config.scale * self.namespace.by
        if self.options.limit is not None:
            x = x.clamp(max=self.options.limit)
        if self.options.filled is None:
            self.options.filled = 1.0
        for part in (*self.options.parts, *self.options.by_key.values(), *PARTS):
            x = x * part.by
        x = (
            x
            * self.options.pair[0].by
            * self.options.pair[1][0].by
            * self.options.by_key["first"].by
        )
        own: Tensor = self.own[1][1](x * self.own[0].by * self.own[1][0].by)
        return own


Edit = Callable[[Any], object]

WITH_WARNING: dict[str, tuple[Edit, str]] = {
    "of a base": (lambda _: setattr(Defaults, "scale", 3.0), "config.scale is 3.0, not 2.0"),
    "over a base": (lambda m: setattr(m.config, "scale", 3.0), "config.scale is 3.0, not 2.0"),
    "what stood open": (
        lambda m: setattr(m.options, "limit", 0.5),
        "options.limit is 0.5, not None",
    ),
    "in a list": (
        lambda m: setattr(m.options.parts[1], "by", 2.0),
        "options.parts[1].by is 2.0, not 1.0",
    ),
    "of a list": (
        lambda m: m.options.parts.__setitem__(0, Part(2.0)),
        "options.parts[0] is another object of Part",
    ),
    "a list": (
        lambda m: setattr(m.options, "parts", [Part(), Part(2.0)]),
        "options.parts is another list of objects",
    ),
    "longer": (lambda m: m.options.parts.append(Part(2.0)), "len(options.parts) is 3, not 2"),
    "shorter": (lambda m: m.options.parts.pop(), "options.parts[1] is gone"),
    "by key": (
        lambda m: m.options.by_key["first"].__init__(2.0),
        "options.by_key['first'].by is 2",
    ),
    "by number": (
        lambda m: m.options.by_key.update({2: Part(2.0)}),
        "options.by_key[2] is another",
    ),
    "in a list of a tuple": (
        lambda m: setattr(m.options.pair[1][0], "by", 2.0),
        "options.pair[1][0].by is 2.0",
    ),
    "in a global": (lambda _: setattr(PARTS[1], "by", 2.0), "PARTS[1].by is 2.0, not 1.0"),
    "of a global": (lambda _: PARTS.append(Part(2.0)), "len("),
    "in a list of a module": (lambda m: setattr(m.own[0], "by", 2.0), "own[0].by is 2.0, not 1.0"),
    "in a list of a list": (lambda m: setattr(m.own[1][0], "by", 2.0), "own[1][0].by is 2.0"),
    "behind a function in a list": (lambda _: globals().update(FACTOR=2.0), "FACTOR is 2.0"),
}

WITHOUT: dict[str, Edit] = {
    "a counter": lambda m: setattr(m.options, "step", 1),
    "a record": lambda m: m.options.seen.append(2.0),
    "of a namespace": lambda m: setattr(m.namespace, "step", 1),
    "what the forward fills in": lambda m: setattr(m.options, "filled", 1.0),
    "one of a list again": lambda m: m.options.parts.__setitem__(1, Part()),
    "a list again": lambda m: setattr(m.options, "parts", [Part(), Part()]),
    "one of a module's again": lambda m: m.own.__setitem__(0, Part()),
    "a copy": lambda m: setattr(m, "options", copy.deepcopy(m.options)),
}


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    yield
    globals().update(FACTOR=1.0)
    PARTS[:] = [Part(), Part()]
    Defaults.scale, Config.factor = 2.0, 1.0


@pytest.fixture
def step() -> PlannedModule:
    with (
        warnings.catch_warnings(action="ignore"),
        lower(export(Reads(), (X,))) as lowered,
    ):
        return build(lowered, schedule(lowered.program, ()))


def messages(step: nn.Module) -> list[str]:
    return warnings_of(lambda: step(X).square().sum().backward())


@pytest.mark.parametrize("is_copy", [False, True])
@pytest.mark.parametrize("change", WITH_WARNING)
def test_what_changes_within_an_object_is_told_once(
    change: str, is_copy: bool, step: PlannedModule
) -> None:
    edit, says = WITH_WARNING[change]
    step = copy.deepcopy(step) if is_copy else step
    assert_warned_once(
        lambda: step(X).square().sum().backward(), lambda: edit(step), "FB0528", says
    )


@pytest.mark.parametrize("change", WITHOUT)
def test_what_no_forward_reads_or_holds_the_same_is_not_told(
    change: str, step: PlannedModule
) -> None:
    assert messages(step) == []
    WITHOUT[change](step)
    assert messages(step) == []
    assert messages(step) == []


class Asks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.a(x)
        if not hasattr(self, "made"):
            self.made = 1.0
        return {"loss": x.tanh() if getattr(self, "bounded", False) else x}


@pytest.mark.parametrize("is_copy", [False, True])
def test_what_a_forward_asks_for_and_was_absent_is_refused_once_it_is_there(is_copy: bool) -> None:
    with warnings.catch_warnings(action="ignore"), lower(export(Asks(), (X,))) as lowered:
        step: Any = build(lowered, schedule(lowered.program, ()))
    step = copy.deepcopy(step) if is_copy else step
    step(X)
    step.loss, step.made = 1.0, 1.0
    with warnings.catch_warnings(action="error"):
        step(X)
    step.bounded = True
    with pytest.raises(GuardFailure, match="bounded is True, not absent"):
        step(X)
    del step.bounded
    step(X)


def test_where_not_all_code_is_followed_any_name_may_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not reached.reached_from(Asks()).reads("unread")
    monkeypatch.setattr(reached, "MOST_FUNCTIONS", 1)
    assert reached.reached_from(Asks()).reads("unread")
