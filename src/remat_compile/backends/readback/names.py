"""The variables of a function as its statements are done, and what they keep alive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .values import ANodeInstance, RandomState, Value, storages

Storage = ANodeInstance | RandomState


class Held:
    """A note of code that keeps more alive than it should: `wrong` has where they differ, kept up
    to date by each change, so that one look at it costs nothing."""

    def __init__(self) -> None:
        self._counts: Counter[Storage] = Counter()
        self._wanted: set[Storage] = set()
        self.wrong: set[Storage] = set()

    def refer(self, value: Value, by: int) -> None:
        """A reference to a value begins (1) or ends (-1)."""
        for storage in storages(value):
            self._counts[storage] += by
            self._look_at(storage)

    def want(self, storage: Storage, wanted: bool) -> None:
        """Says whether something should be alive from now on."""
        (self._wanted.add if wanted else self._wanted.discard)(storage)
        self._look_at(storage)

    def is_held(self, storage: Storage) -> bool:
        return self._counts[storage] > 0

    def _look_at(self, storage: Storage) -> None:
        # What the caller holds is alive whatever the code does.
        callers = isinstance(storage, ANodeInstance) and storage.number == 0
        if not callers and (self._counts[storage] > 0) != (storage in self._wanted):
            self.wrong.add(storage)
        else:
            self.wrong.discard(storage)


class Variables:
    """Names -> values. A container (`args`) counts like a variable until it is emptied."""

    def __init__(self, held: Held):
        self.held = held
        self._values: dict[str, Value] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def bind(self, name: str, value: Value) -> None:
        self.held.refer(value, 1)
        if name in self._values:
            self.held.refer(self._values[name], -1)
        self._values[name] = value

    def unbind(self, name: str) -> None:
        self.held.refer(self._values.pop(name), -1)
