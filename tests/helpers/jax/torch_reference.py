"""A step on PyTorch's own kernels, with the value of every aNode kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import jax
import torch
from torch import Tensor

from helpers.jax.arrays import from_torch, plain_code
from remat_compile.backends.jax.runtime.interpret import Draws, Interpreted, interpret
from remat_compile.capture.torch import Lowered
from remat_compile.ir.program import Program
from remat_compile.operators.instances import Instances, plain_mode, run_cnode

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Reference:
    """What the caller held, the tangents, and everything that was computed, by aNode."""

    program: Program
    held: Mapping[str, Tensor]
    tangents: Mapping[str, Tensor]
    computed: Mapping[str, Tensor]
    results: tuple[Tensor, ...]
    param_grads: Mapping[str, Tensor]
    input_grads: Mapping[int, Tensor]
    buffers: Mapping[str, Tensor]
    env: Mapping[str, int]

    @property
    def draws(self) -> Draws:
        """The results of the random cNodes, for JAX to take in place of its own."""
        return {
            c.name: tuple(None if w is None else from_torch(self.computed[w]) for w in c.writes)
            for c in self.program.graph.cnodes
            if c.token is not None
        }


def reference(
    lowered: Lowered, arguments: Sequence[Tensor] | None = None, seed: int = 0
) -> Reference:
    """Every cNode once, in the order of capture, sums made anew; random tangents.

    `arguments` stand in for the sample's; the symbols are read from their shapes.
    """
    program = lowered.program
    graph, binding = program.graph, program.binding
    generator = torch.Generator().manual_seed(seed)
    with plain_mode(CPU):
        held = {name: value.detach().clone() for name, value in lowered.values().items()}
        if arguments is not None:
            names = (argument.name for argument in binding.arguments)
            held.update(zip(names, arguments, strict=True))
        env = {
            s.name: held[binding.arguments[s.argument].name].shape[s.dim] for s in program.symbols
        }
        live = Instances(graph, env, held)
        tangents: dict[str, Tensor] = {}
        for c in graph.cnodes:
            if c.is_loss:
                of = {r.tangent: live[r.name] for r in binding.results if r.tangent is not None}
                for name in c.results:
                    drawn = torch.randn(of[name].shape, generator=generator, dtype=torch.float64)
                    tangents[name] = drawn.to(of[name].dtype)
                    live.put(name, tangents[name])
                continue
            if c.is_accumulate:
                into, part = c.call.refs()
                outputs: tuple[Tensor | None, ...] = (live[into] + live[part],)
            else:
                outputs = run_cnode(c, 1, live, token=None, device=CPU)
            for write, result in zip(c.writes, outputs, strict=True):
                if write is not None and result is not None:
                    live.put(write, result)
        return Reference(
            program,
            held,
            tangents,
            {name: live[name] for name in live if name not in held},
            tuple(live[r.name] for r in binding.results),
            {p.name: live[p.grad] for p in binding.params if p.grad is not None},
            {index: live[name] for index, name in binding.input_grads},
            {b.name: live[b.update] for b in binding.buffers if b.update is not None},
            env,
        )


def interpreted(ref: Reference) -> Interpreted:
    """The same step by the table of lowerings, with the random draws of the reference,
    compiled as one function."""
    held = {name: from_torch(t) for name, t in ref.held.items()}
    tangents = {name: from_torch(t) for name, t in ref.tangents.items()}
    key = jax.random.key(0)

    def step(held: Any, tangents: Any, draws: Draws) -> tuple[Any, ...]:
        outcome = interpret(
            ref.program, held, lambda results: tangents, draws=draws, key=key, env=ref.env
        )
        return tuple(getattr(outcome, field.name) for field in fields(outcome))

    return Interpreted(*jax.jit(step, compiler_options=plain_code())(held, tangents, ref.draws))
