"""A proven plan as the source of a JAX module, and as a file with its values beside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...backends.jax.check import check_expressible, check_remat3, check_x64, need_jax
from ...ir.diagnostics import Diagnostic, FBError
from ..files.files import STREAM, text_writer, write_together
from ..files.outputs import check_code, values_beside

if TYPE_CHECKING:
    from ...backends.jax.checkpoint.residuals import Residuals
    from ...backends.jax.emit.module import SourceOf
    from ...capture.lowered import Exported
    from ...ir.program import Program
    from ...ir.schedule import Schedule
    from ..files.files import FileRead
    from ..options import JaxStyle


def source_of_plan(program: Program, schedule: Schedule, style: JaxStyle = "explicit") -> str:
    """The JAX module of a plan that has been proven."""
    need_jax()
    schedule = schedule.elementary
    check_expressible(program, schedule)
    from ...backends.jax.kernels.agreement import require_shapes
    from ...backends.jax.lowerings import source_of

    require_shapes(program)

    if style == "explicit":
        from ...backends.jax.emit.module import emit

        return emit(program, schedule, source_of)
    return annotated_source(program, schedule, source_of, nearest=style != "annotated")


def annotated_source(
    program: Program, schedule: Schedule, source_of: SourceOf, *, nearest: bool
) -> str:
    """The annotated module of a plan, its residuals read back.

    FB0935 for a plan that `jax.checkpoint` cannot express, FB0936 where JAX would not keep
    what the plan names, FB0937 where `jax_remat3` is on. With `nearest`, names that JAX
    does not keep are left out of the plan.
    """
    from ...backends.jax.checkpoint.annotated import emit_form, fitting_form, names_of
    from ...backends.jax.checkpoint.residuals import check_residuals

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
    from ...backends.jax.checkpoint.residuals import residuals_of
    from ...backends.jax.runtime.example import example

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


def check_output(path: str | Path) -> None:
    """FB0707 where a module with a file beside it cannot be written to `path`."""
    if str(path) == STREAM or Path(path).suffix != ".py":
        message = f"a JAX module goes with a .npz file beside it, and {path} is no .py file"
        raise FBError(Diagnostic("FB0707", message, hint="give -o step.py"), usage=True)


def write_module(
    program: Program,
    schedule: Schedule,
    exported: Exported,
    path: str | Path,
    style: JaxStyle = "explicit",
    reads: Iterable[FileRead] = (),
) -> Path:
    """Writes the module and, beside it, the `.npz` file with what it is checked against.

    `schedule` has been proven. Both or neither; none of `reads` is overwritten. Returns the
    path of the second. The model is run once by PyTorch.
    """
    check_output(path)
    check_code(path, reads, has_values=True)
    source = source_of_plan(program, schedule, style)
    from ...backends.jax.runtime.arrays import write_npz
    from .reference import held_tensors, reference_step

    stored = reference_step(program, held_tensors(program, exported))
    values = values_beside(path)
    write_together({path: text_writer(source), values: partial(write_npz, stored=stored)})
    return values
