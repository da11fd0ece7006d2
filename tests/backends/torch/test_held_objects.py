"""Objects that take the place of others after a step was built: refused on modules, told outside of
them; nothing is said where the one holds the same as the other, or no forward reads it."""

from __future__ import annotations

import copy
import enum
import functools
import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from helpers.emitted.tiny import schedule
from helpers.warned import assert_warned_once, warnings_of
from remat_compile.backends.torch import GuardFailure, PlannedModule, build
from remat_compile.frontends.torch_export import export, lower


def planned(model: nn.Module, x: Tensor) -> PlannedModule:
    with lower(export(model, (x,))) as lowered:
        return build(lowered, schedule(lowered.program, ()))


class Mode(enum.Enum):
    A = 1
    B = 2


class Settings:
    def __init__(self, scale: float = 1.0, inner: Settings | None = None) -> None:
        self.scale, self.inner = scale, inner
        self.table = {str(n): n for n in range(200)}


@dataclass(slots=True)
class Narrow:
    scale: float = 1.0


class Layer(NamedTuple):
    act: Callable[[Tensor], Tensor]
    sizes: list[int]


class Doubled:
    by = Mode.A

    def __call__(self, x: Tensor) -> Tensor:
        return x * 2


class Tripled(Doubled):
    def __call__(self, x: Tensor) -> Tensor:
        return x * 3


def plus(x: Tensor) -> Tensor:
    return x + 1


def minus(x: Tensor) -> Tensor:
    return x - 1


class ByAttribute(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


MODE, SETTINGS, ACT = Mode.A, Settings(), torch.relu
REGISTRY = {"chosen": torch.relu, "by": 1.0, "other": torch.tanh}


def _closed(act: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: act(x)


closed = _closed(torch.relu)


class Switched(nn.Module):
    of_class, flag, unread = Mode.A, False, Mode.A
    static = staticmethod(torch.relu)

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.mode, self.settings, self.narrow = Mode.A, Settings(1.0, Settings(2.0)), Narrow()
        self.act: Any = torch.relu
        self.fn, self.strategy, self.kind, self.dtype = plus, Doubled(), Doubled, torch.float32
        self.part, self.bound = functools.partial(minus), self.strategy.__call__
        self.by_name = ByAttribute(chosen=torch.relu, by=1.0, inner=ByAttribute(by=1.0), unused=1)
        self.layer, self.layers = Layer(torch.relu, [4]), [Layer(torch.relu, [4])]
        self.acts, self.optimizer, self.last = [torch.relu, 1], Doubled(), Settings()

    def helper(self, x: Tensor) -> Tensor:
        return x * 1.5

    def training_step(self) -> None:
        self.optimizer(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.bound(self.part(self.fn(self.act(self.a(x)))))
        assert self.settings.inner is not None
        x = self.strategy(x) * self.settings.scale * self.settings.inner.scale * self.narrow.scale
        x = self.static(self.helper(self.acts[0](self.kind()(x)))).to(self.dtype)  # type: ignore[operator]
        if self.strategy.by is self.mode is self.of_class is MODE and not self.flag:
            x = ACT(x) * SETTINGS.scale
        x = self.layer.act(self.layers[0].act(x))
        x = self.by_name.chosen(x) * self.by_name["by"] * self.by_name.inner.by
        x = REGISTRY["chosen"](x) * REGISTRY["by"]  # type: ignore[operator]
        return closed(plus(x))


Edit = Callable[[Switched], object]

ON_MODULES: dict[str, tuple[Edit, str]] = {
    "a member": (lambda m: setattr(m, "mode", Mode.B), "mode is Mode.B, not Mode.A"),
    "another kind": (lambda m: setattr(m, "mode", "b"), "mode is 'b', not Mode.A"),
    "gone": (lambda m: delattr(m, "mode"), "mode is gone, not Mode.A"),
    "settings": (
        lambda m: setattr(m, "settings", Settings(1.0, Settings(3.0))),
        "settings is another object of Settings",
    ),
    "slots": (lambda m: setattr(m, "narrow", Narrow(2.0)), "narrow is another object of Narrow"),
    "built in": (
        lambda m: setattr(m, "act", torch.tanh),
        "act is function tanh, not function relu",
    ),
    "a function": (lambda m: setattr(m, "fn", minus), "fn is function minus, not function plus"),
    "a strategy": (
        lambda m: setattr(m, "strategy", Tripled()),
        "strategy is object of Tripled, not object of Doubled",
    ),
    "a class": (lambda m: setattr(m, "kind", Tripled), "kind is <class '.*Tripled'>, not"),
    "partial": (
        lambda m: setattr(m, "part", functools.partial(plus)),
        r"part is partial\(function plus\), not partial\(function minus\)",
    ),
    "a method": (
        lambda m: setattr(m, "bound", Tripled().__call__),
        "bound is function Tripled.__call__, not function Doubled.__call__",
    ),
    "dtype": (
        lambda m: setattr(m, "dtype", torch.float64),
        "dtype is torch.float64, not torch.float32",
    ),
    "in a list": (
        lambda m: m.acts.__setitem__(0, torch.tanh),
        "acts is another list of objects",
    ),
    "a named tuple": (
        lambda m: setattr(m, "layer", Layer(torch.tanh, [4])),
        "layer is another object of Layer",
    ),
    "in a list of them": (
        lambda m: setattr(m, "layers", [Layer(torch.relu, [5])]),
        "layers is another list of objects",
    ),
    "over a class": (lambda m: setattr(m, "of_class", Mode.B), "of_class is Mode.B, not Mode.A"),
    "over a flag": (lambda m: setattr(m, "flag", True), "flag is True, not False"),
    "over a method": (lambda m: setattr(m, "helper", plus), "helper is function plus, not"),
}

OUTSIDE: dict[str, tuple[Edit, str]] = {
    "a global member": (lambda _: set_global("MODE", Mode.B), "MODE is Mode.B, not Mode.A"),
    "global settings": (
        lambda _: set_global("SETTINGS", Settings(3.0)),
        "SETTINGS is another object of Settings",
    ),
    "a global built in": (
        lambda _: set_global("ACT", torch.tanh),
        "ACT is function tanh, not function relu",
    ),
    "a global function": (
        lambda _: set_global("plus", minus),
        "plus is function minus, not function plus",
    ),
    "a closure": (
        lambda _: setattr(closed.__closure__[0], "cell_contents", torch.tanh),  # type: ignore[index]
        r"_closed.<locals>.<lambda>.act is function tanh",
    ),
    "of a class": (lambda _: setattr(Switched, "of_class", Mode.B), "Switched.of_class is Mode.B"),
    "a method": (lambda _: setattr(Switched, "helper", plus), "Switched.helper is function plus"),
    "static": (
        lambda _: setattr(Switched, "static", staticmethod(torch.tanh)),
        "Switched.static is",
    ),
    "in settings": (
        lambda m: setattr(m.settings, "inner", Settings(3.0)),
        "settings.inner is another object of Settings",
    ),
    "in inner settings": (
        lambda m: setattr(m.settings.inner, "scale", 3.0),
        "settings.inner.scale is 3.0, not 2.0",
    ),
    "of slots": (lambda m: setattr(m.narrow, "scale", 3.0), "narrow.scale is 3.0, not 1.0"),
    "by key": (lambda m: m.by_name.update(by=3.0), "by_name['by'] is 3.0, not 1.0"),
    "by inner key": (
        lambda m: m.by_name.inner.update(by=3.0),
        "by_name['inner']['by'] is 3.0, not 1.0",
    ),
    "in a registry": (
        lambda _: REGISTRY.update(chosen=torch.tanh),
        "REGISTRY['chosen'] is function tanh",
    ),
    "over its class": (
        lambda m: setattr(m.strategy, "by", Mode.B),
        "strategy.by is Mode.B, not Mode.A",
    ),
}

NO_CHANGE: dict[str, Edit] = {
    "a key that nobody reads": lambda m: m.by_name.update(unused=2),
    "of a registry": lambda _: REGISTRY.update(other=torch.relu),
    "a copy by key": lambda m: setattr(m, "by_name", copy.deepcopy(m.by_name)),
    "a copy": lambda m: setattr(m, "settings", copy.deepcopy(m.settings)),
    "equal slots": lambda m: setattr(m, "narrow", Narrow()),
    "the method again": lambda m: setattr(m, "bound", m.strategy.__call__),
    "partial again": lambda m: setattr(m, "part", functools.partial(minus)),
    "an equal strategy": lambda m: setattr(m, "strategy", Doubled()),
    "a named tuple again": lambda m: setattr(m, "layer", Layer(torch.relu, [4])),
    "named tuples again": lambda m: setattr(m, "layers", [Layer(torch.relu, [4])]),
    "a list again": lambda m: setattr(m, "acts", [torch.relu, 1]),
    "the same line again": lambda _: set_global("closed", _closed(torch.relu)),
    "a global copy": lambda _: set_global("SETTINGS", copy.copy(SETTINGS)),
    "the class's flag": lambda m: setattr(m, "flag", False),
    "what a loop reads": lambda m: setattr(m, "optimizer", Tripled()),
    "what nobody reads": lambda m: setattr(m, "last", Settings(5.0)),
    "over a class, unread": lambda m: setattr(m, "unread", Mode.B),
    "something new": lambda m: setattr(m, "fresh", Settings()),
}


def set_global(name: str, value: object) -> None:
    globals()[name] = value


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    names = ("MODE", "SETTINGS", "ACT", "plus", "closed")
    held, of_class = {name: globals()[name] for name in names}, dict(vars(Switched))
    assert closed.__closure__ is not None
    yield
    globals().update(held)
    REGISTRY.update(chosen=torch.relu, other=torch.tanh)
    held["closed"].__closure__[0].cell_contents = torch.relu
    for name in ("of_class", "helper", "static"):
        setattr(Switched, name, of_class[name])


def messages(step: nn.Module) -> list[str]:
    return warnings_of(lambda: step(torch.ones(2, 4)))


@pytest.fixture(scope="module")
def built() -> PlannedModule:
    return planned(Switched(), torch.ones(2, 4))


@pytest.mark.parametrize("of", ["the drop-in", "the model", "a copy"])
@pytest.mark.parametrize("change", ON_MODULES)
def test_another_object_on_a_module_is_refused(change: str, of: str, built: PlannedModule) -> None:
    edit, says = ON_MODULES[change]
    model = Switched()
    step = planned(model, torch.ones(2, 4)) if of == "the model" else copy.deepcopy(built)
    if of == "the drop-in":
        step = copy.deepcopy(step)
    assert messages(step) == []
    edit(model if of == "the model" else step)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(GuardFailure, match=says) as refused:
            step(torch.ones(2, 4))
    assert [d.code for d in refused.value.diagnostics] == ["FB0910"]


@pytest.mark.parametrize("change", OUTSIDE)
def test_another_object_outside_of_modules_is_told_once(change: str, built: PlannedModule) -> None:
    edit, says = OUTSIDE[change]
    step: Any = copy.deepcopy(built)
    assert_warned_once(lambda: step(torch.ones(2, 4)), lambda: edit(step), "FB0528", says)


@pytest.mark.parametrize("change", NO_CHANGE)
def test_one_that_holds_the_same_or_that_no_forward_reads_is_no_change(
    change: str, built: PlannedModule
) -> None:
    step: Any = copy.deepcopy(built)
    assert messages(step) == []
    NO_CHANGE[change](step)
    assert messages(step) == []
    assert messages(step) == []


@pytest.mark.parametrize("later", [lambda m: setattr(m.settings, "scale", 9.0)])
def test_what_takes_its_place_is_looked_at_from_then_on(later: Edit, built: PlannedModule) -> None:
    step: Any = copy.deepcopy(built)
    step.settings = copy.deepcopy(step.settings)
    assert messages(step) == []
    later(step)
    assert ["settings.scale is 9.0, not 1.0" in m for m in messages(step)] == [True]
    globals()["SETTINGS"] = copy.copy(SETTINGS)
    assert messages(step) == []
    SETTINGS.scale = 4.0
    assert ["SETTINGS.scale is 4.0, not 1.0" in m for m in messages(step)] == [True]


def test_another_object_at_each_step_is_told_three_times_and_not_held(
    built: PlannedModule,
) -> None:
    step = copy.deepcopy(built)
    said, held = [], []
    for n in range(6):
        globals()["SETTINGS"] = Settings(float(n + 2))
        held.append(weakref.ref(SETTINGS))
        said += messages(step)
        gc.collect()
    assert ["looked at no more" in message for message in said] == [False, False, True]
    assert [of() is None for of in held] == [True] * 5 + [False]


def test_one_that_is_put_back_is_no_change(built: PlannedModule) -> None:
    step: Any = copy.deepcopy(built)
    step.mode = Mode.B
    with pytest.raises(GuardFailure):
        step(torch.ones(2, 4))
    step.mode = Mode.A
    assert messages(step) == []


class Fills(nn.Module):
    """Replaces what it keeps: at each call, at the first one, or in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.cache: Doubled | None = None
        self.last, self.of_eval = Settings(), Settings()

    def forward(self, x: Tensor) -> Tensor:
        self.last = Settings(self.last.scale)
        if self.cache is None:
            self.cache = Doubled()
        if not self.training:
            self.of_eval = Settings(2.0)
        made: Tensor = self.cache(self.a(x))
        return made * self.of_eval.scale


@pytest.mark.filterwarnings("ignore:(?s).*FB0514")
def test_what_a_forward_replaces_itself_is_no_change() -> None:
    model = Fills()
    step: Any = planned(model, torch.ones(2, 4))
    with torch.no_grad():
        step(torch.ones(2, 4))
        step.eval()(torch.ones(2, 4))
    step.train()
    step.last = Settings(7.0)
    assert messages(step) == []


def test_threads_look_at_one_step_beside_each_other(built: PlannedModule) -> None:
    step = copy.deepcopy(built)
    failed: list[BaseException] = []

    def run() -> None:
        try:
            for _ in range(5):
                step(torch.ones(2, 4)).square().sum().backward()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []
