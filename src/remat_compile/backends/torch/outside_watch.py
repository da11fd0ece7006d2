"""Constants outside of modules, looked at before every step: a change of one is told."""

from __future__ import annotations

import marshal
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from operator import attrgetter, itemgetter
from types import CellType
from typing import Any

from torch import nn

from ..._torch.constants import ABSENT, is_constant, same_constant
from ..._torch.outside import Outside, outside_of
from ...ir.diagnostics import Diagnostic, render

__all__ = ["OutsideWatch", "as_bytes", "short"]

_MOST_TIMES = 3
"""That one place is told."""
_SHOWN = 5
"""Names in a message; of more, the number is told."""


class OutsideWatch:
    """Globals, closures, attributes of classes and of objects, as they were when a step was built.

    `changing` are names of those that the forward itself changes. One that is another is told once
    for each value (FB0528): a forward may read it or not.
    """

    def __init__(self, model: nn.Module, changing: frozenset[str]):
        self._model, self._changing = model, changing
        places = [place for place in outside_of(model) if place.name not in changing]
        self._then = {place: deepcopy(place.value()) for place in places}
        self._warned: dict[Outside, Any] = {}
        self._times: Counter[Outside] = Counter()
        self._getters = _grouped(places)
        self._bytes = self._now()

    def __deepcopy__(self, memo: dict[int, Any]) -> OutsideWatch:
        made = OutsideWatch(deepcopy(self._model, memo), self._changing)
        then = {place.name: value for place, value in self._then.items()}
        made._then = {place: then.get(place.name, now) for place, now in made._then.items()}
        made._bytes = object()  # the first call looks closely
        return made

    def is_same(self) -> bool:
        return not self._getters or self._now() == self._bytes

    def tell(self) -> None:
        """Warns of what changed since it was told last."""
        changed = []
        for place, then in [*self._then.items()]:
            value = place.value()
            if value is not ABSENT and not is_constant(value):
                value = type(
                    value
                )  # no look at a tensor or an object of the user's, nor kept alive
            if same_constant(value, then):
                self._warned.pop(place, None)
            elif not same_constant(value, self._warned.get(place, then)):
                new = "gone" if value is ABSENT else short(value)
                changed.append(f"{place.name} is {new}, not {short(then)}")
                self._warned[place] = value if value is ABSENT else deepcopy(value)
                self._times[place] += 1
                if self._times[place] == _MOST_TIMES:  # a counter, a meter
                    changed[-1] += " (it is looked at no more)"
                    del self._then[place]
                    self._getters = _grouped([*self._then])
        self._bytes = self._now()
        if changed:
            more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
            message = (
                f"{', '.join(changed[:_SHOWN])}{more}, as when the model was captured: a planned "
                "step goes on with what was there then"
            )
            hint = "compile again if the forward reads it, or keep it on a module or in an argument"
            diagnostic = Diagnostic("FB0528", message, hint=hint)
            warnings.warn(render(diagnostic, level="warning"), stacklevel=6)

    def _now(self) -> object:
        try:
            return as_bytes([get(holder) for get, holder in self._getters])
        except (KeyError, AttributeError, ValueError):  # gone
            return object()  # the same as nothing: others are still looked at


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


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
