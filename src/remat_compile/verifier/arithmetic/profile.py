"""The bytes of every step as sums of sizes, and where over the ranges they are greatest.

Plain arithmetic, to find what to ask z3 and to refute: that a budget is exceeded at one
value of the symbols needs no proof but the sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from ...ir.expr import Expr
from ..answer import Deadline
from ..obligations.memory import Tally, starts_on_host
from ..read.events import Event
from ..read.sizes import Amounts, value
from ..read.statements import Statements
from .intervals import Box, bounds, halves
from .walk import Alive, counted

if TYPE_CHECKING:
    import numpy as np

    Table = np.ndarray[Any, Any]

MOST_BOXES = 4_000
"""Limit on the boxes in the search for the greatest sum; z3 corrects what it misses."""


@dataclass(frozen=True)
class Rows:
    """Sums of sizes, none below another one in every size.

    `count_RF` says how often row R has form F, `fixed_R` what comes on top, `forms` which
    form of `amounts` F is. `of` gives, per counted step, a row that is nowhere below it.
    """

    forms: tuple[int, ...]
    exprs: tuple[Expr, ...]
    count_RF: Table
    fixed_R: Table
    of: Table

    @cached_property
    def tallies(self) -> tuple[Tally, ...]:
        """The rows as sums."""
        return tuple(map(self._tally, range(len(self.count_RF))))

    def _tally(self, row: int) -> Tally:
        counts = zip(self.forms, self.count_RF[row], strict=True)
        count_of = Counter({form: int(count) for form, count in counts if count})
        return Tally(int(self.fixed_R[row]), count_of)

    def above(self, step: int) -> Tally:
        """A row that the row of a step, by its number, is nowhere above."""
        return self.tallies[int(self.of[step])]

    def highest(self, box: Box) -> int:
        """No row is above it anywhere in the box."""
        return self._greatest([bounds(expr, box)[1] for expr in self.exprs])

    def lowest(self, box: Box) -> int:
        """Some row is at least this everywhere in the box."""
        return self._greatest([bounds(expr, box)[0] for expr in self.exprs])

    def at(self, env: Mapping[str, int]) -> int:
        """The greatest row at `env`."""
        return self._greatest([value(expr, env) for expr in self.exprs])

    def _greatest(self, size_F: list[int]) -> int:
        import numpy as np

        if not len(self.count_RF):
            return 0
        largest = max(map(abs, size_F), default=0)
        wide = largest * int(self.count_RF.sum(axis=1).max()) >= 1 << 62
        sizes_F = np.array(size_F, dtype=object if wide else np.int64)
        return int((self.count_RF @ sizes_F + self.fixed_R).max())

    def greatest(self, box: Box, deadline: Deadline) -> tuple[int, dict[str, int]]:
        """A great value over the box and where it is: best first, both ends of each box tried.

        It is the greatest one unless `MOST_BOXES` were not enough. Raises `Late`.
        """
        best, where = -1, {name: low for name, (low, _) in box.items()}
        heap: list[tuple[int, int, dict[str, tuple[int, int]]]] = []
        count = 0

        def look(part: dict[str, tuple[int, int]]) -> None:
            nonlocal best, where, count
            deadline.check()
            count += 1
            for end in (0, 1):
                env = {name: ends[end] for name, ends in part.items()}
                if (total := self.at(env)) > best:
                    best, where = total, env
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

    @property
    def all(self) -> tuple[Rows, Rows, Rows]:
        """In the order of the bounds in `Bytes`."""
        return self.device, self.activation, self.host

    def cover(
        self, box: Box, limits: Sequence[int], deadline: Deadline
    ) -> tuple[list[Box], list[Box]]:
        """Boxes that make up `box`: where no row can be above its bound if every size is
        as great as it gets anywhere in the box, and those that are left when there are
        `MOST_BOXES`, or that are points. Raises `Late`."""
        done: list[Box] = []
        open_: list[dict[str, tuple[int, int]]] = [dict(box)]
        left: list[Box] = []
        while open_:
            deadline.check()
            part = open_.pop()
            if all(rows.highest(part) <= n for rows, n in zip(self.all, limits, strict=True)):
                done.append(part)
            elif len(done) + len(open_) < MOST_BOXES and (parts := halves(part)):
                open_ += parts
            else:
                left.append(part)
        return done, left


class _Walk:
    """Counts of forms along the steps; fixed ones are added up in column 0."""

    def __init__(self, statements: Statements, amounts: Amounts, number: Sequence[int | None]):
        import numpy as np

        self.statements = statements
        self.amounts = amounts
        self.number = number
        self.free = tuple(form for form, size in enumerate(number) if size is None)
        self.column = {form: index for index, form in enumerate(self.free, 1)}
        wide = any(size is not None and size >= 1 << 50 for size in number)
        zero = np.zeros(len(self.free) + 1, object if wide else np.int64)
        self.sums = {"act": zero.copy(), "held": zero.copy()}
        self.device: list[Table] = []
        self.activation: list[Table] = []
        self.host: list[Table] = []
        self.on_host = zero.copy()
        self.alive = Alive(statements)
        for form in (*amounts.existing, *(amounts.anode[name] for name in statements.caller)):
            self.add(self.sums["held"], form, 1)
        at_home = (amounts.anode[name] for name in statements.homes)
        for form in (*amounts.existing_host, *at_home):
            self.add(self.on_host, form, 1)
        if starts_on_host(statements, amounts):
            self.host.append(self.on_host.copy())

    def add(self, counts: Table, form: int, sign: int) -> None:
        number = self.number[form]
        if number is None:
            counts[self.column[form]] += sign
        else:
            counts[0] += sign * number

    def row(self, event: Event | None) -> None:
        act, all_ = self.sums["act"].copy(), self.sums["act"] + self.sums["held"]
        if event is not None and event.cnode is not None:
            workspace = self.amounts.workspace[event.cnode.name][0 if event.execution == 1 else 1]
            self.add(act, workspace, 1)
            self.add(all_, workspace, 1)
        for name in () if event is None else event.makes:
            self.add(all_, self.amounts.anode[name], 1)
            if counted(self.statements, name) == "act":
                self.add(act, self.amounts.anode[name], 1)
        self.device.append(all_)
        self.activation.append(act)

    def step(self, event: Event) -> None:
        if event.takes:
            self.row(event)
        for name in event.to_host:
            self.add(self.on_host, self.amounts.anode[name], 1)
            self.host.append(self.on_host.copy())
        for name in event.off_host:
            self.add(self.on_host, self.amounts.anode[name], -1)
        for old, new in event.takes_over if event.update is not None else ():
            self.add(self.on_host, self.amounts.anode[old], -1)
            self.add(self.on_host, self.amounts.anode[new], 1)
        for name, sign in self.alive.after(event):
            self.add(self.sums[counted(self.statements, name)], self.amounts.anode[name], sign)
        if event.renames:
            self.row(None)


def profile_of(
    statements: Statements,
    events: Iterable[Event],
    amounts: Amounts,
    number: Sequence[int | None],
) -> Profile:
    """The bytes of every counted step, in the order of the rows of `memory.encode_memory`.

    `number` holds the bytes of the forms that are fixed, None for the others.
    """
    steps = _Walk(statements, amounts, number)
    for event in events:
        steps.step(event)
    return Profile(*(_rows(steps, rows) for rows in (steps.device, steps.activation, steps.host)))


def _rows(steps: _Walk, rows: list[Table]) -> Rows:
    import numpy as np

    exprs = tuple(steps.amounts.forms[form] for form in steps.free)
    if not rows:
        none = np.zeros((0, len(exprs)), np.int64)
        return Rows(steps.free, exprs, none, none.sum(axis=1), np.zeros(0, np.int64))
    table = np.stack(rows)
    chosen = _highest(table)
    of = np.full(len(table), -1)
    columns = np.ascontiguousarray(table.T)
    left = np.arange(len(table))
    for index, row in enumerate(chosen):
        of[_below(columns, left, row)] = index
        left = left[of[left] < 0]
    return Rows(steps.free, exprs, chosen[:, 1:], chosen[:, 0], of)


def _below(columns: Table, left: Table, row: Table) -> Table:
    """The rows among `left` that are nowhere above `row`; `columns` has one row per column."""
    for column, most in zip(columns, row, strict=True):
        left = left[column[left] <= most]
    return left


def _highest(table: Table) -> Table:
    """The rows that no other row is at least as great as, in every column."""
    import numpy as np

    columns = np.ascontiguousarray(table.T)
    left = np.argsort(-table.sum(axis=1), kind="stable")
    keep = np.ones(len(table), bool)
    chosen: list[Table] = []
    while len(left):  # the greatest sum is below no other row
        chosen.append(table[left[0]])
        keep[_below(columns, left, chosen[-1])] = False
        left = left[keep[left]]
    return np.stack(chosen)
