"""Return whether the graph of a plan is that of a model: by its text, or by executing both.

A proof speaks of the graph as it is written. Here the model is captured again. Where the
capture gives the same symbols, sizes, operators, arguments, kinds, replay forms, tokens and
binding, nothing is left to ask; places, times and workspaces do not count. A storage that the
plan declares smaller than it is here is refused. Else (renamed nodes, another version of
PyTorch, another device, storages declared larger) both graphs are executed at two inputs in
float64, and all that leaves them is compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from ...ir.diagnostics import (
    Diagnostic,
    FBError,
    Note,
)
from ...ir.expr import Const
from ...ir.graph import (
    ANode,
    CNode,
    View,
)
from ...ir.text.printer import format_statement
from ...verifier.obligations.same_values import same_values
from ..bind import graph_differences
from .layouts import check_layouts, warn_of_layouts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from ...capture.lowered import Exported
    from ...ir.program import Program
    from ...ir.span import Span


class GraphSeen(Enum):
    """Outcome of holding the graph of a plan against a model."""

    UNSEEN = "model not seen"
    SAME_TEXT = "same text"
    SAME_VALUES = "same text but for fused cNodes, each the composition of the model's calls"
    EXECUTED = "executed at two inputs"


@dataclass(frozen=True, slots=True)
class GraphCheck:
    """The comparison with `model`. `how` tells the types, equality and replay forms of an
    execution."""

    seen: GraphSeen = GraphSeen.UNSEEN
    model: str | None = None
    how: str = ""

    @property
    def assumption(self) -> str:
        """Return the assumption of a verdict, in one sentence."""
        match self.seen:
            case GraphSeen.UNSEEN:
                return "for the graph as written: model not seen"
            case GraphSeen.SAME_TEXT | GraphSeen.SAME_VALUES:
                return f"graph compared with model {self.model}: {self.seen.value}"
            case GraphSeen.EXECUTED:
                return f"graph compared with model {self.model}: executed at two inputs, {self.how}"


def check_graph(program: Program, exported: Exported, model: str) -> GraphCheck:
    """Holds the graph of `program` against the model, captured again.

    FB0720 where they differ in meaning, with the first difference on the plan's text; FB0721
    where what they take or give is not the same, so that they cannot be compared; FB0512
    where the capture itself does not compute what eager computes.
    """
    from ...capture.torch import ensure_trusted, lower

    with lower(exported) as lowered:
        captured, values = lowered.program, lowered.values()
        check_layouts(program, captured)
        fused = any(c.is_fused for c in program.graph.cnodes)
        if not _same_text(program, captured) and program.header.costs == "measured":
            captured = _measured(captured, values)
        same = _same_values(program, captured) if fused else _same_text(program, captured)
        if not same:
            _refuse_small_sizes(program, captured)
    ensure_trusted(lowered)
    warn_of_layouts(program, lowered.program)
    if same:
        return GraphCheck(GraphSeen.SAME_VALUES if fused else GraphSeen.SAME_TEXT, model)
    from .run_graph import Incomparable, compare_runs

    try:
        compared = compare_runs(program, captured, values)
    except Incomparable as error:
        notes = (Note(str(error)), *_differences(program, captured))
        message = f"the graph cannot be compared with {model}"
        hint = "give the options that the plan was made with, or plan the model again"
        raise FBError(
            Diagnostic("FB0721", message, _place(program, captured), notes, hint)
        ) from None
    if compared.wrong is not None:
        notes = (Note(compared.wrong), *_differences(program, captured))
        message = f"the graph is not that of {model}"
        span = _place(program, captured)
        raise FBError(Diagnostic("FB0720", message, span, notes, "plan the model again"))
    return GraphCheck(GraphSeen.EXECUTED, model, compared.how)


def _same_text(planned: Program, captured: Program) -> bool:
    return _core(planned) == _core(captured)


def _same_values(planned: Program, captured: Program) -> bool:
    """Return whether every value of the plan is that of the capture, through regions; declarations,
    sizes among them, are equal."""
    grads = replace(captured.binding, grads=planned.binding.grads)
    return not same_values(replace(captured, binding=grads, target=planned.target), planned)


def _core(program: Program) -> tuple[object, ...]:
    """Return what must be equal, as the text has it; times, workspaces, places and `grads` do
    not."""
    graph = program.graph
    nodes: tuple[ANode | View | CNode, ...] = (
        *graph.anodes,
        *graph.views,
        *map(_bare, graph.cnodes),
    )
    statements = tuple(map(format_statement, nodes))
    return program.symbols, statements, replace(program.binding, grads="fresh")


def _bare(c: CNode) -> CNode:
    """The cNode without what a cost source fills in, and without its place in the model. A
    replay form that is the call itself is none: the cost source adds it."""
    replay = c.replay
    if replay is not None:
        replay = replace(replay, workspace=Const(0), time_ns=None)
        if replay.call == c.call and replay.writes == c.writes:
            replay = None
    return replace(c, workspace=Const(0), time_ns=None, loc=None, replay=replay)


def _measured(captured: Program, values: Mapping[str, Tensor]) -> Program:
    """The capture with the sizes and replay forms that measuring finds."""
    from ...costs import measured

    program: Program = measured(captured, values, time_limit_s=1.0)
    return program


def _refuse_small_sizes(planned: Program, captured: Program) -> None:
    """FB0720 for storages of one name that the plan declares smaller than they are."""
    from ...ir.expr import evaluate

    diagnostics = []
    for node in planned.graph.anodes:
        other = captured.graph.anode.get(node.name)
        if other is None or (other.dtype, other.shape) != (node.dtype, node.shape):
            continue
        ours, theirs = evaluate(node.size, planned.sample), evaluate(other.size, captured.sample)
        if ours < theirs:
            message = f"%{node.name} is declared {ours} bytes, and the model needs {theirs}"
            diagnostics.append(
                Diagnostic("FB0720", message, node.span, hint="plan the model again")
            )
    if diagnostics:
        raise FBError(diagnostics)


def _differences(planned: Program, captured: Program) -> tuple[Note, ...]:
    return tuple(Note(line) for line in graph_differences(planned, captured))


def _place(planned: Program, captured: Program) -> Span | None:
    """Where the text of the plan differs first from the capture."""
    for c in planned.graph.cnodes:
        other = captured.graph.cnode.get(c.name)
        if other is None or _bare(c) != _bare(other):
            return c.span
    views = {view.name: view for view in captured.graph.views}
    for view in planned.graph.views:
        if views.get(view.name) != view:
            return view.span
    for node in planned.graph.anodes:
        if captured.graph.anode.get(node.name) != node:
            return node.span
    return None
