"""Reads generated PyTorch code back and holds it against the schedule, step by step.

Each function is run over abstract values: a variable holds an instance of an aNode, a view of
one, a state of the random stream, a size. Compared are, in the order of the schedule: the
operator of each execution, its arguments (through views, as instances), its random state, and
its results by position; each step of a copy to the host or back, what it copies and what that
becomes; before each execution, before each of these steps and at the end of each function, that
what the variables keep alive is what is live in the schedule, no more and no less; what crosses
from forward to backward, what is returned, and the dimensions read as symbols. Trusted are
Python and PyTorch's own meaning of an operator's name. It knows nothing of how code is emitted.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from ....device.devices import generator_module
from ....ir.analysis.packs import has_packs
from ....ir.program import Program
from ....ir.schedule import Schedule
from ...python.allowed import statements
from ...readback.machine import AbstractMachine
from ...readback.mismatch import differs, unreadable
from ...readback.regions import RegionReader
from ...readback.values import CallCopies
from ..code.interface import Interface, copies_of, default_interface
from ..code.script import replay_helper, script_imports, script_tables, script_text
from .ends import Ends
from .expressions import TorchReader
from .function import Function

FUNCTIONS = ("forward", "backward", "replay")
REGION = re.compile("fused[0-9]+")


def check_source(
    source: str, program: Program, schedule: Schedule, interface: Interface | None = None
) -> tuple[str, ...]:
    """Holds `source` against `schedule`; the aNodes that cross from forward to backward.

    Without an interface, the functions are to take and give what the binding says. FB0945
    with the place in the text and the step where they differ, FB0946 for code that has no
    meaning here.
    """
    tree = ast.parse(source)
    file = f"<torch code of @{schedule.name}>"
    generator = generator_module(program.header.device)
    tables = script_tables(program, schedule) if interface is None else {}
    schedule = schedule.elementary
    copies = [CallCopies() for _ in copies_of(program, schedule)]
    texts = (
        script_imports(copies=bool(copies), codecs=has_packs(program.graph)),
        script_text(copies=bool(copies)),
    )
    fixed = frozenset().union(*map(statements, texts))
    operators, functions = _module(tree, file, fixed, replay_helper(program), tables)
    machine = AbstractMachine(program, schedule, says_waits=True)
    regions = {name: node for name, node in functions.items() if name not in FUNCTIONS}
    reader = TorchReader(file, operators, "replay" in functions, generator, frozenset(regions))
    for name in ("forward", "backward"):
        if name not in functions:
            unreadable(tree, file, f"no function {name}")
    interface = (interface or default_interface(program)).without(program, schedule.homes)
    ends = Ends(program, interface, copies)
    inside = RegionReader(machine, reader, regions)
    forward = Function(machine, reader, functions["forward"], file, inside)
    ends.enter_forward(forward)
    forward.run()
    ends.leave_forward(forward)
    backward = Function(machine, reader, functions["backward"], file, inside)
    ends.enter_backward(backward)
    backward.run()
    ends.leave_backward(backward)
    return ends.saved


def _is_function(node: ast.FunctionDef) -> bool:
    """Return whether it is one of the step, or of a region (`fused0`) with plain parameters. A
    return annotation would be evaluated with the module."""
    if node.returns is not None:
        return False
    plain = ", ".join(a.arg for a in node.args.args) == ast.unparse(node.args)
    is_region = REGION.fullmatch(node.name) and plain and not node.decorator_list
    return node.name in ("forward", "backward") or bool(is_region)


def _module(
    tree: ast.Module,
    file: str,
    fixed: frozenset[str],
    helper: str,
    tables: Mapping[str, object],
) -> tuple[dict[str, str], dict[str, ast.FunctionDef]]:
    """Operators by variable, and functions by name; each is bound once. `tables` are those of
    a script, and `fixed` its statements that are the same in every module."""
    (replay,) = statements(helper)
    operators: dict[str, str] = {}
    functions: dict[str, ast.FunctionDef] = {}
    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    for node in body:
        match node:
            case _ if ast.dump(node) in fixed:
                continue
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in tables:
                if ast.unparse(value) != repr(tables[name]):
                    differs(node, file, "no step", f"{name} is not {tables[name]!r}")
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute(attr="_op") as value):
                path = ast.unparse(value).split(".")
                if path[:2] != ["torch", "ops"] or len(path) != 6:
                    unreadable(node, file, f"{name} is no operator")
                made = ".".join(path[2:5])
                if name in operators or name in functions:
                    differs(node, file, "no step", f"{name} is bound twice")
                operators[name] = made
            case ast.FunctionDef(name="replay") if ast.dump(node) == replay:
                functions["replay"] = node
            case ast.FunctionDef(name="replay"):
                differs(node, file, "replays", "`replay` does not restore the state it found")
            case ast.FunctionDef(name=name) if _is_function(node) and name not in functions:
                functions[name] = node
            case _:
                unreadable(node, file, ast.unparse(node).splitlines()[0])
    return operators, functions
