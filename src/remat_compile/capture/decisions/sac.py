"""The saved and recomputed sets of PyTorch's selective activation checkpointing.

`torch.utils.checkpoint` with `create_selective_checkpoint_contexts` leaves a policy on
every node of the joint graph (`meta["recompute"]`) and the number of its region
(`meta["ac_graph_id"]`), where the model was exported with `strict=True`.
"""

from __future__ import annotations

from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from ...ir.diagnostics import fail
from ..lowered import Lowered
from .decision import Decision
from .regions import Region, decide_regions
from .ties import cnode_of_node

SAVED = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE)


def decide_sac(lowered: Lowered) -> Decision:
    """The decision in the tags of the joint graph. FB0483 where there are none.

    A region is computed again as far as the backward needs it. Random states are kept
    (`preserve_rng_state`, the default).
    """
    graph = lowered.program.graph
    cnodes: dict[str, set[str]] = {}
    saved: dict[str, set[str]] = {}
    ties = cnode_of_node(lowered)
    for node in lowered.joint.graph_module.graph.nodes:
        region = node.meta.get("ac_graph_id")
        name = ties.get(node.name)
        if region is None or name is None or graph.cnode[name].phase != "fwd":
            continue
        cnodes.setdefault(str(region), set()).add(name)
        if _policy(node) in SAVED:
            saved.setdefault(str(region), set()).update(graph.cnode[name].results)
    if not cnodes:
        message = "no torch.utils.checkpoint is found in the model"
        hint = "wrap the blocks in torch.utils.checkpoint.checkpoint(…, use_reentrant=False)"
        fail("FB0483", message, hint=hint)
    regions = [
        Region(f"checkpoint {key}", frozenset(members), frozenset(saved.get(key, ())))
        for key, members in cnodes.items()
    ]
    return decide_regions(lowered.program, regions, f"sac{{regions={len(regions)}}}")


def _policy(node: fx.Node) -> CheckpointPolicy | None:
    policy: CheckpointPolicy | None = node.meta.get("recompute")
    return policy
