"""Bytes of everything that a step may take, at one assignment of the symbols."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ..expr import Expr, evaluate
from ..graph import CALLER_KINDS, CNode
from ..program import Program

NON_ACTIVATION_KINDS: frozenset[str] = CALLER_KINDS | {"param_grad", "updated"}
"""The storages that an activation budget excludes."""

KEPT_KINDS: frozenset[str] = frozenset(("output", "param_grad", "updated"))
"""The storages that must be alive at the end of the step."""


@dataclass(frozen=True)
class Sizes:
    """Bytes of every aNode and workspace at one assignment of the symbols, rounded up."""

    anode: Mapping[str, int]
    workspace: Mapping[str, int]
    replay_workspace: Mapping[str, int]

    @staticmethod
    def of(program: Program, env: Mapping[str, int] | None = None) -> Sizes:
        at = program.sample if env is None else env
        unit = program.target.granularity_bytes

        known: dict[int, int] = {}  # by identity: a reader makes equal sizes one object

        def rounded(size: Expr) -> int:
            if id(size) not in known:
                known[id(size)] = -(-evaluate(size, at) // unit) * unit
            return known[id(size)]

        graph = program.graph
        return Sizes(
            anode={a.name: rounded(a.size) for a in graph.anodes},
            workspace={c.name: rounded(c.workspace) for c in graph.cnodes},
            replay_workspace={c.name: rounded(c.workspace_at(2)) for c in graph.cnodes},
        )

    def workspace_at(self, cnode: CNode, execution: int) -> int:
        return (self.workspace if execution == 1 else self.replay_workspace)[cnode.name]


HOMES: frozenset[str] = frozenset(("param", "buffer", "opt_state", "param_grad"))
"""The kinds of storage that may be on the host between two steps."""


def existing_grads(program: Program, sizes: Sizes, homes: Collection[str] = ()) -> tuple[int, int]:
    """Bytes of the gradients that the caller already holds (`grads accumulate`): on the device,
    and on the host, where those in `homes` are."""
    if program.binding.grads != "accumulate":
        return 0, 0
    graph, here = program.graph, [0, 0]
    for p in program.binding.params:
        if p.grad is not None:
            here[graph.storage[p.grad] in homes] += sizes.anode[p.name]
    return here[0], here[1]
