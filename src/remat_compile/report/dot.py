"""The graph of a plan for Graphviz: what depends on what, coloured by what the schedule does.

A box is a computation (its executions, if more than one), an edge a tensor with its bytes. Edges
that are computed again are orange, those that wait on the host yellow; forward stands left of
backward.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..ir.graph import CALLER_KINDS, CNode
from ..ir.units import format_bytes
from . import MARK
from .charts.drawing import COLORS, ROLE_COLORS, ROLE_NAMES
from .subject import Subject, shown


def dot(subject: Subject) -> str:
    """The text of a `.dot` file."""
    return "\n".join(_lines(subject)) + "\n"


def _lines(subject: Subject) -> Iterator[str]:
    graph = subject.program.graph
    number = {c.name: f"c{i}" for i, c in enumerate(graph.cnodes)}
    yield f"// {MARK}"
    yield f"digraph {_quoted(graph.name)} {{"
    yield "  rankdir=LR; node [shape=box, style=filled, fontname=sans]; edge [fontname=sans];"
    for c in graph.cnodes:
        yield f"  {number[c.name]} [{_look(subject, c)}];"
    moved = {copy.anode for copy in subject.trace.copies}
    sizes, counts = subject.trace._sizes.anode, subject.trace.executions
    for c in graph.cnodes:
        for name in graph.reads(c):
            writer = graph.writer.get(name)
            if writer is None or graph.anode[name].kind in CALLER_KINDS:
                continue
            color = "gray50"
            if name in moved:
                color = COLORS["in transfer"]
            elif counts.get(writer.name, 0) > 1:
                color = COLORS["recomputed"]
            label = _quoted(f"%{name} {format_bytes(sizes[name])}")
            ends = f"{number[writer.name]} -> {number[c.name]}"
            yield f'  {ends} [label={label}, color="{color}"];'
    yield "}"


def _look(subject: Subject, c: CNode) -> str:
    count = subject.trace.executions.get(c.name, 0)
    text = f"{c.name} {c.call.op}" + (f" ({count} times)" if count != 1 else "")
    role = ROLE_NAMES["again" if count > 1 else c.phase]
    tooltip = str(c.loc or c.name)
    look = f'label={_quoted(text)}, tooltip={_quoted(tooltip)}, fillcolor="{ROLE_COLORS[role]}"'
    return f'{look}, fontcolor="white"'


def _quoted(text: str) -> str:
    """A quoted identifier, in which a backslash would begin an escape of Graphviz, and `&` one of
    HTML."""
    clean = shown(text).replace("&", "&amp;").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{clean}"'
