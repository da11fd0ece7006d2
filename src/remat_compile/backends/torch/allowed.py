"""What the generated code for PyTorch may hold."""

from __future__ import annotations

from ..._torch.ops import ATOMS
from ...ir.graph import ACCUMULATE_OP
from ...ir.program import Program
from ..python.allowed import Allowed, statements
from ..python.names import called_operators
from .expressions import ADD_IN_PLACE, METHODS
from .script import IMPORTS, SCRIPT, TABLES

__all__ = ["allowed"]

_SIGNATURE = "args, constants=()"


def allowed(program: Program, helper: str) -> Allowed:
    """The table for a program; `helper` is the text that replays random operators.

    Operators are those of the graph, which `check_operators` has looked at, and the sum in
    place where the graph accumulates.
    """
    graph = program.graph
    operators = set(called_operators(graph))
    if any(c.call.op == ACCUMULATE_OP for c in graph.cnodes):
        operators.add(ADD_IN_PLACE)
    return Allowed(
        fixed=frozenset().union(*map(statements, (IMPORTS, helper, SCRIPT))),
        tables=frozenset(TABLES),
        handles=frozenset(f"torch.ops.{op}._op" for op in operators),
        signatures={"forward": _SIGNATURE, "backward": _SIGNATURE},
        called=frozenset(
            (
                *("replay", "max", "float", "torch.device"),
                *("torch.get_rng_state", "torch.cuda.get_rng_state"),
            )
        ),
        values=frozenset(map(str, ATOMS)),
        methods=frozenset(METHODS.values()),
        effects=frozenset(("args.clear()",)),
    )
