"""What stands outside of modules, looked at before every step: a change of it is told."""

from __future__ import annotations

import marshal
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from operator import attrgetter, itemgetter
from types import CellType
from typing import Any

from torch import nn

from ..._torch.arrays import ArrayForm, is_array
from ..._torch.constants import ABSENT, copied_constant, has_array, is_constant, same_constant
from ..._torch.objects import same_object, text_of
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
        self._forms: dict[Outside, ArrayForm] = {}  # of arrays among the objects
        self._look_at(self._places())

    def __deepcopy__(self, memo: dict[int, Any]) -> OutsideWatch:
        """For a copy of the model, which has copies of the objects that the model holds."""
        made = OutsideWatch(deepcopy(self._model, memo), self._changing)
        keys, new_keys = _numbered(self._then), _numbered(made._then)
        then = {
            keys[place]: memo.get(id(value), value) if place.is_object else value
            for place, value in self._then.items()
        }
        forms = {keys[place]: form for place, form in self._forms.items() if place in keys}
        made._then = {place: then.get(new_keys[place], now) for place, now in made._then.items()}
        made._forms = {
            place: forms.get(new_keys[place], now)
            for place, now in made._forms.items()
            if place in new_keys
        }
        made._ids, made._bytes = [0], object()  # the first call looks closely
        return made

    def arrays_in_part(self) -> list[str]:
        """Names of those that are not looked at as a whole."""
        return [place.name for place in self._forms]

    def is_same(self) -> bool:
        try:
            ids = [id(holder[key]) for holder, key in self._slots]
        except (LookupError, AttributeError, ValueError):  # gone
            return False
        is_same = ids == self._ids and (not self._getters or self._now() == self._bytes)
        return is_same and all(same_constant(at.value(), now) for at, now in self._with_arrays)

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
            form = ArrayForm.of(value) if is_array(value) else None
            at_capture = self._forms.get(place)
            is_same = same_object(value, then) and (form is None or form == at_capture)
            noted = (id(value), form)
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
        keys, places = _numbered(self._then), self._places()
        of_key = {key: place for place, key in _numbered(places).items()}
        moved = {place: of_key[key] for place, key in keys.items() if key in of_key}
        self._warned = {moved[p]: value for p, value in self._warned.items() if p in moved}
        self._then = {moved[p]: value for p, value in self._then.items() if p in moved}
        self._forms = {moved[p]: form for p, form in self._forms.items() if p in moved}
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
        for place in objects:
            if is_array(self._then[place]) and place not in self._forms:
                self._forms[place] = ArrayForm.of(self._then[place])
        now = [(place, place.value()) for place in places]
        self._with_arrays = [(at, copied_constant(value)) for at, value in now if _has_array(value)]
        with_arrays = {place for place, _ in self._with_arrays}
        self._getters = _grouped([p for p in places if not p.is_object and p not in with_arrays])
        self._bytes = self._now()

    def _now(self) -> object:
        try:
            return as_bytes([get(holder) for get, holder in self._getters])
        except (LookupError, AttributeError, ValueError):  # gone
            return object()  # the same as nothing: others are still looked at


def _numbered(places: Iterable[Outside]) -> dict[Outside, tuple[str, int]]:
    """Each with its name and which of that name it is: two closures of one function have
    the same."""
    count = Counter[str]()
    numbered: dict[Outside, tuple[str, int]] = {}
    for place in places:
        numbered[place] = place.name, count[place.name]
        count[place.name] += 1
    return numbered


def _has_array(value: Any) -> bool:
    return is_array(value) or (is_constant(value) and has_array(value))


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


def as_bytes(values: list[Any]) -> object:
    """Equal for what `same_constant` cannot tell apart, and mostly for that alone; the cheapest way
    to compare values with their types. Unequal to everything where there is no such form."""
    try:
        return marshal.dumps(values, 2)  # a later version also tells references apart
    except ValueError:  # of a type of its own, such as an `enum`
        flat = [x for part in values for x in (part if isinstance(part, tuple) else (part,))]
        return repr(values) if all(map(is_constant, flat)) else object()
