"""What the bounds of a costed program rest on, in sentences to print beside them."""

from __future__ import annotations

from ..ir.expr import Const, symbols_of
from ..ir.program import Program

__all__ = ["assumptions"]


def assumptions(program: Program) -> tuple[str, ...]:
    """One sentence each; the first says where the costs come from."""
    header = program.header
    sentences: list[str] = []
    match header.costs:
        case "measured":
            sentences.append(
                f"sizes, workspace and times measured on {header.device}, {header.threads} "
                f"threads, torch {header.torch_version}"
            )
        case "roofline":
            sentences.append(f"times by roofline for {program.target.name}, nothing was run")
            sentences.append(_workspace_assumed(program))
        case "none":
            sentences.append("no times: every computation counts as 0 ns")
            sentences.append(_workspace_assumed(program))
    if header.costs == "measured" and (ranging := _ranging(program)):
        sentences.append(
            f"workspace measured over the range of {ranging}, at no more than 24 points; "
            "between them it is taken to grow evenly"
        )
    if program.graph.loss.workspace == Const(0):
        sentences.append("workspace of the loss assumed 0")
    return tuple(sentences)


def _workspace_assumed(program: Program) -> str:
    known = sum(c.workspace != Const(0) for c in program.graph.cnodes)
    if not known:
        return "workspace of every operator assumed 0"
    return f"workspace of operators assumed 0, but for unused results of {known}"


def _ranging(program: Program) -> str:
    names = [s.name for s in program.symbols if s.low != s.high]
    used = {
        name
        for c in program.graph.cnodes
        for size in (c.workspace, c.workspace_at(2))
        for name in symbols_of(size)
    }
    return ", ".join(name for name in names if name in used)
