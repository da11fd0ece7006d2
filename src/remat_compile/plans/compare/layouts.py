"""The tensors of a model lie in memory as those that were planned for, or are refused.

Operators take other kernels for other strides, with another workspace and other results in memory:
a bound that was proven for one layout says nothing of another.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from ...ir.diagnostics import Diagnostic, FBError, Note, render
from ...ir.program import Program, TensorLayout
from ...ir.text.syntax import quote

_SHOWN = 5
_CHANNELS_LAST = {(0, 2, 3, 1), (0, 2, 3, 4, 1)}


def check_layouts(planned: Program, captured: Program) -> None:
    """FB0740 for arguments, parameters and buffers that do not lie as they did when the plan was
    made, both layouts named. Nothing where the plan does not say how they did."""
    if planned.header.layouts is None or captured.header.layouts is None:
        return
    ours, theirs = dict(_by_role(planned)), dict(_by_role(captured))
    names = {role: name for role, (name, _) in _roles(planned).items()}
    different = [role for role in ours if role in theirs and ours[role][0] != theirs[role][0]]
    if not different:
        return
    role, others = different[0], different[1:]
    notes = [
        Note(f"%{names[other]} ({other}) is {theirs[other][1]}, and was {ours[other][1]}")
        for other in others[:_SHOWN]
    ]
    if len(others) > _SHOWN:
        notes.append(Note(f"and {len(others) - _SHOWN} more"))
    message = (
        f"%{names[role]} ({role}) is {theirs[role][1]} in memory, and the plan was made for one "
        f"that is {ours[role][1]}: its bound says nothing of the kernels that this takes"
    )
    hint = "plan the model again as it is, or lay its tensors out as they were"
    raise FBError(Diagnostic("FB0740", message, notes=tuple(notes), hint=hint))


def warn_of_layouts(planned: Program, captured: Program) -> None:
    """FB0741 for a plan that does not say how tensors lay, of a model where some are not
    contiguous."""
    layouts = captured.header.layouts
    if planned.header.layouts is not None or not layouts:
        return
    roles = {name: role for role, (name, _) in _roles(captured).items()}
    named = [
        f"%{layout.name} ({roles[layout.name]}: {_said(layout)})"
        for layout in layouts[:_SHOWN]
        if layout.name in roles
    ]
    more = [f"{len(layouts) - _SHOWN} more"] if len(layouts) > _SHOWN else []
    message = (
        "the plan does not say how tensors lay in memory when it was made, and here some are not "
        f"contiguous, {', '.join([*named, *more])}: its bound may be for other kernels"
    )
    hint = "plan the model again: plans of this version say so"
    warnings.warn(render(Diagnostic("FB0741", message, hint=hint), level="warning"), stacklevel=4)


def _roles(program: Program) -> dict[str, tuple[str, tuple[int, ...]]]:
    """For each tensor of the caller's what it is to the model, its name here, and the dimensions
    that have more than one element at the sample."""
    from ...ir.expr import evaluate

    binding = program.binding
    parts = [(f"argument {quote(a.path)}", a.name) for a in binding.arguments]
    parts += [(f"parameter {quote(p.names[0])}", p.name) for p in binding.params]
    parts += [(f"buffer {quote(b.names[0])}", b.name) for b in binding.buffers]
    roles = {}
    for role, name in parts:
        shape = [evaluate(n, program.sample) for n in program.graph.anode[name].shape]
        roles[role] = name, tuple(d for d, n in enumerate(shape) if n != 1)
    return roles


def _by_role(program: Program) -> Iterator[tuple[str, tuple[object, str]]]:
    """Return the layout of each, to be compared and in words. Dimensions of one element have no
    say: of an order they are left out, wherever they stand in it, and of strides too."""
    layouts = {layout.name: layout for layout in program.header.layouts or ()}
    for role, (name, long) in _roles(program).items():
        layout = layouts.get(name)
        if layout is None:
            yield role, (None, "contiguous")
        elif layout.form == "strides":
            yield role, (("strides", *(layout.numbers[d] for d in long)), _said(layout))
        else:
            order = tuple(d for d in layout.numbers if d in long)
            yield role, (None, "contiguous") if order == long else (order, _said(layout))


def _said(layout: TensorLayout) -> str:
    numbers = ", ".join(map(str, layout.numbers))
    if layout.form == "strides":
        return f"strides [{numbers}]"
    known = "channels_last, " if layout.numbers in _CHANNELS_LAST else ""
    return f"{known}order [{numbers}]"
