"""Checks the arguments of a JAX step; reports every problem at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import dtypes

from ....ir.diagnostics import Diagnostic, FBError, nearest
from ....ir.expr import evaluate
from ..arguments import jax_dtype

if TYPE_CHECKING:
    from ....ir.graph import ANode
    from ....ir.program import Program


def check_call(
    program: Program,
    params: Mapping[str, Any],
    inputs: Sequence[Any],
    buffers: Mapping[str, Any] | None,
    key: Any,
) -> None:
    """FB0934 for parameters, buffers or inputs of other names, shapes or dtypes than the
    plan's, FB0939 where a key or buffers are missing."""
    binding, graph = program.binding, program.graph
    diagnostics: list[Diagnostic] = []
    env = _sizes(program, inputs, diagnostics)
    wanted = {p.names[0]: graph.anode[p.name] for p in binding.params}
    ties = {tie: p.names[0] for p in binding.params for tie in p.names[1:]}
    diagnostics += _compare("parameter", wanted, params, env, ties)
    if buffers is not None:
        held = {b.names[0]: graph.anode[b.name] for b in binding.buffers}
        ties = {tie: b.names[0] for b in binding.buffers for tie in b.names[1:]}
        diagnostics += _compare("buffer", held, buffers, env, ties)
    elif binding.buffers:
        hint = "pass buffers={name: array}; a plan made in this process has them in step.buffers"
        diagnostics.append(
            Diagnostic("FB0939", "the model has buffers and none are given", hint=hint)
        )
    arguments = {a.path: graph.anode[a.name] for a in binding.arguments}
    if len(inputs) == len(arguments):
        diagnostics += _compare(
            "input", arguments, dict(zip(arguments, inputs, strict=True)), env, {}
        )
    if key is None and any(c.token is not None for c in graph.cnodes):
        hint = "pass key=jax.random.key(seed), another one in each step"
        diagnostics.append(
            Diagnostic("FB0939", "the model draws random numbers: no key", hint=hint)
        )
    if diagnostics:
        raise FBError(diagnostics)


def _sizes(
    program: Program, inputs: Sequence[Any], diagnostics: list[Diagnostic]
) -> dict[str, int]:
    """The symbols as the inputs have them, each within its range."""
    arguments = program.binding.arguments
    if len(inputs) != len(arguments):
        paths = ", ".join(a.path for a in arguments) or "none"
        message = f"{len(inputs)} inputs for {len(arguments)}: {paths}"
        diagnostics.append(Diagnostic("FB0934", message, hint="pass all of them, in this order"))
        return program.sample
    env = program.sample
    for symbol in program.symbols:
        shape = jnp.shape(inputs[symbol.argument])
        if symbol.dim >= len(shape):
            continue
        env[symbol.name] = size = shape[symbol.dim]
        if not symbol.low <= size <= symbol.high:
            path = arguments[symbol.argument].path
            message = f"dimension {symbol.dim} of {path} is {size}, and the plan is for "
            message += f"{symbol.low} to {symbol.high}"
            diagnostics.append(Diagnostic("FB0934", message, hint="plan again for this size"))
    return env


def _compare(
    what: str,
    wanted: Mapping[str, ANode],
    given: Mapping[str, Any],
    env: Mapping[str, int],
    ties: Mapping[str, str],
) -> Iterable[Diagnostic]:
    for name in given:
        if name in ties:
            hint = f"it is tied to {ties[name]}: leave it out"
            yield Diagnostic("FB0934", f"{what} {name} is given twice", hint=hint)
        elif name not in wanted:
            yield Diagnostic("FB0934", f"the model has no {what} {name}.{nearest(name, wanted)}")
    for name, node in wanted.items():
        if name not in given:
            yield Diagnostic("FB0934", f"no {what} {name} is given")
            continue
        shape = tuple(evaluate(extent, env) for extent in node.shape)
        dtype = dtypes.canonicalize_dtype(jax_dtype(node.dtype))
        array = given[name]
        now = dtypes.canonicalize_dtype(jnp.result_type(array))
        if jnp.shape(array) != shape or now != dtype:
            shown = f"{now}{list(jnp.shape(array))}"
            message = f"{what} {name} is {shown}; the plan is for {dtype}{list(shape)}"
            yield Diagnostic("FB0934", message, hint="plan again for these arrays")
