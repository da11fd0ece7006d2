"""Comparison of the graph of a plan with that of a model: by text, or by executing both.

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

from ...ir.diagnostics import Diagnostic, FBError, Note
from ...ir.expr import Const
from ...ir.rewrites.packs import erased, has_packs
from ...ir.rewrites.updates import has_updates, without_updates
from ...ir.text.printer import format_statement
from ...verifier.obligations.same_values import instances, same_values
from .layouts import check_layouts, warn_of_layouts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from ...capture.lowered import Exported
    from ...capture.torch.optimizer import OptimizerUpdates
    from ...ir.graph import CNode, View
    from ...ir.program import Program
    from ...ir.span import Span


class GraphSeen(Enum):
    """Outcome of holding the graph of a plan against a model."""

    UNSEEN = "model not seen"
    SAME_TEXT = "same text"
    PACKED = "same text but for packed values"
    SAME_VALUES = "same text but for fused cNodes, each the composition of the model's calls"
    EXECUTED = "executed at two inputs"


@dataclass(frozen=True, slots=True)
class GraphCheck:
    """The comparison with `model`. `how` tells the types, equality and replay forms of an
    execution. `updates` says whether those of an optimizer, where there are some, are the same."""

    seen: GraphSeen = GraphSeen.UNSEEN
    model: str | None = None
    how: str = ""
    updates: str = ""

    @property
    def assumption(self) -> str:
        """Return the assumption of a verdict, in one sentence."""
        match self.seen:
            case GraphSeen.UNSEEN:
                return "for the graph as written: model not seen"
            case GraphSeen.SAME_TEXT | GraphSeen.PACKED | GraphSeen.SAME_VALUES:
                found = self.seen.value
            case GraphSeen.EXECUTED:
                found = f"executed at two inputs, {self.how}"
        updates = f"; updates of the optimizer {self.updates}" if self.updates else ""
        return f"graph compared with model {self.model}: {found}{updates}"


def check_graph(
    program: Program, exported: Exported, model: str, optimizer: OptimizerUpdates | None = None
) -> GraphCheck:
    """Holds the graph of `program` against the model, captured again.

    FB0720 where they differ in meaning, with the first difference on the plan's text; FB0721
    where what they take or give is not the same, so that they cannot be compared; FB0512
    where the capture itself does not compute what eager computes. Updates are compared by their
    text, where the `optimizer` is there and so was the rest.
    """
    from ...capture.torch import ensure_trusted, lower

    updates = "not compared" if has_updates(program) else ""
    with lower(exported) as lowered:
        captured, values = lowered.program, lowered.values()
        whole, trained = program, None
        if updates:
            program = without_updates(whole)
            if optimizer is not None:  # it may clip gradients, which is part of the rest
                trained = optimizer.on(captured, measured=False, as_in=whole)
                captured = without_updates(trained)
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
        if trained is not None:
            updates = _same_updates(whole, trained, model)
        plain = GraphSeen.PACKED if has_packs(program.graph) else GraphSeen.SAME_TEXT
        return GraphCheck(GraphSeen.SAME_VALUES if fused else plain, model, updates=updates)
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
    return GraphCheck(GraphSeen.EXECUTED, model, compared.how, updates)


def _same_updates(planned: Program, captured: Program, model: str) -> str:
    """FB0720 where the updates of a plan are not those of the model's optimizer."""
    if differences := graph_differences(planned, captured):
        notes = tuple(map(Note, differences))
        message = f"the updates are not those of the optimizer of {model}"
        hint = "plan the model again with this optimizer"
        raise FBError(Diagnostic("FB0720", message, _place(planned, captured), notes, hint))
    return "the same"


def graph_differences(planned: Program, captured: Program, limit: int = 5) -> list[str]:
    """Return the differences of two captures of a model, in words; costs and sizes do not count.

    Sizes are left out because measuring corrects them, and so are the ranges of symbols. Calls
    are compared by `repr`, to which `1`, `1.0` and `true` are not equal, and `nan` is. The
    graphs are compared without packed values: what a plan packs is its own affair.
    """
    planned, captured = erased(planned), erased(captured)
    if any(c.is_fused for c in planned.graph.cnodes):
        return fused_differences(planned, captured)[:limit]
    lines = [line for line, _ in _differing(planned, captured)]
    if len(lines) > limit:
        lines[limit:] = [f"and {len(lines) - limit} more differences"]
    return lines


def _differing(planned: Program, captured: Program) -> Iterator[tuple[str, Span | None]]:
    """Each difference in words, with its place in the text of the plan."""
    ours, theirs = planned.graph.cnode, captured.graph.cnode
    for name in dict.fromkeys((*ours, *theirs)):
        own, new = ours.get(name), theirs.get(name)
        span = None if own is None else own.span
        if own is None or new is None:
            yield f"{name} is only in the {'plan' if new is None else 'model'}", span
        elif repr(_bare(own)) != repr(_bare(new)):
            yield _difference(own, new), span
        elif _replay(own) != _replay(new):
            yield f"the replay form of {name} differs", span
    views = [*map(_view, captured.graph.views)]
    if [*map(_view, planned.graph.views)] != views:
        new_views = (v.span for v in planned.graph.views if _view(v) not in views)
        yield "views differ", next(new_views, None)
    if _dimensions(planned) != _dimensions(captured):
        yield "other dimensions are dynamic", None
    nodes, others = planned.graph.anode, captured.graph.anode
    for name in dict.fromkeys((*nodes, *others)):
        node, other = nodes.get(name), others.get(name)
        if node is None or other is None:
            where = "plan" if other is None else "model"
            yield f"%{name} is only in the {where}", None if node is None else node.span
        elif (node.kind, node.dtype, node.shape) != (other.kind, other.dtype, other.shape):
            yield f"%{name} has another kind, type or shape", node.span
    if replace(planned.binding, grads="fresh") != replace(captured.binding, grads="fresh"):
        yield "arguments, parameters or results are bound differently", None


def fused_differences(planned: Program, captured: Program) -> list[str]:
    """The same where the plan has fused cNodes: every value is to be that of the capture."""
    if _dimensions(planned) != _dimensions(captured):
        return ["other dimensions are dynamic"]
    first = instances(captured, planned)
    sizes = {first.get(a.name, a.name): a.size for a in reversed(planned.graph.anodes)}
    anodes = tuple(replace(a, size=sizes.get(a.name, a.size)) for a in captured.graph.anodes)
    grads = planned.binding.grads
    as_planned = replace(
        captured,
        graph=replace(captured.graph, anodes=anodes),
        symbols=planned.symbols,
        target=planned.target,
        binding=replace(captured.binding, grads=grads),
    )
    return [d.message for d in same_values(as_planned, planned)]


def _difference(planned: CNode, captured: CNode) -> str:
    for what in ("call", "writes", "token", "phase", "of"):
        ours, theirs = getattr(planned, what), getattr(captured, what)
        if repr(ours) == repr(theirs):
            continue
        if what == "call" and ours.op != theirs.op:
            return f"{planned.name} is {ours.op} in the plan and {theirs.op} in the model"
        return f"{planned.name}: {'arguments' if what == 'call' else what} differ"
    return f"{planned.name} differs"


def _bare(c: CNode) -> CNode:
    """The cNode without what a cost source fills in, and without its place in the model."""
    return replace(c, workspace=Const(0), time_ns=None, host_time_ns=None, loc=None, replay=None)


def _view(view: View) -> tuple[str, str, str, int | None]:
    return view.name, view.base, repr(view.call), view.index


def _replay(c: CNode) -> tuple[tuple[str | None, ...], str]:
    """Return the writes and calls of the second execution. Measuring may add a replay form that is
    the call itself."""
    form = c if c.replay is None else c.replay
    return form.writes, repr(form.call)


def _dimensions(program: Program) -> list[tuple[str, int, int]]:
    """Which dimension of which argument each symbol is."""
    return [(s.name, s.argument, s.dim) for s in program.symbols]


def _same_text(planned: Program, captured: Program) -> bool:
    """Return whether the texts are equal but for times, workspaces, places and `grads`."""
    planned, captured = erased(planned), erased(captured)
    declared = [
        (p.symbols, [c.name for c in p.graph.cnodes], [*map(format_statement, p.graph.anodes)])
        for p in (planned, captured)
    ]
    return declared[0] == declared[1] and not graph_differences(planned, captured)


def _same_values(planned: Program, captured: Program) -> bool:
    """Return whether every value of the plan is that of the capture, through regions; declarations,
    sizes among them, are equal."""
    grads = replace(captured.binding, grads=planned.binding.grads)
    return not same_values(replace(captured, binding=grads, target=planned.target), planned)


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
    return next((span for _, span in _differing(planned, captured) if span is not None), None)
