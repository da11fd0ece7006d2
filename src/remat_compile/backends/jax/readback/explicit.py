"""Reads generated JAX code back and holds it against the schedule.

JAX code is a function of values: nothing is deleted in it, and XLA places the frees. So what
is compared is, in the order of the schedule: each execution by its name (`F7#2`), the lowering
it calls, its arguments (through views, as instances, so that a value that was made again is the
one that is read), the number of its random draw, its results by position; the copies to the
host and back; what crosses from forward to backward; outputs, new buffers and gradients by name.
`model` and `step` must be the known ones.

Barriers are nothing to values; that they tell each repeated execution from those before it is
compared (`readback/repeats.py`).

Not compared: when memory is given back; what else barriers are for, the order (whether XLA keeps
to the plan is looked up in what it compiled, FB0938); and the bodies of the lowerings, whose
values the tests compare with PyTorch's. That a lowering is defined once and not shadowed is
compared. Modules in the style of `jax.checkpoint` are read back by `annotated.py`.
"""

from __future__ import annotations

import ast

from ....ir.program import Program
from ....ir.schedule import Schedule
from ...readback.machine import AbstractMachine
from ...readback.mismatch import unreadable
from ...readback.regions import RegionReader
from ..emit.template import RUN
from ..honoured import for_jax
from .ends import EndedFunction
from .expressions import reader_of
from .module import check_fixed, definitions
from .repeats import check_told_apart


def check_source(source: str, program: Program, schedule: Schedule) -> None:
    """Holds an explicit module against `schedule`. FB0945 with the place in the text and the
    step where they differ, FB0946 for code that has no meaning here."""
    file = f"<JAX code of @{schedule.name}>"
    tree = ast.parse(source)
    functions = definitions(tree, file)
    check_fixed(tree, RUN, file)
    for name in ("forward", "backward"):
        if name not in functions:
            unreadable(tree, file, f"no function {name}")
    machine = AbstractMachine(for_jax(program), schedule)
    reader = reader_of(functions, machine.graph, file)
    inside = RegionReader(machine, reader, {name: functions[name] for name in reader.regions})
    forward = EndedFunction(machine, reader, functions["forward"], file, inside)
    forward.enter("params, buffers, args, key=None")
    forward.bind_caller()
    forward.run(functions["forward"].body)
    forward.end_of_forward()
    machine.compute(machine.execution())
    backward = EndedFunction(machine, reader, functions["backward"], file, inside)
    backward.enter("saved, tangents")
    backward.follow(forward)
    backward.run(functions["backward"].body)
    backward.end_of_backward()
    check_told_apart(functions, reader.regions, program, file)
