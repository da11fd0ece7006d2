"""The bytes of every step as sums of sizes, and where over the ranges they are greatest.

Plain arithmetic, to find what to ask z3 and to refute: that a budget is exceeded at one
value of the symbols needs no proof but the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from .events import Event
from .memory import BESIDE_ACTIVATIONS
from .ranges import Box, bounds, halves
from .sizes import Amounts, value
from .statements import Statements

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Profile", "Rows", "profile_of"]

MOST_BOXES = 4_000
"""How many boxes the search for the greatest sum looks at; z3 corrects what it misses."""


@dataclass(frozen=True)
class Rows:
    """Sums of sizes: `count_RF` says how often row R has form F (numbers of `forms`)."""

    amounts: Amounts
    count_RF: np.ndarray[Any, Any]

    def highest(self, box: Box) -> int:
        """No row is above it anywhere in the box."""
        return self._greatest([bounds(form, box)[1] for form in self.amounts.forms])

    def lowest(self, box: Box) -> int:
        """Some row is at least this everywhere in the box (sizes are not negative)."""
        return self._greatest([bounds(form, box)[0] for form in self.amounts.forms])

    def at(self, env: Mapping[str, int]) -> int:
        """The greatest row at `env`."""
        return self._greatest([value(form, env) for form in self.amounts.forms])

    def _greatest(self, size_F: list[int]) -> int:
        import numpy as np

        if not len(self.count_RF):
            return 0
        largest = max(map(abs, size_F), default=0)
        wide = largest * int(np.abs(self.count_RF).sum(axis=1).max()) >= 1 << 62
        sums_R = self.count_RF @ np.array(size_F, dtype=object if wide else np.int64)
        return int(sums_R.max())

    def greatest(self, box: Box) -> tuple[int, dict[str, int]]:
        """A great value over the box and where it is: best first, the least values of each
        box tried. It is the greatest one unless `MOST_BOXES` were not enough."""
        best, where = -1, {name: low for name, (low, _) in box.items()}
        heap: list[tuple[int, int, dict[str, tuple[int, int]]]] = []
        count = 0

        def look(part: dict[str, tuple[int, int]]) -> None:
            nonlocal best, where, count
            count += 1
            for end in (0, 1):
                env = {name: ends[end] for name, ends in part.items()}
                if (found := self.at(env)) > best:
                    best, where = found, env
            heappush(heap, (-self.highest(part), count, part))

        look(dict(box))
        while heap and count < MOST_BOXES:
            upper, _, part = heappop(heap)
            if -upper <= best:
                break
            for half in halves(part) or ():
                look(half)
        return best, where


@dataclass(frozen=True)
class Profile:
    """The rows of all bounds."""

    device: Rows
    activation: Rows
    host: Rows


def profile_of(statements: Statements, events: Iterable[Event], amounts: Amounts) -> Profile:
    """What every step that takes memory takes, rows that cannot be the greatest left out."""
    import numpy as np

    width = len(amounts.forms)
    now = {"act": np.zeros(width, np.int64), "held": np.zeros(width, np.int64)}
    device: list[np.ndarray[Any, Any]] = []
    activation: list[np.ndarray[Any, Any]] = []
    host: list[np.ndarray[Any, Any]] = []
    on_host = np.zeros(width, np.int64)
    alive = set(statements.caller)
    for form in (*amounts.existing, *(amounts.anode[name] for name in statements.caller)):
        now["held"][form] += 1

    def sum_of(name: str) -> str:
        return "held" if statements.anodes[name].kind in BESIDE_ACTIVATIONS else "act"

    def row(event: Event | None) -> None:
        act, all_ = now["act"].copy(), now["act"] + now["held"]
        if event is not None and event.cnode is not None:
            workspace = amounts.workspace[event.cnode.name][0 if event.execution == 1 else 1]
            act[workspace] += 1
            all_[workspace] += 1
        for name in () if event is None else event.makes:
            all_[amounts.anode[name]] += 1
            act[amounts.anode[name]] += sum_of(name) == "act"
        device.append(all_)
        activation.append(act)

    for event in events:
        if event.takes:
            row(event)
        for name in event.to_host:
            on_host[amounts.anode[name]] += 1
            host.append(on_host.copy())
        for name in event.off_host:
            on_host[amounts.anode[name]] -= 1
        made = event.makes if event.becomes is None else (event.becomes,)
        gone = event.gives_back if event.ends is None else (event.ends,)
        for name in made:
            if name not in alive:
                alive.add(name)
                now[sum_of(name)][amounts.anode[name]] += 1
        for name in gone:
            if name in alive and name not in statements.caller:
                alive.remove(name)
                now[sum_of(name)][amounts.anode[name]] -= 1
        if event.ends is not None:
            row(None)
    return Profile(*(Rows(amounts, _thinned(rows)) for rows in (device, activation, host)))


def _thinned(rows: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Without the rows that a neighbour is at least as great as, in every size."""
    import numpy as np

    if not rows:
        return np.zeros((0, 0), np.int64)
    table_RF = np.stack(rows)
    while len(table_RF) > 1:
        below_next = np.append((table_RF[:-1] <= table_RF[1:]).all(axis=1), False)
        below_last = np.insert((table_RF[1:] <= table_RF[:-1]).all(axis=1), 0, False)
        # Of two equal neighbours one stays.
        drop = below_next | (below_last & ~np.insert(below_next[:-1], 0, False))
        if not drop.any():
            break
        table_RF = table_RF[~drop]
    return np.unique(table_RF, axis=0)
