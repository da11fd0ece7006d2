"""Copies of a step whose parameters are sharded: the plan's host is the memory of all ranks.

A parameter comes by gathering its rows, a gradient goes by leaving each rank its rows of the mean,
and each rank updates its own rows. Collectives follow each other in the order of issue, which is
that of the plan, and so the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from ....device.shards import Shards
from ....ir.diagnostics import fail
from ....ir.graph import CNode
from ....ir.program import Program
from ....ir.schedule import Compute, Direction, Offload, Schedule
from ....operators.instances import Instances
from .call import HostCopies, HostCopy
from .cpu import ThreadEngine

PLANNERS = 'plan with a budget, planner="zero-infinity" or "zero-offload", and a link='


def check_away(program: Program, schedule: Schedule, *, is_sharded: bool) -> frozenset[str]:
    """The untrained parameters that a plan, for parameters that do not lie where the step runs, has
    there all along. FB0555 where that is so of others, or one is updated there; FB0556
    where shards cannot be copied so."""
    graph = program.graph
    read = {name for c in graph.cnodes for name in graph.reads(c)}
    there = read - schedule.homes
    updated = {old for c in graph.cnodes if c.is_update for old, _ in c.takes_over}
    frozen = {p.name for p in program.binding.params if p.grad is None} & there - updated
    kinds = "param", "opt_state"
    kept = [a.name for a in graph.anodes if a.kind in kinds and a.name in there - frozen]
    runs = [step for step in schedule.steps if isinstance(step, Compute)]
    kept += [r.cnode for r in runs if graph.cnode[r.cnode].is_update and not r.on_host]
    if kept:
        message = f"the plan of {schedule.planner} has %{kept[0]} on the device, which lies away"
        fail("FB0555", message, schedule.span, hint=f"{PLANNERS}, or move the model there")
    if not is_sharded:
        return frozenset(frozen)
    updates = [graph.cnode[r.cnode] for r in runs if r.on_host]
    summed = {graph.storage[ref] for c in updates for ref in c.call.refs()} - schedule.homes
    own = {step.anode for step in schedule.steps if isinstance(step, Offload)} - summed
    if own or not updates:
        message = (
            f"the plan of {schedule.planner} copies %{min(own)}, which each rank has for itself"
            if updates
            else "no rank would add up the gradients of its rows without an optimizer in the plan"
        )
        fail("FB0556", message, schedule.span, hint="give optimizer=, and " + PLANNERS)
    return frozenset(frozen)


class ShardEngine(ThreadEngine):
    """One thread for both directions, and a process group of its own."""

    def __init__(self, parameter: Tensor) -> None:
        """Every rank makes one for the same plan, at the same time."""
        super().__init__()
        import torch.distributed as dist

        ranks = dist.get_process_group_ranks(Shards.of(parameter).group)
        group = dist.new_group(ranks, use_local_synchronization=True)
        self.shards = Shards.of(parameter, group)
        self._threads["h2d"] = self._threads["d2h"]

    def issue(
        self, direction: Direction, name: str, tensor: Tensor, host: Sequence[Tensor]
    ) -> Future[None]:
        """Begins to gather all of a tensor; a gradient goes by `share`."""
        (own,) = host
        rows = own.numel() // (tensor[0].nbytes or 1)
        own = own.view(tensor.dtype).view(rows, *tensor.shape[1:])
        return self._threads[direction].submit(self._run, direction, name, [(tensor, own)])

    def share(self, name: str, pairs: Sequence[tuple[Tensor, Tensor]]) -> Future[None]:
        """Begins to add gradients up over the ranks: all of each, and this rank's rows of it."""
        return self._threads["d2h"].submit(self._run, "d2h", name, [*pairs])

    def _run(self, direction: Direction, name: str, pairs: list[tuple[Tensor, Tensor]]) -> None:
        move = self.shards.mean if direction == "d2h" else self.shards.gather
        self.late(direction, name)
        try:
            while pairs:  # no reference is left when the copy counts as done, as in `_move`
                move(*pairs.pop())
        finally:
            pairs.clear()


class ShardedCopies(HostCopies):
    """The copies of one call; gradients by the names that updates read them under."""

    _engine: ShardEngine

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._rows: dict[str, Tensor] = {}

    def offload(self, name: str, tensor: Tensor) -> None:
        """Begins to add up a gradient over the ranks."""
        assert self._updates is not None
        graph, shards = self._updates.graph, self._engine.shards
        operands = (ref for c in graph.cnodes if c.is_update for ref in c.operands)
        whole = Instances(graph, self.env, {name: tensor})
        self._host[name] = HostCopy.of(tensor)
        self._count(name)
        pairs = []
        for ref in sorted({ref for ref in operands if graph.storage[ref] == name}):
            first, end = shards.parts(len(whole[ref]))[shards.rank]
            like = whole[ref][first:end]
            self._rows[ref] = torch.empty_like(like, memory_format=torch.contiguous_format)
            pairs.append((whole[ref], self._rows[ref]))
        self.flights[name] = self._engine.share(name, pairs)

    def _operands(self, c: CNode, held: Mapping[str, HostCopy]) -> list[Tensor]:
        return [
            self._rows.pop(ref) if ref in self._rows else held[ref].tensor() for ref in c.operands
        ]
