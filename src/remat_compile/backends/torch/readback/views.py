"""Views that generated code derives: those of the graph, by a call or by a function of them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from ...readback.expressions import OperatorCall
from ...readback.machine import AbstractMachine
from ...readback.mismatch import differs, unreadable
from ...readback.names import Held, Variables
from ...readback.values import Value, ViewValue, storages, viewed
from .expressions import TorchReader

__all__ = ["ViewReader"]


@dataclass(frozen=True)
class ViewReader:
    """`functions` are those that derive several views of the one tensor that they are given."""

    machine: AbstractMachine
    reader: TorchReader
    functions: Mapping[str, ast.FunctionDef]

    def view(self, called: OperatorCall) -> Value | tuple[Value, ...] | None:
        """The view that a call derives, or its parts; None where it is none of the graph's."""
        if called.random is not None or called.op not in self.machine.view_operators:
            return None
        value = viewed(ViewValue(called.op, called.args, frozenset(called.kwargs.items())))
        of = set(storages(value))
        if len(of) != 1 or not self.machine.is_view(value, of.pop()):
            return None
        if called.parts is None:
            return value
        assert isinstance(value, ViewValue)
        return tuple(replace(value, part=i) for i in range(called.parts))

    def is_call(self, node: ast.expr) -> bool:
        """Whether an expression calls one of the functions."""
        match node:
            case ast.Call(func=ast.Name(id=name)):
                return name in self.functions
            case _:
                return False

    def derived(
        self, node: ast.expr, variables: Variables, step: Callable[[], str]
    ) -> tuple[Value, ...]:
        """What the call of a function gives: each of its lines is held against the graph, and none
        computes; `step` names the next one that does. FB0945 and FB0946 as for the lines of a
        step; Unbound for a variable that holds nothing."""
        match node:
            case ast.Call(func=ast.Name(id=name), args=[given], keywords=[]) if (
                name in self.functions and name not in variables
            ):
                function = self.functions[name]
            case _:
                unreadable(node, self.reader.file, ast.unparse(node))
        parameters = [parameter.arg for parameter in function.args.args]
        if len(parameters) != 1:
            unreadable(function, self.reader.file, f"{name} takes {len(parameters)} arguments")
        inside = Variables(Held())  # it ends before anything is computed
        inside.bind(parameters[0], self.reader.value(given, variables))
        *lines, last = function.body
        for line in lines:
            self._line(line, inside, step)
        if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Tuple):
            unreadable(last, self.reader.file, f"{name} ends without a return")
        return tuple(self.reader.value(part, inside) for part in last.value.elts)

    def _line(self, line: ast.stmt, variables: Variables, step: Callable[[], str]) -> None:
        match line:
            case ast.Assign(targets=[target], value=value):
                called = self.reader.operator_call(value, variables)
            case _:
                unreadable(line, self.reader.file, ast.unparse(line).splitlines()[0])
        made = None if called is None else self.view(called)
        if made is None:
            differs(line, self.reader.file, step(), f"{ast.unparse(value)} is no view of the graph")
        several = made if isinstance(made, tuple) else (made,)
        slots = target.elts if isinstance(target, ast.Tuple) else [target]
        if isinstance(made, tuple) != isinstance(target, ast.Tuple) or len(slots) != len(several):
            differs(line, self.reader.file, step(), f"{len(several)} results are not unpacked so")
        taken = (*self.functions, *self.reader.operators, *self.reader.regions, "torch")
        for slot, one in zip(slots, several, strict=True):
            if not isinstance(slot, ast.Name) or slot.id in taken:
                unreadable(slot, self.reader.file, f"{ast.unparse(slot)} is bound")
            variables.bind(slot.id, one)
