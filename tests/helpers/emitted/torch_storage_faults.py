"""Faults in what is kept: `del`, views, results by position, phantoms."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise

from helpers.emitted.torch_code import (
    Fault,
    body,
    calls,
    deletes,
    everywhere,
    into,
    names,
    operator_of,
    parse,
    reads,
)

FAULTS: dict[str, Fault] = {}
fault = into(FAULTS)


# -- del ----------------------------------------------------------------------------------


@fault
def del_missing(tree: ast.Module) -> bool:
    for statements in everywhere(tree):
        for index in deletes(statements):
            if not names(statements[index])[0].startswith("_"):
                del statements[index]
                return True
    return False


@fault
def del_late(tree: ast.Module) -> bool:
    """A `del` stands one computation later."""
    for statements in everywhere(tree):
        for index in deletes(statements):
            after = [i for i, _ in calls(statements) if i > index]
            gone = set(names(statements[index]))
            if after and not gone & {
                n for s in statements[index + 1 : after[0] + 1] for n in names(s)
            }:
                statements.insert(after[0], statements.pop(index))
                return True
    return False


@fault
def del_early(tree: ast.Module) -> bool:
    """A `del` stands before a computation that does not read what it ends."""
    for statements in everywhere(tree):
        for index in deletes(statements):
            before = statements[index - 1]
            gone = set(names(statements[index]))
            if operator_of(before) and not gone & (reads(before) | set(names(before))):
                statements.insert(index - 1, statements.pop(index))
                return True
    return False


@fault
def del_of_something_else(tree: ast.Module) -> bool:
    statements = body(tree, "backward")
    for index in deletes(statements):
        others = [n for i in deletes(statements) if i > index for n in names(statements[i])]
        bound = {n for s in statements[:index] for n in names(s)}
        gone = names(statements[index])
        fitting = [n for n in others if n in bound and n not in gone]
        if fitting and gone:
            statements[index] = parse(f"del {fitting[0]}")
            return True
    return False


@fault
def arguments_kept(tree: ast.Module) -> bool:
    statements = body(tree, "backward")
    place = next(i for i, s in enumerate(statements) if ast.unparse(s) == "args.clear()")
    del statements[place]
    return True


@fault
def dropped_results_kept(tree: ast.Module) -> bool:
    """A result that is dropped, as it was alive or nothing reads it, is not let go."""
    for statements in everywhere(tree):
        for index in deletes(statements):
            if names(statements[index])[0].startswith("_") and operator_of(statements[index - 1]):
                del statements[index]
                return True
    return False


# -- views --------------------------------------------------------------------------------


def _views(statements: list[ast.stmt]) -> Iterator[tuple[int, ast.Attribute]]:
    for index, statement in enumerate(statements):
        match statement:
            case ast.Assign(value=ast.Call(func=ast.Attribute(value=ast.Name()) as method)) if (
                method.attr != "get_rng_state"
            ):
                yield index, method


@fault
def view_of_another_base(tree: ast.Module) -> bool:
    for statements in everywhere(tree):
        for index, method in _views(statements):
            assert isinstance(method.value, ast.Name)
            own = method.value.id
            bound = [n for s in statements[:index] for n in names(s) if n not in (own, "args", "_")]
            method.value.id = bound[0]
            return True
    return False


@fault
def another_view(tree: ast.Module) -> bool:
    for statements in everywhere(tree):
        for _, method in _views(statements):
            if method.attr == "t":
                method.attr = "detach"
                return True
    return False


def _parts(statements: list[ast.stmt]) -> Iterator[int]:
    for index, statement in enumerate(statements):
        match statement:
            case ast.Assign(value=ast.Subscript(value=ast.Call())):
                yield index


@fault
def parts_swapped(tree: ast.Module) -> bool:
    for statements in everywhere(tree):
        for index in _parts(statements):
            return _swap_slots(statements[index])
    return False


@fault
def view_not_derived_again(tree: ast.Module) -> bool:
    """Of two derivations of the same view from two instances, the second and the `del` of the
    first are left out."""
    for statements in everywhere(tree):
        places = list(_parts(statements))
        for first, second in pairwise(places):
            made = set(names(statements[first]))
            if made != set(names(statements[second])):
                continue
            del statements[second]
            for statement in statements[first:second]:
                if isinstance(statement, ast.Delete):
                    statement.targets = [t for t in statement.targets if ast.unparse(t) not in made]
            statements[:] = [s for s in statements if not isinstance(s, ast.Delete) or s.targets]
            return True
    return False


def _swap_slots(statement: ast.stmt) -> bool:
    assert isinstance(statement, ast.Assign)
    (target,) = statement.targets
    assert isinstance(target, ast.Tuple)
    target.elts[0], target.elts[1] = target.elts[1], target.elts[0]
    return True


# -- results --------------------------------------------------------------------------------


@fault
def result_slots_swapped(tree: ast.Module) -> bool:
    for statements in everywhere(tree):
        for index, _ in calls(statements):
            if len(names(statements[index])) > 1:
                return _swap_slots(statements[index])
    return False


@fault
def phantom_of_nosave_kept(tree: ast.Module) -> bool:
    """The first dropout's mask stays, whose schedule says `nosave`."""
    for statements in everywhere(tree):
        for index in deletes(statements):
            here, before = statements[index], statements[index - 1]
            if names(here) == ["native_dropout_1"] and "native_dropout_1" in names(before):
                del statements[index]
                return True
    return False
