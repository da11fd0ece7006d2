"""Annotated emission, checked: JAX keeps what the plan names, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...backends.jax.check import check_remat3, check_x64
from ...backends.jax.checkpoint.annotated import emit_form, fitting_form, names_of
from ...backends.jax.checkpoint.residuals import Residuals, check_residuals, residuals_of
from ...backends.jax.runtime.example import example

if TYPE_CHECKING:
    from ...backends.jax.emit.module import SourceOf
    from ...ir.program import Program
    from ...ir.schedule import Schedule


def annotated_source(
    program: Program, schedule: Schedule, source_of: SourceOf, *, nearest: bool
) -> str:
    """The annotated module of a plan, its residuals read back.

    FB0935 for a plan that `jax.checkpoint` cannot express, FB0936 where JAX would not keep
    what the plan names, FB0937 where `jax_remat3` is on. With `nearest`, names that JAX
    does not keep are left out of the plan.
    """
    check_remat3()
    check_x64(program)
    form = fitting_form(program, schedule, nearest=nearest)
    source = emit_form(program, schedule, form, source_of)
    residuals = residuals_of_source(program, source)
    kept, offloaded = names_of(program, form)
    if nearest and (ignored := {*kept, *offloaded} - residuals.names):
        form = replace(form, kept=form.kept - ignored, offloaded=form.offloaded - ignored)
        source = emit_form(program, schedule, form, source_of)
        residuals = residuals_of_source(program, source)
        kept, offloaded = names_of(program, form)
    check_residuals(residuals, frozenset(kept), frozenset(offloaded))
    return source


def residuals_of_source(program: Program, source: str) -> Residuals:
    """Return what JAX keeps between the forward and the backward of a generated `model`."""
    space: dict[str, Any] = {"__name__": "residuals"}
    exec(compile(source, "<residuals>", "exec"), space)
    model = space["model"]
    params, buffers, args, key, _ = example(program)
    places = [i for i, _ in program.binding.input_grads]

    def run(params: Any, inputs: Any, buffers: Any, args: Any, key: Any) -> Any:
        given = dict(zip(places, inputs, strict=True))
        whole = tuple(given.get(i, x) for i, x in enumerate(args))
        return model(params, buffers, whole, key)

    return residuals_of(run, (params, tuple(args[i] for i in places)), (buffers, args, key))
