"""Generator states with which the forwards of stages draw.

The step on one rank draws micro-batch by micro-batch, stage by stage. A rank that runs only some of
these forwards gets their states by drawing for the others too, on operands without data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import torch

from ....device.devices import get_rng_state, set_rng_state
from ....ir.expr import evaluate
from ....ir.graph import CNode
from ....ir.program import Program
from ....operators.aten import torch_dtype
from ....operators.instances import Instances, run_cnode


def generator_state(device: torch.device) -> bytearray:
    """The state of the device's default generator."""
    return bytearray(get_rng_state(device).numpy().tobytes())


def set_generator(state: bytearray, device: torch.device) -> None:
    """Inverse of `generator_state`."""
    set_rng_state(torch.frombuffer(state, dtype=torch.uint8), device)


class Draws:
    """The states of one step, from the present one, which it moves to the end of the step.

    `random_S` are the random cNodes of each stage's forward, `own` the stages of this rank. States
    are kept as bytes of the host, one for each own stage and micro-batch.
    """

    def __init__(
        self,
        program: Program,
        random_S: Sequence[Sequence[str]],
        own: Collection[int],
        microbatches: int,
    ):
        self.program, self.device = program, torch.device(program.header.device)
        state = partial(generator_state, self.device)
        self.before: dict[tuple[int, int], bytearray] = {}
        self.behind: dict[tuple[int, int], bytes] = {}
        for k in range(microbatches):
            for s, cnodes in enumerate(random_S):
                kept = s in own and len(cnodes) > 0
                if kept:
                    self.before[s, k] = state()
                for name in cnodes:
                    self._draw(program.graph.cnode[name])
                if kept:
                    self.behind[s, k] = hashlib.sha256(state()).digest()

    def _draw(self, c: CNode) -> None:
        graph, sample = self.program.graph, self.program.sample
        operands = {}
        for name in graph.reads(c):
            a = graph.anode[name]
            shape = [evaluate(n, sample) for n in a.shape]
            one = torch.zeros((), dtype=torch_dtype(a.dtype), device=self.device)
            operands[name] = one.expand(shape)
        run_cnode(c, 1, Instances(graph, sample, operands), token=None, device=self.device)

    def enter(self, s: int, k: int) -> None:
        """Sets the state with which the forward of stage s on micro-batch k begins."""
        if (state := self.before.pop((s, k), None)) is not None:
            set_generator(state, self.device)

    def leave(self, s: int, k: int) -> None:
        """RuntimeError where the forward drew more or less than foreseen: other micro-batches would
        draw other numbers than the step on one rank."""
        digest = self.behind.pop((s, k), None)
        if digest not in (None, hashlib.sha256(generator_state(self.device)).digest()):
            raise RuntimeError("how many numbers an operator draws depends on its operands")


def random_stages(
    program: Program, forward_S: Sequence[Sequence[str]]
) -> tuple[tuple[str, ...], ...] | None:
    """The random cNodes of each stage's forward; None where the step draws in another order, or in
    its backward."""
    cnode: Mapping[str, CNode] = program.graph.cnode
    found = tuple(
        tuple(name for name in names if cnode[name].token is not None) for names in forward_S
    )
    captured = [c.name for c in program.graph.cnodes if c.token is not None]
    return found if captured == [name for names in found for name in names] else None
