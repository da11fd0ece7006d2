"""Whether XLA can tell each repeated execution from the runs before it.

XLA merges equal computations: the same lowering over the same values. A barrier makes other
values of those that go through it. So every value gets a number, the same for the same
computation over the same numbers, and an execution whose number is there already would be
merged: its values would be right, and the memory that it was to save would be taken.

Two kinds may merge. Those that depend on nothing that the caller gives are constants to XLA,
whatever stands around them. An execution whose results are all alive already binds nothing
(`_`): XLA leaves it out.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from ....ir.program import Program
from ...readback.mismatch import differs
from ..emit.executions import constants

__all__ = ["check_told_apart"]

Key = tuple[object, ...]


def check_told_apart(functions: Mapping[str, ast.FunctionDef], program: Program, file: str) -> None:
    """FB0945 where an execution would be merged with an earlier one. `functions` has a `forward`
    and a `backward` that were read back."""
    walk = _Numbers(constants(program.graph), file)
    walk.run(functions["forward"].body)
    walk.run(functions["backward"].body, _saved(functions["forward"].body[-1]))


def _saved(end: ast.stmt) -> ast.expr | None:
    match end:
        case ast.Return(value=ast.Tuple(elts=[_, saved])):
            return saved
        case _:
            return None


class _Numbers:
    """Numbers the values of the variables, statement by statement."""

    def __init__(self, constants: frozenset[str], file: str):
        self._constants, self._file = constants, file
        self._numbers: dict[Key, int] = {}
        self._values: dict[str, Key] = {}

    def run(self, body: list[ast.stmt], saved: ast.expr | None = None) -> None:
        """Goes through a function; what it unpacks `saved` into keeps its numbers."""
        before, self._values = self._values, {}
        for node in body:
            match node:
                case ast.With(
                    items=[ast.withitem(context_expr=ast.Call(args=[ast.Constant(value=scope)]))],
                    body=[ast.Assign(targets=[target], value=value)],
                ):
                    self._execution(node, str(scope), target, value)
                case ast.Assign(targets=[ast.Tuple(elts=slots)], value=ast.Name(id="saved")) if (
                    isinstance(saved, ast.Tuple)
                ):
                    for slot, kept in zip(slots, saved.elts, strict=True):
                        assert isinstance(slot, ast.Name)
                        self._values[slot.id] = _key(kept, before)
                case ast.Assign(targets=[target], value=value):
                    self._bind(target, ("value", self._number(_key(value, self._values))))
                case _:
                    pass

    def _execution(self, node: ast.With, scope: str, target: ast.expr, value: ast.expr) -> None:
        key = _key(value, self._values)
        names = [n.id for n in ast.walk(target) if isinstance(n, ast.Name)]
        is_bound = any(name != "_" for name in names)
        cnode = scope.rpartition("#")[0]
        if key in self._numbers and is_bound and cnode not in self._constants:
            what = "no barrier tells it from an earlier run, and XLA would merge the two"
            differs(node, self._file, f"the execution {scope}", what)
        self._bind(target, ("value", self._number(key)))

    def _number(self, key: Key) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _bind(self, target: ast.expr, value: Key) -> None:
        match target:
            case ast.Name(id=name):
                self._values[name] = value
            case ast.Tuple(elts=slots):
                for place, slot in enumerate(slots):
                    self._bind(slot, (*value, place))
            case _:
                pass


def _key(node: object, values: Mapping[str, Key]) -> Key:
    """What an expression computes, each variable replaced by its value."""
    match node:
        case ast.Name(id=name):
            return values.get(name, ("name", name))
        case ast.AST():
            fields = (value for name, value in ast.iter_fields(node) if name != "ctx")
            return (type(node).__name__, *(_key(value, values) for value in fields))
        case list():
            return tuple(_key(part, values) for part in node)
        case _:
            return ("constant", repr(node))
