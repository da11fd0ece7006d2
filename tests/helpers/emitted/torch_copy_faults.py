"""Faults of an emitter in the copies of a plan to the host and back; see `torch_faults`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from helpers.emitted.torch_code import (
    Fault,
    body,
    calls,
    everywhere,
    into,
    names,
    reads,
    renumbered,
    returned,
    unpacked,
)

COPY_FAULTS: dict[str, Fault] = {}
fault = into(COPY_FAULTS)


def copy_steps(statements: list[ast.stmt], *words: str) -> Iterator[tuple[int, ast.Call]]:
    """The statements that call one of `words` on `copies`."""
    for index, statement in enumerate(statements):
        match statement:
            case (
                ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="copies"))) as call)
                | ast.Assign(
                    value=ast.Call(func=ast.Attribute(value=ast.Name(id="copies"))) as call
                )
            ) if isinstance(call.func, ast.Attribute) and call.func.attr in words:
                yield index, call


def _copy_left_out(tree: ast.Module, word: str) -> bool:
    for statements in everywhere(tree):
        for index, _ in copy_steps(statements, word):
            del statements[index]
            return True
    return False


@fault
def wait_left_out(tree: ast.Module) -> bool:
    return _copy_left_out(tree, "wait")


@fault
def offload_left_out(tree: ast.Module) -> bool:
    return _copy_left_out(tree, "offload")


@fault
def prefetch_left_out(tree: ast.Module) -> bool:
    return _copy_left_out(tree, "prefetch")


@fault
def hostfree_left_out(tree: ast.Module) -> bool:
    return _copy_left_out(tree, "hostfree")


@fault
def wait_twice(tree: ast.Module) -> bool:
    for statements in everywhere(tree):
        for index, _ in copy_steps(statements, "wait"):
            statements.insert(index, statements[index])
            return True
    return False


@fault
def wait_of_another(tree: ast.Module) -> bool:
    return _another_name(tree, "wait")


@fault
def prefetch_of_another(tree: ast.Module) -> bool:
    return _another_name(tree, "prefetch")


def _another_name(tree: ast.Module, word: str) -> bool:
    for statements in everywhere(tree):
        for _, call in copy_steps(statements, word):
            call.args[0] = ast.Constant("another")
            return True
    return False


@fault
def offload_of_another_tensor(tree: ast.Module) -> bool:
    for statements in everywhere(tree):
        for index, call in copy_steps(statements, "offload"):
            bound = [n for s in statements[:index] for n in names(s)]
            others = [n for n in bound if n not in (ast.unparse(call.args[1]), "copies", "_")]
            call.args[1] = ast.Name(others[0], ast.Load())
            return True
    return False


@fault
def prefetch_bound_to_another(tree: ast.Module) -> bool:
    for statements in everywhere(tree):
        for index, _ in copy_steps(statements, "prefetch"):
            statement = statements[index]
            assert isinstance(statement, ast.Assign)
            statement.targets = [ast.Name("another", ast.Store())]
            return True
    return False


@fault
def freed_before_its_wait(tree: ast.Module) -> bool:
    """`wait; del` of the same tensor change places."""
    for statements in everywhere(tree):
        for index, call in copy_steps(statements, "wait"):
            after = statements[index + 1]
            assert isinstance(call.args[0], ast.Constant)
            if isinstance(after, ast.Delete) and str(call.args[0].value) in names(after):
                statements[index : index + 2] = [after, statements[index]]
                return True
    return False


@fault
def read_before_its_wait(tree: ast.Module) -> bool:
    """The wait for a tensor that came back stands behind the computation that reads it."""
    for statements in everywhere(tree):
        for index, call in copy_steps(statements, "wait"):
            assert isinstance(call.args[0], ast.Constant)
            name = call.args[0].value
            later = [i for i, _ in calls(statements) if i > index and name in reads(statements[i])]
            begun = [
                now.func.attr
                for _, now in copy_steps(statements[:index], "offload", "prefetch")
                if isinstance(now.func, ast.Attribute)
                and ast.unparse(now.args[0]) == ast.unparse(call.args[0])
            ]
            if later and begun and begun[-1] == "prefetch":
                statements.insert(later[0], statements.pop(index))
                return True
    return False


@fault
def hostfree_before_its_wait(tree: ast.Module) -> bool:
    for statements in everywhere(tree):
        for index, call in copy_steps(statements, "hostfree"):
            for before, waited in copy_steps(statements[:index], "wait"):
                if ast.unparse(waited.args[0]) == ast.unparse(call.args[0]):
                    statements.insert(before, statements.pop(index))
                    return True
    return False


@fault
def prefetch_late(tree: ast.Module) -> bool:
    """It stands one computation later, right before its wait or not."""
    for statements in everywhere(tree):
        for index, _ in copy_steps(statements, "prefetch"):
            after = [i for i, _ in calls(statements) if i > index]
            if after and not set(names(statements[index])) & reads(statements[after[0]]):
                statements.insert(after[0], statements.pop(index))
                return True
    return False


@fault
def offload_late(tree: ast.Module) -> bool:
    for statements in everywhere(tree):
        for index, _ in copy_steps(statements, "offload"):
            after = [i for i, _ in calls(statements) if i > index]
            if after:
                statements.insert(after[0], statements.pop(index))
                return True
    return False


@fault
def copies_not_handed_on(tree: ast.Module) -> bool:
    last = returned(tree, "forward")
    place = [ast.unparse(part) for part in last].index("copies")
    del last[place]
    return True


@fault
def tensor_in_flight_not_handed_on(tree: ast.Module) -> bool:
    """It is copied to the host while the loss runs, and nothing but its `del` is behind that."""
    statements = body(tree, "backward")
    for index, call in copy_steps(statements, "wait"):
        assert isinstance(call.args[0], ast.Constant)
        name = call.args[0].value
        taken = [s for s in unpacked(tree, "backward") if names(s) == [name]]
        uses = [s for s in statements if name in reads(s)]
        if not taken or uses or any(copy_steps(statements[:index], "prefetch")):
            continue
        statements.remove(taken[0])
        gone = next(s for s in statements if isinstance(s, ast.Delete) and name in names(s))
        statements.remove(gone)
        last = returned(tree, "forward")
        del last[[ast.unparse(part) for part in last].index(str(name))]
        renumbered(tree)
        return True
    return False


@fault
def unknown_method_of_copies(tree: ast.Module) -> bool:
    for statements in everywhere(tree):
        for _, call in copy_steps(statements, "wait"):
            assert isinstance(call.func, ast.Attribute)
            call.func.attr = "forget"
            return True
    return False
