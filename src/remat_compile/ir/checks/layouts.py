"""Checks the header's layouts of the caller's tensors."""

from __future__ import annotations

from ..graph import CALLER_KINDS
from ..program import Program, TensorLayout
from .findings import Findings

__all__ = ["check_layouts"]

_MOST = 2**63 - 1


def check_layouts(program: Program, findings: Findings) -> None:
    """FB0201 for an aNode that is not there, FB0202 for one that is named twice, FB0221 for a
    layout that no tensor of the caller's of that shape has."""
    anodes = program.graph.anode
    seen: set[str] = set()
    for layout in program.header.layouts or ():
        word = f"%{layout.name}"
        if layout.name not in anodes:
            findings.unknown("aNode", layout.name, anodes, layout.span, word)
            continue
        if layout.name in seen:
            findings.add("FB0202", f"the layout of {word} is given twice", layout.span, word=word)
        seen.add(layout.name)
        if wrong := _wrong(layout, len(anodes[layout.name].shape)):
            findings.add("FB0221", f"the layout of {word} {wrong}", layout.span)
        elif anodes[layout.name].kind not in CALLER_KINDS:
            message = f"{word} is not the caller's, so its layout is not theirs either"
            findings.add("FB0221", message, layout.span, word=word)


def _wrong(layout: TensorLayout, dimensions: int) -> str | None:
    if len(layout.numbers) != dimensions:
        return f"has {len(layout.numbers)} numbers for {dimensions} dimensions"
    if layout.form == "order" and sorted(layout.numbers) != list(range(dimensions)):
        return "is no order of its dimensions"
    if not all(0 <= number <= _MOST for number in layout.numbers):
        return f"has a number below 0 or above {_MOST}"
    return None
