"""A check that XLA can tell each repeated execution from the runs before it.

XLA merges equal computations: the same lowering over the same values. A barrier makes other
values of those that go through it. So every value gets a number, the same for the same
computation over the same numbers, and an execution whose number is there already would be
merged: its values would be right, and the memory that it was to save would be taken.

Two kinds may merge. Those that depend on nothing that the caller gives are constants to XLA,
whatever stands around them. An execution whose results are all alive already binds nothing
(`_`): XLA leaves it out.

A region is gone through call by call, each held against what stood before the region.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping

from ....ir.program import Program
from ...readback.mismatch import differs
from ..emit.executions import constants

Key = tuple[object, ...]


def check_told_apart(
    functions: Mapping[str, ast.FunctionDef], regions: Iterable[str], program: Program, file: str
) -> None:
    """FB0945 where an execution would be merged with an earlier one. `functions` has a `forward`
    and a `backward` that were read back, and `regions`, functions that they call."""
    inside = {name: functions[name] for name in regions}
    walk = _Numbers(constants(program.graph), file, inside)
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

    def __init__(
        self, constants: frozenset[str], file: str, regions: Mapping[str, ast.FunctionDef]
    ):
        self._constants, self._file, self._regions = constants, file, regions
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
        is_bound = any(name != "_" for name in _names(target))
        cnode = scope.rpartition("#")[0]
        may_merge = not is_bound or cnode in self._constants
        match value:
            case ast.Call(func=ast.Name(id=name), args=args) if name in self._regions:
                is_known = self._region(self._regions[name], args, target)
            case _:
                key = _key(value, self._values)
                is_known = key in self._numbers
                self._bind(target, ("value", self._number(key)))
        if is_known and not may_merge:
            what = "no barrier tells it from an earlier run, and XLA would merge the two"
            differs(node, self._file, f"the execution {scope}", what)

    def _region(self, function: ast.FunctionDef, args: list[ast.expr], target: ast.expr) -> bool:
        """Binds what a region gives. Whether a call of it that depends on what the region is given
        was made before the region."""
        around, parameters = self._values, [a.arg for a in function.args.args]
        self._values = {name: _key(arg, around) for name, arg in zip(parameters, args, strict=True)}
        depends, own, is_known = {*parameters}, set[Key](), False
        *body, end = function.body
        for node in body:
            assert isinstance(node, ast.Assign)
            key = _key(node.value, self._values)
            if not depends.isdisjoint(_names(node.value)):
                depends.update(_names(node.targets[0]))
                is_part = isinstance(node.value, ast.Subscript)  # of a view
                is_known |= key in self._numbers and key not in own and not is_part
            own.add(key)
            self._bind(node.targets[0], ("value", self._number(key)))
        assert isinstance(end, ast.Return)
        assert isinstance(end.value, ast.Tuple)
        assert isinstance(target, ast.Tuple)
        results = [_key(part, self._values) for part in end.value.elts]
        self._values = around
        for slot, result in zip(target.elts, results, strict=True):
            self._bind(slot, result)
        return is_known

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


def _names(node: ast.expr) -> list[str]:
    return [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]


def _key(node: object, values: Mapping[str, Key]) -> Key:
    """Return the computation of an expression, each variable replaced by its value."""
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
