"""What stands outside of modules, looked at before every step: a change of it is told."""

from __future__ import annotations

import marshal
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from operator import attrgetter, itemgetter
from types import CellType
from typing import Any

from torch import nn

from ..._torch.constants import (
    ABSENT,
    copied_constant,
    has_array,
    is_constant,
    same_constant,
    with_forms,
)
from ..._torch.objects import has_large, same_object, text_of
from ..._torch.outside import Outside, outside_of
from ...ir.diagnostics import Diagnostic, render

__all__ = ["OutsideWatch", "as_bytes"]

_MOST_TIMES = 3
"""That one place is told."""
_SHOWN = 5
"""Names in a message; of more, the number is told."""


class OutsideWatch:
    """Globals, closures, attributes of classes and of objects, as they were when a step was built.

    `changing` are names of those that the forward itself changes. One that is another is told once
    for each value (FB0528): a forward may read it or not. An object that is replaced by one that
    holds the same is no change, and that one is looked at from then on.
    """

    def __init__(self, model: nn.Module, changing: frozenset[str]):
        self._model, self._changing = model, changing
        self._own: Mapping[str, Any] | None = None
        self._warned: dict[Outside, Any] = {}
        self._times: Counter[str] = Counter()
        self._then: dict[Outside, Any] = {}
        self._look_at(self._places())

    def __deepcopy__(self, memo: dict[int, Any]) -> OutsideWatch:
        """For a copy of the model, which has copies of the objects that the model holds."""
        made = OutsideWatch(deepcopy(self._model, memo), self._changing)
        then = {
            place.name: memo.get(id(value), value) if place.is_object else value
            for place, value in self._then.items()
        }
        made._then = {place: then.get(place.name, now) for place, now in made._then.items()}
        made._ids, made._bytes = [0], object()  # the first call looks closely
        return made

    def large_arrays(self) -> list[str]:
        """Names of those whose numbers are not looked at."""
        return [of.name for of, value in self._then.items() if of.is_object and has_large(value)]

    def is_same(self) -> bool:
        try:
            ids = [id(holder[key]) for holder, key in self._slots]
        except (LookupError, AttributeError, ValueError):  # gone
            return False
        return ids == self._ids and (not self._getters or self._now() == self._bytes)

    def tell(self) -> None:
        """Warns of what changed since it was told last."""
        values = [(place, place.value(), then) for place, then in self._then.items()]
        changed = [*filter(None, (self._change(*of) for of in values))]
        if any(p.is_object and v is not t and v is self._then[p] for p, v, t in values):
            self.look_again()
        self._look_at([*self._then])
        if changed:
            more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
            message = (
                f"{', '.join(changed[:_SHOWN])}{more}, as when the model was captured: a planned "
                "step goes on with what was there then"
            )
            hint = "compile again if the forward reads it, or keep it on a module or in an argument"
            diagnostic = Diagnostic("FB0528", message, hint=hint)
            warnings.warn(render(diagnostic, level="warning"), stacklevel=8)

    def _change(self, place: Outside, value: Any, then: Any) -> str | None:
        """What is to be told of a place, once for each value."""
        noted: Any
        if place.is_object:
            is_same, noted = same_object(value, then), id(value)
        else:
            if value is not ABSENT and not is_constant(value):
                value = type(value)  # no look at a tensor or an object of the user's
            is_same = same_constant(value, then)
            noted = value if value is ABSENT else copied_constant(value)
        if is_same:
            self._warned.pop(place, None)
            if place.is_object:
                self._then[place] = value
            return None
        if place in self._warned and same_constant(noted, self._warned[place]):
            return None
        self._warned[place] = noted  # keeps no object alive
        self._times[place.name] += 1
        more = " (it is looked at no more)" if self._times[place.name] == _MOST_TIMES else ""
        new, old = "gone" if value is ABSENT else text_of(value), text_of(then)
        return f"{place.name} is {f'another {old}' if new == old else f'{new}, not {old}'}{more}"

    def look_again(self, own: Mapping[str, Any] | None = None) -> None:
        """After an object was replaced by one that holds the same: at what hangs on that one. `own`
        are attributes of the planned module."""
        self._own = own if own is not None else self._own
        then = {place.name: value for place, value in self._then.items()}
        warned = {place.name: value for place, value in self._warned.items()}
        places = self._places()
        self._warned = {place: warned[place.name] for place in places if place.name in warned}
        self._then = {place: then[place.name] for place in places if place.name in then}
        self._look_at(places)

    def _places(self) -> list[Outside]:
        places = outside_of(self._model, self._own)
        return [place for place in places if place.name not in self._changing]

    def _look_at(self, places: Sequence[Outside]) -> None:
        """At these from now on, but for those that were told often enough."""
        places = [place for place in places if self._times[place.name] < _MOST_TIMES]
        self._then = {
            place: self._then[place] if place in self._then else _noted(place) for place in places
        }
        objects = [place for place in places if place.is_object]
        self._ids = [id(place.value()) for place in objects]
        self._slots = [
            (_CellContents(p.holder) if isinstance(p.holder, CellType) else p.holder, p.key)
            for p in objects
        ]
        constants = [place for place in places if not place.is_object]
        self._getters = _grouped(constants)
        values = [x for place in constants for x in (place.value(), self._then[place])]
        self._has_arrays = any(is_constant(value) and has_array(value) for value in values)
        self._bytes = self._now()

    def _now(self) -> object:
        try:
            values = [get(holder) for get, holder in self._getters]
            return as_bytes(values, has_arrays=self._has_arrays)
        except (LookupError, AttributeError, ValueError):  # gone
            return object()  # the same as nothing: others are still looked at


class _CellContents:
    """A cell, read as what has keys."""

    def __init__(self, of: CellType):
        self._of = of

    def __getitem__(self, _: str) -> Any:
        return self._of.cell_contents


def _noted(place: Outside) -> Any:
    return place.value() if place.is_object else copied_constant(place.value())


def _grouped(places: Sequence[Outside]) -> list[tuple[Callable[[Any], Any], Any]]:
    """One function for all that one object holds."""
    keys: dict[int, tuple[Any, list[str]]] = {}
    for place in places:
        keys.setdefault(id(place.holder), (place.holder, []))[1].append(place.key)
    return [
        (attrgetter("cell_contents") if isinstance(holder, CellType) else itemgetter(*of), holder)
        for holder, of in keys.values()
    ]


def as_bytes(values: list[Any], *, has_arrays: bool = False) -> object:
    """Equal for what `same_constant` cannot tell apart, and mostly for that alone; the cheapest way
    to compare values with their types. Unequal to everything where there is no such form. Of arrays
    it has the numbers, and where it is said that it `has_arrays`, their dtypes and shapes too."""
    forms = values
    try:
        if has_arrays:
            forms = with_forms(values)
        return marshal.dumps(forms, 2)  # a later version also tells references apart
    except ValueError:  # of a type of its own, such as an `enum`
        flat = [x for part in values for x in (part if isinstance(part, tuple) else (part,))]
        return repr(forms) if all(map(is_constant, flat)) else object()
    except RecursionError:
        return object()
