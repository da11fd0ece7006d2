"""Runs the graph of a program with the table of lowerings, without any plan.

A reference for tests and for whoever wants the step as one JAX function: it is pure, so
it can be traced by `jax.jit` at each shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax import Array

from ....ir.analysis.regions import RegionFunction, region_function
from ....ir.graph import Call, CNode, View
from ....ir.program import Program
from ..arguments import to_jax
from ..honoured import honoured
from ..lowerings import is_random, table
from ..support import require_lowerings

Loss = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""From the model's results by name (aNode or view) to the tangents by aNode name."""

Draws = Mapping[str, tuple[Array | None, ...]]
"""Results of random cNodes, by the name of the cNode, in place of drawing them."""


def apply(call: Call, env: Mapping[str, int], reads: Mapping[str, Array], **extra: Array) -> Any:
    """The results of the operator's lowering; `extra` is the key of a random one."""
    call = honoured(call)
    args = (to_jax(arg, env, reads) for arg in call.args)
    kwargs = {name: to_jax(arg, env, reads) for name, arg in call.kwargs}
    return table()[call.op](*args, **kwargs, **extra)


def as_tuple(results: Any) -> tuple[Any, ...]:
    """The results of `apply`, one for each that the operator writes."""
    return results if isinstance(results, tuple) else (results,)


def as_function(
    function: RegionFunction, env: Mapping[str, int]
) -> Callable[..., tuple[Array, ...]]:
    """A region as a function of arrays that runs its calls."""

    def run(*args: Array) -> tuple[Array, ...]:
        values: dict[str, Any] = dict(zip(function.parameters, args, strict=True))
        for inner in function.calls:
            made = apply(inner.call, env, values)
            several = as_tuple(made) if inner.index is None else (made[inner.index],)
            pairs = zip(inner.writes, several, strict=True)
            values.update({name: one for name, one in pairs if name is not None})
        return tuple(values[name] for name in function.results)

    return run


@dataclass(frozen=True)
class Interpreted:
    """Results in the binding's order, gradients by parameter aNode and by argument, the
    new contents of buffers by buffer aNode, and the value of every aNode."""

    results: tuple[Array, ...]
    param_grads: Mapping[str, Array]
    input_grads: Mapping[int, Array]
    buffers: Mapping[str, Array]
    values: Mapping[str, Array]


def interpret(
    program: Program,
    values: Mapping[str, Array],
    loss: Loss,
    *,
    key: Array | None = None,
    draws: Draws | None = None,
    env: Mapping[str, int] | None = None,
) -> Interpreted:
    """One step: every cNode once, in the order of capture.

    `values` holds an array for each aNode that the caller holds; `loss` gives the
    tangents; `env` binds the symbols (the sample by default). Each random cNode draws
    with a key of its own, folded from `key` and its position, unless `draws` has its
    results. Raises FBError as `require_lowerings` does.
    """
    require_lowerings(program.graph)
    run = _Interpreter(
        program, dict(values), program.sample if env is None else env, key, draws or {}
    )
    for index, c in enumerate(program.graph.cnodes):
        if c.is_loss:
            results = {r.name: run.read(r.name) for r in program.binding.results}
            run.live.update(loss(results))
        else:
            run.compute(index, c)
    return run.finish()


class _Interpreter:
    """The state of one `interpret`."""

    def __init__(
        self,
        program: Program,
        live: dict[str, Array],
        env: Mapping[str, int],
        key: Array | None,
        draws: Draws,
    ):
        self.program = program
        self.live = live
        self.env = env
        self.key = key
        self.draws = draws

    def read(self, name: str) -> Array:
        """An aNode or view. A view is derived once: no instance here is ever replaced."""
        if name not in self.live:
            view = self.program.graph.view[name]
            self.live[name] = self._derive(view)
        return self.live[name]

    def _derive(self, view: View) -> Array:
        result = self._call(view.call)
        array: Array = result if view.index is None else result[view.index]
        return array

    def _call(self, call: Call, **extra: Any) -> Any:
        reads = {name: self.read(name) for name in call.refs()}
        return apply(call, self.env, reads, **extra)

    def compute(self, index: int, c: CNode) -> None:
        if c.is_accumulate:
            into, part = c.call.refs()
            self.live[c.results[0]] = self.read(into) + self.read(part)
            return
        if c.is_fused:
            region = as_function(region_function(c), self.env)
            made = region(*(self.read(name) for name in c.call.refs()))
            self.live.update(zip(c.results, made, strict=True))
            return
        if c.name in self.draws:
            results: Any = self.draws[c.name]
        elif is_random(c.call.op):
            assert self.key is not None, f"{c.name} draws random numbers: give a key"
            results = self._call(c.call, key=jax.random.fold_in(self.key, index))
        else:
            results = self._call(c.call)
        for name, result in zip(c.writes, as_tuple(results), strict=True):
            if name is not None:
                self.live[name] = result

    def finish(self) -> Interpreted:
        binding = self.program.binding
        return Interpreted(
            tuple(self.read(result.name) for result in binding.results),
            {p.name: self.read(p.grad) for p in binding.params if p.grad is not None},
            {index: self.read(name) for index, name in binding.input_grads},
            {b.name: self.read(b.update) for b in binding.buffers if b.update is not None},
            self.live,
        )
