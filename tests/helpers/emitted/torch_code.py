"""What faults find and change in the syntax tree of generated PyTorch code."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

Fault = Callable[[ast.Module], bool]


def into(faults: dict[str, Fault]) -> Callable[[Fault], Fault]:
    """Takes a function into a table of faults, under its name."""

    def take(function: Fault) -> Fault:
        faults[function.__name__] = function
        return function

    return take


# -- where things stand ---------------------------------------------------------------


def body(tree: ast.Module, name: str) -> list[ast.stmt]:
    return next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name).body


def operator_of(statement: ast.stmt) -> str | None:
    """The variable of the operator that a statement runs, replays included."""
    match statement:
        case ast.Assign(value=ast.Call(func=ast.Name(id="replay"), args=[_, ast.Name(id=op), *_])):
            return op
        case ast.Assign(value=ast.Call(func=ast.Name(id=op))) if op.startswith("_"):
            return op
        case _:
            return None


def calls(statements: list[ast.stmt]) -> Iterator[tuple[int, ast.Call]]:
    for index, statement in enumerate(statements):
        if operator_of(statement) is not None:
            assert isinstance(statement, ast.Assign)
            assert isinstance(statement.value, ast.Call)
            yield index, statement.value


def names(statement: ast.stmt) -> list[str]:
    """What an assignment binds, or a `del` unbinds."""
    targets = statement.targets if isinstance(statement, ast.Assign | ast.Delete) else []
    return [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]


def reads(statement: ast.stmt) -> set[str]:
    return {
        n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
    }


def everywhere(tree: ast.Module) -> list[list[ast.stmt]]:
    return [body(tree, "forward"), body(tree, "backward")]


def tensors(call: ast.Call) -> list[int]:
    return [i for i, a in enumerate(call.args) if isinstance(a, ast.Name)]


def parse(text: str) -> ast.stmt:
    return ast.parse(text).body[0]


def deletes(statements: list[ast.stmt]) -> Iterator[int]:
    for index, statement in enumerate(statements):
        if isinstance(statement, ast.Delete) and statements[index - 1 : index]:
            yield index


def returned(tree: ast.Module, name: str) -> list[ast.expr]:
    last = body(tree, name)[-1]
    assert isinstance(last, ast.Return)
    assert isinstance(last.value, ast.Tuple)
    return last.value.elts


def unpacked(tree: ast.Module, name: str) -> list[ast.Assign]:
    """The statements `x = args[0]`."""
    return [s for s in body(tree, name) if isinstance(s, ast.Assign) and _place(s) is not None]


def _place(statement: ast.Assign) -> ast.Constant | None:
    match statement.value:
        case ast.Subscript(value=ast.Name(id="args"), slice=ast.Constant() as place):
            return place
        case _:
            return None


def renumbered(tree: ast.Module) -> None:
    """The arguments of the backward in the order in which they are taken."""
    for number, statement in enumerate(unpacked(tree, "backward")):
        place = _place(statement)
        assert place is not None
        place.value = number
