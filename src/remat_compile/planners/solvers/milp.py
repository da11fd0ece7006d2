"""A mixed-integer linear program as arrays, and what a solver answers about it.

minimise cost·x  subject to  row_lower <= A x <= row_upper,  lower <= x <= upper,
with x integer where `integer` says so. A is stored by rows: row r has the entries
`index[starts[r]:starts[r + 1]]` and `value[...]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

INFINITY = float("inf")

Vector = NDArray[np.float64]
Status = Literal["optimal", "feasible", "infeasible", "unknown"]
"""`feasible`: a point, not proven optimal; `unknown`: no point, and none ruled out."""

OnPoint = Callable[[Vector, float], None]
"""Takes each point that a solver finds, with its objective."""


@dataclass(frozen=True, eq=False)
class Milp:
    cost: Vector
    lower: Vector
    upper: Vector
    integer: NDArray[np.uint8]
    starts: NDArray[np.int32]
    index: NDArray[np.int32]
    value: Vector
    row_lower: Vector
    row_upper: Vector

    @property
    def columns(self) -> int:
        return len(self.cost)

    @property
    def rows(self) -> int:
        return len(self.row_lower)

    def relaxed(self) -> Milp:
        """The relaxation without integrality: its optimum is a lower bound."""
        return replace(self, integer=np.zeros_like(self.integer))


@dataclass(frozen=True, eq=False)
class Answer:
    """The best point found (None: none), its objective, and a proven lower bound on the
    objective of every point (-inf where there is none)."""

    status: Status
    point: Vector | None
    objective: float
    bound: float
    seconds: float = 0.0


Terms = list[tuple[int, float]]
"""(column, value): part of a row."""


def merged(terms: Terms) -> Terms:
    """The same sum with each column once."""
    total: dict[int, float] = {}
    for column, value in terms:
        total[column] = total.get(column, 0.0) + value
    return [(column, value) for column, value in total.items() if value]


class MilpBuilder:
    """Collects columns and rows one by one."""

    def __init__(self) -> None:
        self._columns: list[tuple[float, float, float, bool]] = []
        self._starts: list[int] = [0]
        self._index: list[int] = []
        self._value: list[float] = []
        self._rows: list[tuple[float, float]] = []

    @property
    def columns(self) -> int:
        return len(self._columns)

    @property
    def entries(self) -> int:
        """Entries of all rows so far: 70 bytes each until they are arrays."""
        return len(self._index)

    def column(
        self, cost: float = 0.0, lower: float = 0.0, upper: float = 1.0, integer: bool = True
    ) -> int:
        """Adds a column and returns its number; binary by default."""
        self._columns.append((cost, lower, upper, integer))
        return len(self._columns) - 1

    def price(self, column: int, cost: float) -> None:
        """Sets the cost of a column that was added without one."""
        self._columns[column] = (cost, *self._columns[column][1:])

    def cost(self, column: int) -> float:
        """The cost of a column so far."""
        return self._columns[column][0]

    def row(
        self,
        terms: Iterable[tuple[int, float]],
        lower: float = -INFINITY,
        upper: float = INFINITY,
    ) -> None:
        """Adds lower <= sum of value * column <= upper; each column at most once."""
        for column, value in terms:
            self._index.append(column)
            self._value.append(value)
        self._starts.append(len(self._index))
        self._rows.append((lower, upper))

    def build(self) -> Milp:
        cost, lower, upper, integer = np.array(self._columns, dtype=np.float64).reshape(-1, 4).T
        row_lower, row_upper = np.array(self._rows, dtype=np.float64).reshape(-1, 2).T
        return Milp(
            cost.copy(),
            lower.copy(),
            upper.copy(),
            integer.astype(np.uint8),
            np.array(self._starts, dtype=np.int32),
            np.array(self._index, dtype=np.int32),
            np.array(self._value, dtype=np.float64),
            row_lower.copy(),
            row_upper.copy(),
        )
