"""Objects that modules hold (functions, members of an `Enum`, configurations), looked at before
every step, and attributes of their classes, which a module may be given one of its own of.

Looked at is what code that a forward may run reads, and does not assign itself. One that holds the
same as that of the capture is no other.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from ..._torch.arrays import ArrayForm, is_whole
from ..._torch.constants import ABSENT, is_constant, same_constant
from ..._torch.libraries import is_library_module
from ..._torch.objects import (
    arrays_in,
    copied_table,
    is_object,
    is_table,
    leaves_of,
    same_object,
    text_of,
)
from ..._torch.outside import OF_MODULES
from ..._torch.reached import Reached

__all__ = ["HeldObjects"]


@dataclass(frozen=True, eq=False)
class _HeldObject:
    """What stood under a key of a module when the step was built. `holder` is None for the planned
    module, which has attributes of its own beside those of the model. `forms` are of the arrays in
    `then`, which may be written to."""

    name: str
    holder: dict[str, Any] | None
    key: str
    then: Any
    forms: tuple[ArrayForm, ...] = ()

    @classmethod
    def of(cls, name: str, holder: dict[str, Any] | None, key: str, value: Any) -> _HeldObject:
        forms = map(ArrayForm.of, arrays_in(value))
        return cls(name, holder, key, copied_table(value), tuple(forms))

    def arrays(self, value: Any) -> list[tuple[Any, ArrayForm]]:
        """Those of a value in its place, each with what it is to be."""
        return [*zip(arrays_in(value), self.forms, strict=False)] if self.forms else []

    def is_alike(self, now: Any) -> bool:
        return _is_alike(now, self.then) and all(f.is_of(a) for a, f in self.arrays(now))


class HeldObjects:
    """Of `modules`, by path, but for attributes that are `changing`, by path too."""

    def __init__(
        self, modules: Mapping[str, nn.Module], changing: frozenset[str], reached: Reached
    ):
        self._held: list[_HeldObject] = []
        self._of_classes: list[_HeldObject] = []
        for path, module in modules.items():
            holders = (vars(module),) if path else (vars(module), None)
            of_class = _asked_of(module, reached) | _of_class(type(module), reached)
            for key, value in {**of_class, **vars(module)}.items():
                name = f"{path}.{key}" if path else key
                is_own = key in OF_MODULES or key == "forward"
                if is_own or not reached.reads(key) or name in changing:
                    continue
                if key not in vars(module):
                    self._of_classes += (
                        _HeldObject.of(name, holder, key, value) for holder in holders
                    )
                elif is_object(value) or is_table(value):
                    self._held += (_HeldObject.of(name, holder, key, value) for holder in holders)
        # The values are held, so that no other object has their id.
        self._values: list[Any] = []
        self._arrays: list[tuple[Any, ArrayForm]] = []
        self._look()
        self._ids = [0]  # unknown: the first call looks closely

    def _look(self) -> None:
        self._slots = [(of.holder, of.key) for of in self._held if of.holder is not None]
        self._keys_of_own = [of.key for of in self._held if of.holder is None]
        self._tables = [(of.holder, of.key) for of in self._held if is_table(of.then)]
        self._ids = [*map(id, self._values)]
        given: dict[int, tuple[dict[str, Any] | None, set[str]]] = {}
        for of in self._of_classes:
            given.setdefault(id(of.holder), (of.holder, set()))[1].add(of.key)
        self._given = [*given.values()]

    def __deepcopy__(self, memo: dict[int, Any]) -> HeldObjects:
        """For copies of the modules, which `memo` has with their dictionaries: they have copies of
        what they hold, and share what their classes do."""

        def copied(of: _HeldObject) -> _HeldObject:
            holder = memo.get(id(of.holder), of.holder)
            return replace(of, holder=holder, then=copied_table(of.then, memo))

        made = copy(self)
        memo[id(self)] = made
        made._held = [*map(copied, self._held)]
        made._of_classes = [*map(copied, self._of_classes)]
        made._values = []
        made._look()
        made._ids = [0]
        return made

    def arrays_in_part(self) -> list[str]:
        """Names of what has arrays that are not looked at as a whole."""
        return [of.name for of in self._held if not all(map(is_whole, arrays_in(of.then)))]

    def is_same(self, owner: nn.Module) -> bool:
        """Whether there is the same as at the last close look. KeyError where one is gone."""
        own = vars(owner)
        ids = [id(holder[key]) for holder, key in self._slots]
        ids += [id(own[key]) for key in self._keys_of_own]
        if self._tables:
            ids += map(id, self._leaves(own))
        if ids != self._ids or not all(form.is_of(array) for array, form in self._arrays):
            return False
        return all(
            (own if holder is None else holder).keys().isdisjoint(keys)
            for holder, keys in self._given
        )

    def _leaves(self, own: dict[str, Any]) -> list[Any]:
        tables = ((own if holder is None else holder)[key] for holder, key in self._tables)
        return [leaf for table in tables for leaf in leaves_of(table) or ()]

    def changes(self, owner: nn.Module) -> list[str]:
        """What is another one, in words with module paths."""
        changes: dict[str, None] = {}
        own = vars(owner)
        for of in (*self._held, *self._of_classes):
            holder = own if of.holder is None else of.holder
            if of.key in holder:
                if not of.is_alike(holder[of.key]):
                    new, old = text_of(holder[of.key]), _old_text(of.then)
                    what = f"another {old}" if new == old else f"{new}, not {old}"
                    changes[f"{of.name} is {what}"] = None
            elif of in self._held:
                changes[f"{of.name} is gone, not {text_of(of.then)}"] = None
        return list(changes)

    def take(self, owner: nn.Module) -> bool:
        """Where nothing changed, what there is now is looked at from now on. Says whether an object
        stands in the place of another one that holds the same."""
        own, before = vars(owner), self._values or [of.then for of in self._held]

        def holder(of: _HeldObject) -> dict[str, Any]:
            return own if of.holder is None else of.holder

        self._held += (of for of in self._of_classes if of.key in holder(of))
        self._of_classes = [of for of in self._of_classes if of.key not in holder(of)]
        of_others = [of for of in self._held if of.holder is not None]
        self._held = [*of_others, *(of for of in self._held if of.holder is None)]
        self._values = [holder(of)[of.key] for of in self._held]
        self._held = [
            replace(of, then=value) if is_object(of.then) else of
            for of, value in zip(self._held, self._values, strict=True)
        ]
        self._look()
        pairs = zip(self._held, self._values, strict=True)
        arrays = {id(pair[0]): pair for of, value in pairs for pair in of.arrays(value)}
        self._arrays = [*arrays.values()]  # each once
        self._values += self._leaves(own)
        self._ids = [*map(id, self._values)]
        return [*map(id, before)] != self._ids


def _is_alike(now: Any, then: Any) -> bool:
    if now is then:
        return True
    if is_constant(now) and is_constant(then):
        return same_constant(now, then)
    return same_object(now, then)


def _old_text(then: Any) -> str:
    return "absent" if then is ABSENT else text_of(then)


def _asked_of(module: nn.Module, reached: Reached) -> dict[str, Any]:
    """What code of the user's asks a module for that is not there (`getattr(self, "x", None)`)."""
    kind = type(module)
    if is_library_module(sys.modules.get(kind.__module__)):
        return {}
    there = {*vars(module), *(key for base in kind.__mro__ for key in vars(base))}
    return dict.fromkeys(sorted(reached.asked - there), ABSENT)


def _of_class(kind: type, reached: Reached) -> dict[str, Any]:
    """Attributes of classes of the user's that an instance may have another one of."""
    attributes: dict[str, Any] = {}
    for base in kind.__mro__:
        if is_library_module(sys.modules.get(base.__module__)):
            continue
        for key, value in vars(base).items():
            is_looked_at = not key.startswith("__") and key != "forward" and reached.reads(key)
            is_value = is_constant(value) or is_object(value)
            if is_looked_at and is_value and not issubclass(type(value), property):
                attributes.setdefault(key, value)
    return attributes
