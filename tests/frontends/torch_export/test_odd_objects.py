"""What a model holds that cannot be looked at ends in no error of Python's; and what trial runs
change in containers is put back in place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.emitted.tiny import schedule
from helpers.slow import default_only
from remat_compile.backends.torch import build
from remat_compile.capture.torch import export, lower

X = torch.ones(2, 4)


class Uncopied(float):
    def __deepcopy__(self, memo: object) -> Uncopied:
        raise TypeError("not to be copied")


class Unbound:
    """As a proxy of something that is not there yet."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("not there yet")


def _raising(name: str) -> object:
    """Of a class whose metaclass raises in one of its methods."""

    def raises(*_: object) -> Any:
        raise ZeroDivisionError(name)

    kind: Any = type("Meta", (type,), {name: raises})("Raising", (), {})
    return kind()


def _deep() -> list[Any]:
    held: list[Any] = []
    for _ in range(3000):
        held = [held]
    return held


SCALE, PROXY, DEEP = Uncopied(2.0), Unbound(), _deep()


class Odd(nn.Module):
    def __init__(self, **held: object) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        vars(self).update(held)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.linear(x)
        return made if DEEP and CIRCLE and EMPTY_CIRCLE and PROXY is not None and SCALE else x


def _circle() -> list[Any]:
    held: list[Any] = [torch.relu]
    held.append(held)
    return held


CIRCLE, EMPTY_CIRCLE = _circle(), _circle()
EMPTY_CIRCLE.pop(0)
HELD: dict[str, dict[str, object]] = {
    "in globals alone": {},
    "a number": {"scale": Uncopied(3.0)},
    "a proxy in a list": {"proxies": [Unbound()]},
    "a proxy": {"proxy": Unbound()},
    "a deep list": {"deep": _deep()},
    "a class that cannot be compared": {"o": _raising("__eq__")},
    "a class without a hash": {"o": _raising("__hash__")},
}


@pytest.mark.parametrize(
    "name", default_only(HELD, ["a proxy in a list", "a proxy", "a class without a hash"])
)
def test_what_cannot_be_looked_at_is_not(name: str) -> None:
    model = Odd(**HELD[name])
    with lower(export(model, (X,))) as lowered:
        step = build(lowered, schedule(lowered.program, ()))
    assert step(X).equal(model(X))


@pytest.mark.parametrize("name", ["__bool__", "__repr__", "__getattribute__"])
def test_a_metaclass_that_raises_is_not_asked(name: str) -> None:
    model = Odd(held=[_raising(name)], alone=_raising(name))
    with lower(export(model, (X,))) as lowered:
        step = build(lowered, schedule(lowered.program, ()))
    assert step(X).equal(model(X))


INNER: list[int] = [1]
TABLE: dict[str, Any] = {"seen": INNER, "more": ([2], {3})}


class WritesDeep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.inner = nn.Linear(4, 4), [1]
        self.table: dict[str, Any] = {"seen": self.inner}

    def forward(self, x: Tensor) -> Tensor:
        TABLE["seen"].append(0)
        TABLE["more"][0].clear()
        TABLE["more"][1].add(4)
        self.table["seen"].append(0)
        made: Tensor = self.linear(x)
        return made


def test_what_containers_within_others_hold_is_put_back_in_place() -> None:
    model = WritesDeep()
    (warning,) = export(model, (X,)).warnings
    assert "test_odd_objects.TABLE" in warning.message
    assert "table" in warning.message
    assert {"seen": [1], "more": ([2], {3})} == TABLE
    assert TABLE["seen"] is INNER
    assert (model.table, model.inner) == ({"seen": [1]}, [1])
    assert model.table["seen"] is model.inner
