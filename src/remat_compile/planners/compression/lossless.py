"""Lossless packing: which activations are kept in fewer bytes between forward and backward.

What is packed is every activation that a codec takes, that the backward reads, and of which enough
is saved. Whether a plan with packed values is better is decided by planning both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ...ir.analysis.packs import Choice
from ...ir.codecs import CODECS
from ...ir.expr import evaluate
from ...ir.graph import ANode, Graph
from ...ir.program import Program

LEAST_SAVED = 4096
"""Bytes that packing one value must save, at the sample."""

Contiguous = Callable[[str], bool]
"""Whether the tensor of an aNode lies in memory in the order of its elements."""


def lossless_choices(program: Program, is_contiguous: Contiguous) -> list[Choice]:
    """The values to be packed, in the order of the graph, each by the first codec that takes it."""
    graph = program.graph
    return [
        choice
        for a in graph.anodes
        if a.kind in ("act", "phantom")
        for choice in _choices(graph, a)
        if is_contiguous(a.name) and _saved_bytes(a, choice, program.sample) >= LEAST_SAVED
    ]


def _saved_bytes(a: ANode, choice: Choice, env: Mapping[str, int]) -> int:
    return evaluate(a.size, env) - evaluate(choice.codec.packed(a, "packed").size, env)


def _choices(graph: Graph, a: ANode) -> Iterator[Choice]:
    readers = [c for c in graph.readers[a.name] if c.phase == "bwd"]
    # What is kept for other reasons stays as it is; a phantom that the forward reads is none.
    is_phantom = len(readers) == len(graph.readers[a.name])
    if a.kind != ("phantom" if is_phantom else "act") or any(c.replay for c in readers):
        return
    codec = next((codec for codec in CODECS.values() if a.dtype in codec.types), None)
    if codec is not None and readers:
        yield Choice(a.name, codec, tuple(c.name for c in readers))
