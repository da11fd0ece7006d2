"""The grammar of generated code for PyTorch."""

from __future__ import annotations

from collections.abc import Iterator

from ....device.devices import generator_module
from ....ir.analysis.packs import has_packs
from ....ir.graph import ACCUMULATE_OP
from ....ir.program import Program
from ....ir.schedule import Compute, HostFree, Offload, Schedule, Wait
from ....operators.aten import ATOMS, METHODS
from ...python.allowed import Allowed, statements
from ...python.names import called_operators
from ...python.regions import regions_of
from .expressions import ADD_IN_PLACE, Expressions
from .interface import copies_of
from .script import TABLES, script_imports, script_text

_SIGNATURE = "args, constants=()"


def allowed(program: Program, schedule: Schedule, helper: str) -> Allowed:
    """The table for a plan; `helper` is the text that replays random operators.

    Operators are those of the graph, which `check_operators` has looked at, and the sum in
    place where the graph accumulates.
    """
    graph = program.graph
    operators = set(called_operators(graph))
    if any(c.call.op == ACCUMULATE_OP for c in graph.cnodes):
        operators.add(ADD_IN_PLACE)
    copies = bool(copies_of(program, schedule))
    regions = regions_of(graph)
    texts = (
        script_imports(copies=copies, codecs=has_packs(graph)),
        helper,
        script_text(copies=copies),
    )
    return Allowed(
        fixed=frozenset().union(*map(statements, texts)),
        tables=frozenset(TABLES),
        handles=frozenset(f"torch.ops.{op}._op" for op in operators),
        signatures={
            **{name: regions.signature(name) for name in regions.functions},
            "forward": _SIGNATURE,
            "backward": _SIGNATURE,
        },
        called=frozenset(
            (
                *("replay", "max", "float", "complex", "torch.device"),
                *regions.functions,
                f"{generator_module(program.header.device)}.get_rng_state",
            )
        ),
        values=frozenset(map(str, ATOMS)),
        methods=frozenset((*METHODS.values(), *(("prefetch", "update") if copies else ()))),
        effects=frozenset(("args.clear()", *_copies(program, schedule))),
    )


def _copies(program: Program, schedule: Schedule) -> Iterator[str]:
    """The statements for the steps of copies, but for what assigns a tensor."""
    variable = Expressions(program).variable
    for step in schedule.elementary.steps:
        match step:
            case Offload(name):
                yield f"copies.offload({name!r}, {variable(name)})"
            case Wait(name) | HostFree(name):
                yield f"copies.{step.word}({name!r})"
            case Compute(name, _, True):
                yield f"copies.update_on_host({name!r})"
            case _:
                pass
