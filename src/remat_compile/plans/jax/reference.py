"""One step under PyTorch's own kernels, its random numbers drawn as JAX draws them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import torch
from torch import Tensor

from ...backends.jax.emit.tables import SEED, needs_x64
from ...backends.jax.runtime.arrays import Stored, to_numpy, to_tensor
from ...backends.jax.runtime.interpret import apply, as_tuple
from ...ir.analysis.order import capture_order, frees_after_last_use
from ...operators.executor import ExecutedStep, execute

if TYPE_CHECKING:
    from ...capture.lowered import Exported
    from ...ir.graph import CNode
    from ...ir.program import Program


def held_tensors(program: Program, exported: Exported) -> dict[str, Tensor]:
    """The model's tensors of everything that the caller holds, by aNode name.

    FB0710 where the model gives another graph than the program's, FB0512 where that graph
    is wrong.
    """
    from ..bind import lowered_again

    with lowered_again(program, exported) as lowered:
        pass
    return lowered.values()


def reference_step(program: Program, values: Mapping[str, Tensor]) -> Stored:
    """Inputs and results of one unplanned step, as a generated module's check wants them.

    Results that take part in the loss get tangents: ones where the model returns a scalar,
    else random ones. Dropout and its like draw what JAX draws from the key of the check.
    """
    graph, binding = program.graph, program.binding
    updated = {b.name for b in binding.buffers if b.update is not None}
    held = {n: t.detach().clone() if n in updated else t for n, t in values.items()}
    before = {b.names[0]: to_numpy(held[b.name]) for b in binding.buffers}
    made: dict[str, Tensor] = {}

    def loss(results: Mapping[str, Tensor]) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(SEED)
        for result in binding.results:
            if result.tangent is not None:
                like = results[result.name]
                made[result.tangent] = _tangent(like, generator, len(binding.results) == 1)
        return {name: tangent.clone() for name, tangent in made.items()}

    steps = frees_after_last_use(graph, capture_order(graph))
    with jax.enable_x64(needs_x64(program)):
        done = execute(program, steps, held, loss, draw=_Draws(program).draw)
    return {
        "param": {p.names[0]: to_numpy(held[p.name]) for p in binding.params},
        "buffer": before,
        "arg": {str(i): to_numpy(held[a.name]) for i, a in enumerate(binding.arguments)},
        "tangent": {
            str(i): to_numpy(made[r.tangent])
            for i, r in enumerate(binding.results)
            if r.tangent is not None
        },
        **_results(program, done, held),
    }


def _tangent(like: Tensor, generator: torch.Generator, alone: bool) -> Tensor:
    if alone and like.dim() == 0:
        return torch.ones_like(like)
    drawn = torch.randn(like.shape, generator=generator, dtype=torch.float64)
    return drawn.to(like.dtype).to(like.device)


def _results(program: Program, done: ExecutedStep, held: Mapping[str, Tensor]) -> Stored:
    binding = program.binding
    return {
        "output": {str(i): to_numpy(x) for i, x in enumerate(done.results)},
        "new_buffer": {
            b.names[0]: to_numpy(held[b.name]) for b in binding.buffers if b.update is not None
        },
        "grad": {
            p.names[0]: to_numpy(done.param_grads[p.name])
            for p in binding.params
            if p.grad is not None
        },
        "input_grad": {str(i): to_numpy(x) for i, x in done.input_grads.items()},
    }


@dataclass(frozen=True)
class _Draws:
    """Does the work of random operators with JAX."""

    program: Program

    def draw(self, c: CNode, values: Mapping[str, Tensor]) -> tuple[Tensor | None, ...]:
        random = [node.name for node in self.program.graph.cnodes if node.token is not None]
        key = jax.random.fold_in(jax.random.key(SEED), random.index(c.name))
        reads = {name: jax.device_put(to_numpy(values[name])) for name in c.call.refs()}
        results = as_tuple(apply(c.call, self.program.sample, reads, key=key))
        device = torch.device(self.program.header.device)
        return tuple(
            None if name is None else to_tensor(result, device)
            for name, result in zip(c.writes, results, strict=True)
        )
