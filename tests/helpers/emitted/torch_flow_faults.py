"""Faults in random states, accumulation, and what crosses the functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from helpers.emitted.torch_code import (
    Fault,
    body,
    calls,
    deletes,
    everywhere,
    into,
    names,
    parse,
    renumbered,
    returned,
    unpacked,
)

FAULTS: dict[str, Fault] = {}
fault = into(FAULTS)


# -- randomness -----------------------------------------------------------------------------


def _replays(statements: list[ast.stmt]) -> Iterator[tuple[int, ast.Call]]:
    for index, call in calls(statements):
        if isinstance(call.func, ast.Name) and call.func.id == "replay":
            yield index, call


@fault
def replay_on_another_state(tree: ast.Module) -> bool:
    for statements in everywhere(tree):
        bound = {n for s in statements for n in names(s) if n.startswith("rng_")}
        for _, call in _replays(statements):
            others = sorted(bound - {ast.unparse(call.args[0])})
            if others:
                call.args[0] = ast.Name(others[0], ast.Load())
                return True
    return False


@fault
def drawn_anew(tree: ast.Module) -> bool:
    for statements in everywhere(tree):
        for _, call in _replays(statements):
            call.func, call.args = call.args[1], call.args[2:]
            return True
    return False


@fault
def state_not_put_back(tree: ast.Module) -> bool:
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "replay":
            tried = next(s for s in statement.body if isinstance(s, ast.Try))
            tried.finalbody = [ast.Pass()]
            return True
    return False


@fault
def state_taken_late(tree: ast.Module) -> bool:
    statements = body(tree, "forward")
    for index, statement in enumerate(statements):
        if "get_rng_state" in ast.unparse(statement):
            statements[index], statements[index + 1] = statements[index + 1], statement
            return True
    return False


@fault
def state_not_taken(tree: ast.Module) -> bool:
    statements = body(tree, "forward")
    states = [i for i, s in enumerate(statements) if "get_rng_state" in ast.unparse(s)]
    if len(states) < 2:
        return False
    (first,), (second,) = names(statements[states[0]]), names(statements[states[1]])
    statements[states[1]] = parse(f"{second} = {first}")
    return True


# -- accumulation ---------------------------------------------------------------------------


@fault
def accumulated_into_the_other_term(tree: ast.Module) -> bool:
    for _, call in calls(body(tree, "backward")):
        if "add_" in ast.unparse(call.func):
            call.args.reverse()
            return True
    return False


@fault
def accumulated_twice(tree: ast.Module) -> bool:
    statements = body(tree, "backward")
    for index, call in calls(statements):
        if "add_" in ast.unparse(call.func):
            statements.insert(index + 1, parse(ast.unparse(statements[index])))
            return True
    return False


# -- borders --------------------------------------------------------------------------------


@fault
def outputs_swapped(tree: ast.Module) -> bool:
    out = returned(tree, "forward")
    out[0], out[1] = out[1], out[0]
    return True


@fault
def gradients_swapped(tree: ast.Module) -> bool:
    out = returned(tree, "backward")
    out[0], out[1] = out[1], out[0]
    return True


@fault
def gradient_left_out(tree: ast.Module) -> bool:
    out = returned(tree, "backward")
    out[0] = ast.Constant(None)
    return True


@fault
def inputs_swapped(tree: ast.Module) -> bool:
    slots = unpacked(tree, "forward")
    slots[0].targets, slots[1].targets = slots[1].targets, slots[0].targets
    return True


@fault
def tangents_swapped(tree: ast.Module) -> bool:
    slots = unpacked(tree, "backward")
    slots[-1].targets, slots[-2].targets = slots[-2].targets, slots[-1].targets
    return True


@fault
def saved_swapped(tree: ast.Module) -> bool:
    out = returned(tree, "forward")
    out[-1], out[-2] = out[-2], out[-1]
    return True


@fault
def saved_left_out(tree: ast.Module) -> bool:
    returned(tree, "forward").pop()
    last = unpacked(tree, "backward")[-3]  # before the two tangents
    body(tree, "backward").remove(last)
    renumbered(tree)
    return True


@fault
def something_freed_is_saved(tree: ast.Module) -> bool:
    """What the schedule has freed is handed on all the same, in place of its `del`."""
    statements = body(tree, "forward")
    for index in deletes(statements):
        (name, *rest) = names(statements[index])
        later = {n for s in statements[index + 1 : -1] for n in names(s)}
        if not rest and not name.startswith("_") and name not in later:
            del statements[index]
            returned(tree, "forward").append(ast.Name(name, ast.Load()))
            tangent = unpacked(tree, "backward")[-2]
            place = body(tree, "backward").index(tangent)
            body(tree, "backward").insert(place, parse(f"{name} = args[0]"))
            renumbered(tree)
            return True
    return False


# -- what has no meaning here ---------------------------------------------------------------


@fault
def other_statement(tree: ast.Module) -> bool:
    body(tree, "forward").insert(2, parse("if True:\n    pass"))
    return True


@fault
def in_place_method(tree: ast.Module) -> bool:
    body(tree, "backward").insert(2, parse("tangent0.zero_()"))
    return True


@fault
def other_import(tree: ast.Module) -> bool:
    tree.body.insert(2, parse("import os"))
    return True
