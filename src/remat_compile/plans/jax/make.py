"""`remat_compile.jax_step`: loads JAX only when it is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...backends.jax.check import check_x64, need_jax
from ...ir.diagnostics import Diagnostic, FBError
from ...ir.program import Program
from ..options import JaxStyle, named_keywords
from ..request import check_choice

if TYPE_CHECKING:
    from ...backends.jax.runtime.step import JaxStep
    from ..plan import Plan


@named_keywords()
def jax_step(
    plan: Plan | Program,
    *,
    loss: Callable[[Any], Any] | None = None,
    style: JaxStyle = "explicit",
) -> JaxStep:
    """A plan as a function of JAX, `(params, *inputs) -> (outputs, grads)`; see `JaxStep`.

    Of a program its last schedule is taken. The plan is proven first. `loss` maps the
    outputs to a scalar where the model returns none. FB0931 where JAX is missing, FB0932
    for float64 without `jax_enable_x64`, FB0920 and FB0933 for what JAX cannot express.
    """
    from ..files.look import pick_schedule
    from ..plan import Plan

    check_choice("style", style, JaxStyle)
    need_jax()
    if isinstance(plan, Program):
        plan = Plan(plan, pick_schedule(plan))
    elif not isinstance(plan, Plan):
        message = f"a {type(plan).__name__} is no plan"
        hint = "pass what remat_compile.plan or remat_compile.load gives"
        raise FBError(Diagnostic("FB0706", message, hint=hint), usage=True)
    check_x64(plan.program)
    from ...backends.jax.runtime.step import JaxStep
    from .source import source_of_plan

    plan = plan.trusted()
    source = source_of_plan(plan.program, plan.schedule, style)
    params = buffers = None
    binding = plan.program.binding
    if plan._exported is not None:
        from jax import device_put  # `jnp.asarray` would compile a copy for each shape

        from ...backends.jax.runtime.arrays import to_numpy
        from .reference import held_tensors

        held = held_tensors(plan.program, plan._exported)
        params = {p.names[0]: device_put(to_numpy(held[p.name])) for p in binding.params}
        buffers = {b.names[0]: device_put(to_numpy(held[b.name])) for b in binding.buffers}
    elif not binding.buffers:
        buffers = {}
    return JaxStep(plan.program, source, params, buffers, loss)
