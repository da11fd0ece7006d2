"""Faults in calls: operators, their arguments, and what runs when."""

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
    parse,
    reads,
    tensors,
)

FAULTS: dict[str, Fault] = {}
fault = into(FAULTS)


# -- operands -------------------------------------------------------------------------


@fault
def wrong_operand(tree: ast.Module) -> bool:
    for statements in everywhere(tree):
        for _, call in calls(statements):
            places = tensors(call)
            if len(places) > 1 and "add_" not in ast.unparse(call.func):
                call.args[places[1]] = call.args[places[0]]
                return True
    return False


@fault
def swapped_operands(tree: ast.Module) -> bool:
    for _, call in calls(body(tree, "backward")):
        if len(places := tensors(call)) > 1:
            i, j = places[:2]
            call.args[i], call.args[j] = call.args[j], call.args[i]
            return True
    return False


@fault
def wrong_integer(tree: ast.Module) -> bool:
    return _change_constant(tree, int, 3)


@fault
def wrong_float(tree: ast.Module) -> bool:
    return _change_constant(tree, float, 0.25)


@fault
def wrong_flag(tree: ast.Module) -> bool:
    return _change_constant(tree, bool, None)


def _change_constant(tree: ast.Module, kind: type, new: object) -> bool:
    for statements in everywhere(tree):
        for _, call in calls(statements):
            for node in ast.walk(call):
                if isinstance(node, ast.Constant) and type(node.value) is kind:
                    node.value = not node.value if kind is bool else new  # type: ignore[assignment]
                    return True
    return False


@fault
def integer_as_float(tree: ast.Module) -> bool:
    for statements in everywhere(tree):
        for _, call in calls(statements):
            for node in ast.walk(call):
                if isinstance(node, ast.Constant) and type(node.value) is int:
                    node.value = float(node.value)
                    return True
    return False


@fault
def dtype_changed(tree: ast.Module) -> bool:
    for statements in everywhere(tree):
        for statement in statements:
            for node in ast.walk(statement):
                if isinstance(node, ast.Attribute) and node.attr == "float32":
                    node.attr = "float64"
                    return True
    return False


@fault
def extra_keyword(tree: ast.Module) -> bool:
    for _, call in calls(body(tree, "forward")):
        if "add" in ast.unparse(call.func):
            call.keywords.append(ast.keyword("alpha", ast.Constant(2)))
            return True
    return False


@fault
def argument_left_out(tree: ast.Module) -> bool:
    for _, call in calls(body(tree, "forward")):
        if isinstance(call.args[-1], ast.Constant):
            call.args.pop()
            return True
    return False


# -- operators ------------------------------------------------------------------------


@fault
def wrong_overload(tree: ast.Module) -> bool:
    return _change_operator(tree, "aten.add.Tensor", "aten.add.Scalar")


@fault
def wrong_operator(tree: ast.Module) -> bool:
    return _change_operator(tree, "aten.relu.default", "aten.sigmoid.default")


@fault
def accumulated_out_of_place(tree: ast.Module) -> bool:
    return _change_operator(tree, "aten.add_.Tensor", "aten.add.Tensor")


def _change_operator(tree: ast.Module, old: str, new: str) -> bool:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.value) == f"torch.ops.{old}._op":
            node.value = ast.parse(f"torch.ops.{new}._op", mode="eval").body
            return True
    return False


@fault
def operator_bound_twice(tree: ast.Module) -> bool:
    first = next(n for n in tree.body if isinstance(n, ast.Assign))
    tree.body.insert(
        tree.body.index(first) + 1, parse(f"{names(first)[0]} = torch.ops.aten.mm.default._op")
    )
    return True


@fault
def original_instead_of_replay_form(tree: ast.Module) -> bool:
    for statements in everywhere(tree):
        for _, call in calls(statements):
            if isinstance(call.func, ast.Name) and "no_stats" in call.func.id:
                call.func.id = "_aten__native_batch_norm_legit_functional_default"
                return True
    return False


# -- which statements there are, and in which order ----------------------------------------------


def _again(statements: list[ast.stmt]) -> Iterator[int]:
    """Statements that compute what an earlier statement computed."""
    seen: set[tuple[str, ...]] = set()
    for index, _ in calls(statements):
        key = tuple(names(statements[index]))
        if key in seen:
            yield index
        seen.add(key)


@fault
def recompute_dropped(tree: ast.Module) -> bool:
    for statements in everywhere(tree):
        for index in _again(statements):
            del statements[index]
            return True
    return False


@fault
def stale_instance_read(tree: ast.Module) -> bool:
    """The recomputation and the `del` before it are left out."""
    for statements in everywhere(tree):
        for index in _again(statements):
            made = set(names(statements[index]))
            del statements[index]
            for before in reversed(statements[:index]):
                if isinstance(before, ast.Delete) and made & set(names(before)):
                    before.targets = [t for t in before.targets if ast.unparse(t) not in made]
                    if not before.targets:
                        statements.remove(before)
                    return True
    return False


@fault
def extra_call(tree: ast.Module) -> bool:
    statements = body(tree, "forward")
    index, call = next(iter(calls(statements)))
    statements.insert(index + 1, parse(f"more = {ast.unparse(call)}"))
    statements.insert(index + 2, parse("del more"))
    return True


@fault
def calls_swapped(tree: ast.Module) -> bool:
    for statements in everywhere(tree):
        for (i, _), (j, _) in zip(
            list(calls(statements)), list(calls(statements))[1:], strict=False
        ):
            if j == i + 1 and not reads(statements[j]) & set(names(statements[i])):
                statements[i], statements[j] = statements[j], statements[i]
                return True
    return False


@fault
def last_call_left_out(tree: ast.Module) -> bool:
    statements = body(tree, "backward")
    *_, (index, _) = calls(statements)
    made = ast.Assign([statements[index].targets[0]], ast.Name("_", ast.Load()))  # type: ignore[attr-defined]
    statements[index] = ast.parse(f"{names(made)[0]} = tangent0").body[0]
    return True
