"""What containers hold, those within them included, kept to be put back in place.

Example: `table = {"seen": [1]}` with another name for its list. A run that appends to it leaves
`[1]` there again under both names: no container is another than before.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any

from .arrays import MOST_BYTES_AT_CAPTURE, is_same_array, is_writable, plain_array

__all__ = ["CONTAINERS", "Contents", "parts_of"]

CONTAINERS = (list, dict, set, deque)
"""What the Python of a forward may change in place."""


class Contents:
    """Of the containers among `values`, and of arrays of NumPy of 16 MiB at most."""

    def __init__(self, values: Iterable[Any]):
        self._held: dict[int, tuple[Any, list[Any]]] = {}
        self._arrays: dict[int, tuple[Any, Any]] = {}
        waiting = [*values]
        while waiting:
            value = waiting.pop()
            kind = type(value)
            if issubclass(kind, tuple):
                waiting += parts_of(value)
            elif issubclass(kind, CONTAINERS) and id(value) not in self._held:
                parts = parts_of(value)
                self._held[id(value)] = value, parts
                for part in parts:
                    waiting += part if issubclass(kind, dict) else (part,)
            elif is_writable(value) and plain_array(value).nbytes <= MOST_BYTES_AT_CAPTURE:
                self._arrays[id(value)] = plain_array(value), plain_array(value).copy()

    def put_back(self) -> None:
        for value, then in self._held.values():
            if _ids(value, parts_of(value)) == _ids(value, then):
                continue
            value.clear()
            if isinstance(value, list | deque):
                value.extend(then)
            else:
                value.update(then)
        for array, numbers in self._arrays.values():
            is_alike = array.dtype == numbers.dtype and array.shape == numbers.shape
            if is_alike and array.flags.writeable and not is_same_array(array, numbers):
                array[...] = numbers


def parts_of(container: Any) -> list[Any]:
    """What a container of Python holds, of a dictionary its pairs, as the built-in class has it.

    A class of the user's may do anything where it is asked to list it: a table of models in
    `transformers` imports every model, and raises where one cannot be imported.
    """
    kinds = (
        list,
        OrderedDict,
        dict,
        set,
        frozenset,
        deque,
        tuple,
    )  # an ordered one's order is its own
    kind: Any = next(kind for kind in kinds if issubclass(type(container), kind))
    return [*(kind.items(container) if issubclass(kind, dict) else kind.__iter__(container))]


def _ids(value: Any, parts: list[Any]) -> object:
    if isinstance(value, dict):
        return [(id(key), id(part)) for key, part in parts]
    ids = [*map(id, parts)]
    return frozenset(ids) if isinstance(value, set) else ids
