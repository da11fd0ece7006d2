"""Checks a plan before code is generated for JAX; reports every problem at once."""

from __future__ import annotations

from importlib import import_module

from ...ir.diagnostics import Diagnostic, FBError, fail
from ...ir.program import Program
from ...ir.schedule import Compute, Free, HostFree, Offload, Prefetch, Schedule, Wait
from ...ir.span import Span
from ...ir.wording import worded
from .emit.tables import needs_x64

OLDEST = (0, 10)
"""The oldest JAX whose memory spaces and compiler options the generated code can use."""


def need_jax() -> None:
    """FB0931 where JAX is missing or older than 0.10."""
    hint = 'pip install "remat-compile[jax]"'
    try:
        jax = import_module("jax")
    except ImportError as error:
        message = f"this needs JAX, which cannot be imported ({error})"
        fail("FB0931", message, hint=hint)
    if tuple(jax.__version_info__[:2]) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        message = f"JAX {jax.__version__} is too old; this needs {oldest} or newer"
        fail("FB0931", message, hint=hint)


def check_x64(program: Program) -> None:
    """FB0932 where a program in float64 would be run by a JAX that computes in float32."""
    jax = import_module("jax")
    if not needs_x64(program) or jax.config.jax_enable_x64:
        return
    message = "the model computes in float64, and JAX would compute in float32"
    hint = 'call jax.config.update("jax_enable_x64", True) before anything else of JAX'
    fail("FB0932", message, hint=hint)


def check_remat3() -> None:
    """FB0937 where `jax_remat3` is on: offload policies of jax.checkpoint mean nothing then."""
    jax = import_module("jax")
    if getattr(jax.config, "jax_remat3", False):
        message = "jax_remat3 is on, and jax.checkpoint ignores what is to be offloaded"
        hint = worded(
            'call jax.config.update("jax_remat3", False), or use {jax_style}', jax_style="explicit"
        )
        fail("FB0937", message, hint=hint)


def check_expressible(program: Program, schedule: Schedule) -> None:
    """FB0920 with every operator that has no lowering, FB0933 with every step that JAX
    cannot express; all of them at once."""
    from .support import require_lowerings

    graph = program.graph
    diagnostics: list[Diagnostic] = []
    try:
        require_lowerings(graph)
    except FBError as error:
        diagnostics += error.diagnostics
    known = (Compute, Free, Offload, Prefetch, Wait, HostFree)
    for step in schedule.steps:
        if not isinstance(step, known):
            what = type(step).__name__.lower()
            diagnostics.append(_inexpressible(f"the step `{what}`", step.span))
        elif isinstance(step, Compute) and graph.cnode[step.cnode].phase == "opt":
            diagnostics.append(
                _inexpressible(f"{step.cnode}, an update of the optimizer", step.span)
            )
    if diagnostics:
        raise FBError(diagnostics)


def _inexpressible(what: str, span: Span | None) -> Diagnostic:
    hint = "plan without updates by the optimizer, and let optax update the parameters"
    return Diagnostic("FB0933", f"{what} cannot be expressed in JAX", span, hint=hint)
