"""Faults of an emitter, put into generated PyTorch code by changing its syntax tree.

Each takes the module and changes it at the first place where it can; it says whether it did.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from itertools import pairwise

__all__ = [
    "FAULTS",
    "Fault",
    "body",
    "calls",
    "everywhere",
    "names",
    "reads",
    "renumbered",
    "returned",
    "unpacked",
]

Fault = Callable[[ast.Module], bool]
FAULTS: dict[str, Fault] = {}


def fault(function: Fault) -> Fault:
    FAULTS[function.__name__] = function
    return function


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


# -- del ----------------------------------------------------------------------------------


def _deletes(statements: list[ast.stmt]) -> Iterator[int]:
    for index, statement in enumerate(statements):
        if isinstance(statement, ast.Delete) and statements[index - 1 : index]:
            yield index


@fault
def del_missing(tree: ast.Module) -> bool:
    for statements in everywhere(tree):
        for index in _deletes(statements):
            if not names(statements[index])[0].startswith("_"):
                del statements[index]
                return True
    return False


@fault
def del_late(tree: ast.Module) -> bool:
    """A `del` stands one computation later."""
    for statements in everywhere(tree):
        for index in _deletes(statements):
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
        for index in _deletes(statements):
            before = statements[index - 1]
            gone = set(names(statements[index]))
            if operator_of(before) and not gone & (reads(before) | set(names(before))):
                statements.insert(index - 1, statements.pop(index))
                return True
    return False


@fault
def del_of_something_else(tree: ast.Module) -> bool:
    statements = body(tree, "backward")
    for index in _deletes(statements):
        others = [n for i in _deletes(statements) if i > index for n in names(statements[i])]
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
        for index in _deletes(statements):
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
        for index in _deletes(statements):
            here, before = statements[index], statements[index - 1]
            if names(here) == ["native_dropout_1"] and "native_dropout_1" in names(before):
                del statements[index]
                return True
    return False


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
    for index in _deletes(statements):
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
