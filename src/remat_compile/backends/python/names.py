"""VariableNames and integers of the IR as Python text, for every backend that writes Python."""

from __future__ import annotations

import builtins
import keyword
import math
import re
from collections.abc import Iterable
from typing import assert_never

from ...ir.diagnostics import fail
from ...ir.expr import Add, CeilDiv, Const, Expr, FloorDiv, Max, Mul, RoundUp, Sym
from ...ir.graph import OWN_OPS, Arg, Atom, Call, Graph, Ref
from ...ir.program import Program
from ...ir.schedule import Compute, Schedule
from .quote import literal

_SYMBOL = "symbol "
_OF_PYTHON = frozenset((*keyword.kwlist, *keyword.softkwlist, *dir(builtins)))


class VariableNames:
    """A Python variable for each symbol, aNode and view.

    None of them is in `reserved`, a word or builtin of Python, or begins with `_`. They are
    ASCII: of other letters Python takes several for the same (`ﬁ` is `fi`, by NFKC).
    """

    def __init__(self, program: Program, reserved: Iterable[str]):
        self._variables: dict[str, str] = {}
        graph = program.graph
        taken = {*reserved, *_OF_PYTHON}
        symbols = [symbol_key(s.name) for s in program.symbols]
        for name in (*symbols, *graph.anode, *graph.view):
            variable = re.sub(r"\W", "_", name.removeprefix(_SYMBOL), flags=re.ASCII)
            while variable in taken or variable.startswith("_") or not variable.isidentifier():
                variable = f"v{variable}"
            taken.add(variable)
            self._variables[name] = variable

    def variable(self, name: str) -> str:
        """The Python variable of an aNode or view, or of the key of a symbol."""
        return self._variables[name]

    def variables(self) -> frozenset[str]:
        """All of them."""
        return frozenset(self._variables.values())

    def argument(self, arg: Arg) -> str:
        """An argument of a call; `atom` and `sequence` say what differs between frameworks."""
        match arg:
            case Ref(name):
                return self.variable(name)
            case Atom():
                return self.atom(arg)
            case tuple():
                return self.sequence([self.argument(part) for part in arg])
            case float():
                return repr(arg) if math.isfinite(arg) else f"float({literal(str(arg))})"
            case str():
                return literal(arg)
            case None | bool() | int():
                return repr(arg)
            case _:
                return self.integer(arg)

    def arguments(self, call: Call) -> list[str]:
        """The arguments of a call, those by keyword behind."""
        named = zip(keywords(call), call.kwargs, strict=True)
        return [
            *map(self.argument, call.args),
            *(f"{key}={self.argument(arg)}" for key, (_, arg) in named),
        ]

    def atom(self, atom: Atom) -> str:
        raise NotImplementedError

    def sequence(self, parts: list[str]) -> str:
        raise NotImplementedError

    def integer(self, expr: Expr) -> str:
        match expr:
            case Const(value):
                return str(value)
            case Sym(name):
                return self.variable(symbol_key(name))
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


def symbol_key(name: str) -> str:
    """Return a key that tells a symbol from an aNode of the same name: they have name spaces of
    their own."""
    return f"{_SYMBOL}{name}"


def keywords(call: Call) -> tuple[str, ...]:
    """The names of a call's keyword arguments. FB0943 for one that Python cannot pass: a word
    of its own, or one given twice."""
    keys = tuple(key for key, _ in call.kwargs)
    for key in keys:
        if keyword.iskeyword(key) or not (key.isascii() and key.isidentifier()):
            problem = f"{call.op}: Python has no keyword argument named {key}"
        elif keys.count(key) > 1:
            problem = f"{call.op}: the argument {key} is given twice"
        else:
            continue
        fail("FB0943", problem, hint="give the argument by its position")
    return keys


def called_operators(graph: Graph) -> tuple[str, ...]:
    """The operators of views, cNodes and replay forms, each once, in order of appearance."""
    ops = dict.fromkeys(call.op for call in graph.calls())
    return tuple(op for op in ops if op not in OWN_OPS)


def loss_index(graph: Graph, schedule: Schedule) -> int:
    """The step that runs the loss: the border between forward and backward."""
    name = graph.loss.name
    return next(
        i for i, s in enumerate(schedule.steps) if isinstance(s, Compute) and s.cnode == name
    )
