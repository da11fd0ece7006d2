"""Checks the header's layouts of the caller's tensors, and what it says is to run once."""

from __future__ import annotations

from collections.abc import Sequence

from ..expr import evaluate
from ..graph import CALLER_KINDS
from ..program import Program, TensorLayout
from .findings import Findings

_MOST = 2**63 - 1


def check_layouts(program: Program, findings: Findings) -> None:
    """FB0201 for an aNode or a cNode that is not there, FB0202 for an aNode that is named twice,
    FB0221 for a layout that no tensor of the caller's of that shape has."""
    anodes, cnodes = program.graph.anode, program.graph.cnode
    for name in program.header.run_once:
        if name not in cnodes:
            findings.unknown("cNode", name, cnodes, None, name)
    updated = {b.name for b in program.binding.buffers if b.update is not None}
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
        elif layout.name in updated and layout.form == "strides":
            sizes = [evaluate(size, program.sample) for size in anodes[layout.name].shape]
            if _overlaps(sizes, layout.numbers):
                message = f"elements of {word} share bytes, and its update writes each of them"
                findings.add("FB0221", message, layout.span, word=word)
        elif anodes[layout.name].kind not in CALLER_KINDS:
            message = f"{word} is not the caller's, so its layout is not theirs either"
            findings.add("FB0221", message, layout.span, word=word)


def _overlaps(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether a step of one dimension may land among the elements of the smaller steps."""
    reached = 0
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if size > 1 and stride <= reached:
            return True
        reached += max(0, size - 1) * stride
    return False


def _wrong(layout: TensorLayout, dimensions: int) -> str | None:
    if len(layout.numbers) != dimensions:
        return f"has {len(layout.numbers)} numbers for {dimensions} dimensions"
    if layout.form == "order" and sorted(layout.numbers) != list(range(dimensions)):
        return "is no order of its dimensions"
    if not all(0 <= number <= _MOST for number in layout.numbers):
        return f"has a number below 0 or above {_MOST}"
    return None
