"""The functions of regions, held against the graph.

Both are run over numbered terms: an operator of terms, equal ones with equal numbers. A function
is held against each fused cNode that calls it.
"""

from __future__ import annotations

import ast

from ...ir.expr import Expr, symbols_of
from ...ir.graph import Arg, CNode, Ref
from .expressions import OperatorCall, Reader, Unbound
from .machine import AbstractMachine
from .mismatch import differs, unreadable
from .names import Held, Variables
from .values import ANodeInstance, Literal, Value, ViewValue, as_value, viewed


class RegionReader:
    """Terms of regions: those that the code computes, and those that the graph asks for."""

    def __init__(
        self, machine: AbstractMachine, reader: Reader, functions: dict[str, ast.FunctionDef]
    ):
        self.machine, self.reader, self.functions = machine, reader, functions
        self._numbers: dict[Value, int] = {}
        self._checked: set[tuple[str, str]] = set()

    def check(self, node: ast.AST, name: str, c: CNode, symbols: int, step: str) -> None:
        """FB0945 where the function of that name is not the region of `c`."""
        if (name, c.name) in self._checked:
            return
        function = self._plain(name, node)
        parameters = [a.arg for a in function.args.args]
        given = parameters[: len(parameters) - symbols]
        sizes = self.symbols(c)
        if len(given) != len(c.call.args) or len(sizes) != symbols:
            differs(node, self.reader.file, step, f"{name} takes {len(parameters)} arguments")
        made = self._of_code(function, [*map(_given, range(len(given))), *sizes], step)
        if made != self._of_graph(c):
            differs(function, self.reader.file, step, f"{name} computes something else")
        self._checked.add((name, c.name))

    def _plain(self, name: str, node: ast.AST) -> ast.FunctionDef:
        """The function that computes: one may only give what another one gives."""
        function = self.functions[name]
        match function.body:
            case [ast.Return(value=ast.Call(func=ast.Name(id=other), keywords=[]) as call)] if (
                other in self.functions
            ):
                called = self.functions[other]
                given = [a.arg for a in function.args.args]
                if [*map(ast.unparse, call.args)] != given or len(called.args.args) != len(given):
                    differs(node, self.reader.file, name, f"{name} gives {other} something else")
                return called
        return function

    def symbols(self, c: CNode) -> list[Value]:
        """Return the arguments of a call behind those of the cNode: the sizes that its calls
        name."""
        symbols: set[str] = set()
        waiting: list[Arg] = [
            a for i in c.call.region for a in (*i.call.args, *(v for _, v in i.call.kwargs))
        ]
        while waiting:
            arg = waiting.pop()
            if isinstance(arg, tuple):
                waiting += arg
            elif isinstance(arg, Expr):
                symbols |= symbols_of(arg)
        return [as_value(self.machine.symbols[name]) for name in sorted(symbols)]

    def _of_graph(self, c: CNode) -> list[Value]:
        names: dict[str, Value] = {}
        for place, arg in enumerate(c.call.args):
            assert isinstance(arg, Ref)
            names[arg.name] = _given(place)
        for inner in c.call.region:
            args, kwargs = self.machine.arguments_inside(inner.call, names)
            op = self.reader.spelled(inner.call.op)
            first = 0 if inner.index is None else inner.index
            for place, name in enumerate(inner.writes, first):
                if name is not None:
                    names[name] = self._term(op, args, kwargs, place)
        return [names[name] for name in c.results]

    def _of_code(self, function: ast.FunctionDef, given: list[Value], step: str) -> list[Value]:
        variables = Variables(Held())
        for parameter, value in zip(function.args.args, given, strict=True):
            variables.bind(parameter.arg, value)
        try:
            for node in function.body[:-1]:
                self._statement(node, variables)
            last = function.body[-1]
            if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Tuple):
                unreadable(last, self.reader.file, f"{function.name} ends without a return")
            return [self.reader.value(part, variables) for part in last.value.elts]
        except Unbound as name:
            differs(function, self.reader.file, step, f"{name} is read and holds nothing")

    def _statement(self, node: ast.stmt, variables: Variables) -> None:
        match node:
            case ast.Delete(targets=targets):
                for target in targets:
                    if not isinstance(target, ast.Name) or target.id not in variables:
                        unreadable(node, self.reader.file, ast.unparse(node))
                    variables.unbind(target.id)
            case ast.Assign(targets=[target], value=value):
                called = self.reader.operator_call(value, variables)
                if called is None or called.random is not None:
                    unreadable(node, self.reader.file, ast.unparse(node))
                self._bind(node, target, called, variables)
            case _:
                unreadable(node, self.reader.file, ast.unparse(node).splitlines()[0])

    def _bind(
        self, node: ast.stmt, target: ast.expr, called: OperatorCall, variables: Variables
    ) -> None:
        several = called.parts is not None or self.reader.returns_several(called.op)
        slots = target.elts if isinstance(target, ast.Tuple) else [target]
        if several != isinstance(target, ast.Tuple):
            unreadable(node, self.reader.file, ast.unparse(node))
        for place, slot in enumerate(slots):
            if not isinstance(slot, ast.Name):
                unreadable(node, self.reader.file, ast.unparse(node))
            term = self._term(called.op, called.args, called.kwargs, place)
            variables.bind(slot.id, term)

    def _term(
        self, op: str, args: tuple[Value, ...], kwargs: dict[str, Value], place: int
    ) -> Value:
        """A value by number: it stands for the operator and what it reads."""
        term = viewed(ViewValue(op, args, frozenset(kwargs.items()), place or None))
        if not isinstance(term, ViewValue):
            return term
        return Literal(f"term {self._numbers.setdefault(term, len(self._numbers))}")


def _given(place: int) -> Value:
    return ANodeInstance(f"argument {place}", 0)
