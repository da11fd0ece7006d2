"""Names and integers of the IR as Python text, for every backend that writes Python."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable
from typing import assert_never

from ..ir.expr import Add, CeilDiv, Const, Expr, FloorDiv, Max, Mul, RoundUp, Sym
from ..ir.graph import Graph
from ..ir.program import Program
from ..ir.schedule import Compute, Schedule

__all__ = ["Names", "loss_index"]


class Names:
    """A Python variable for each symbol, aNode and view, none of them in `reserved`."""

    def __init__(self, program: Program, reserved: Iterable[str]):
        self._variables: dict[str, str] = {}
        graph = program.graph
        taken = set(reserved)
        for name in (*(s.name for s in program.symbols), *graph.anode, *graph.view):
            variable = re.sub(r"\W", "_", name)
            while keyword.iskeyword(variable) or variable in taken or variable.startswith("_"):
                variable = f"v{variable}"
            taken.add(variable)
            self._variables[name] = variable

    def variable(self, name: str) -> str:
        """The Python variable of an aNode, view or symbol."""
        return self._variables[name]

    def integer(self, expr: Expr) -> str:
        match expr:
            case Const(value):
                return str(value)
            case Sym(name):
                return self.variable(name)
            case Add(terms):
                return "(" + " + ".join(map(self.integer, terms)) + ")"
            case Mul(factors):
                return " * ".join(map(self.integer, factors))
            case FloorDiv(dividend, divisor):
                return f"(({self.integer(dividend)}) // {divisor})"
            case CeilDiv(dividend, divisor):
                return f"(-(-({self.integer(dividend)}) // {divisor}))"
            case Max(terms):
                return "max(" + ", ".join(map(self.integer, terms)) + ")"
            case RoundUp(value, multiple):
                return f"(-(-({self.integer(value)}) // {multiple}) * {multiple})"
            case _:
                assert_never(expr)


def loss_index(graph: Graph, schedule: Schedule) -> int:
    """The step that runs the loss: the border between forward and backward."""
    name = graph.loss.name
    return next(
        i for i, s in enumerate(schedule.steps) if isinstance(s, Compute) and s.cnode == name
    )
