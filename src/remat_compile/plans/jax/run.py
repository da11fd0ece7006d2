"""One step of a plan in JAX: what XLA makes of it, and how far it is from PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ...backends.jax.emit.tables import SEED, needs_x64, tolerance
from ...backends.jax.kernels import Shapes, XlaPrice
from ...backends.jax.observe.compiled import ObservedStep, compiled_step, look
from ...backends.jax.observe.predict import predicted_temp_bytes
from ...backends.jax.runtime.arrays import Stored
from ...backends.jax.runtime.example import example
from ...backends.jax.runtime.step import JaxStep
from .reference import held_tensors, reference_step

if TYPE_CHECKING:
    from ...capture.lowered import Exported
    from ...ir.program import Program
    from ..plan import Plan


@dataclass(frozen=True)
class JaxReport:
    """Report on a plan under XLA. `difference` from PyTorch is a share of the largest gradient;
    None where there is no model to compare with."""

    observed: ObservedStep
    predicted_temp_bytes: int
    difference: float | None
    tolerance: float

    @property
    def is_sound(self) -> bool:
        equal = self.difference is None or self.difference <= self.tolerance
        return equal and not self.observed.defects()


def set_precision(program: Program) -> None:
    """Lets this process compute in float64 where the program does, and only then: random
    numbers depend on it too."""
    jax.config.update("jax_enable_x64", needs_x64(program))  # type: ignore[no-untyped-call]


def inspect_step(step: JaxStep, plan: Plan) -> ObservedStep:
    """Compiles the step at the sample and looks at the result."""
    return inspect_compiled(step, plan)[0]


def inspect_compiled(step: JaxStep, plan: Plan) -> tuple[ObservedStep, Callable[..., Any]]:
    """The same, and the compiled step itself, with the arguments of `step.generated`."""
    program, options = plan.program, step.compiler_options
    traced, compiled = compiled_step(step.generated, example(program), options)
    named = step.is_explicit
    return look(
        traced, compiled, program.graph, plan.schedule.elementary, options, named=named
    ), compiled


def compare(step: JaxStep, stored: Stored) -> float:
    """The largest difference of a gradient from the stored ones, as a share of the largest."""
    binding = step.program.binding
    run = jax.jit(step.generated, compiler_options=step.compiler_options)
    arrays = {
        kind: {name: jax.device_put(array) for name, array in values.items()}
        for kind, values in stored.items()
    }
    args = tuple(arrays["arg"][str(i)] for i in range(len(binding.arguments)))
    tangents = tuple(arrays["tangent"].get(str(i)) for i in range(len(binding.results)))
    random = any(c.token is not None for c in step.program.graph.cnodes)
    key = jax.random.key(SEED) if random else None
    with jax.default_matmul_precision("highest"):
        _, _, grads, inputs = run(arrays["param"], arrays["buffer"], args, key, tangents)
    pairs = [(grads[name], array) for name, array in stored["grad"].items()]
    pairs += [(inputs[int(i)], array) for i, array in stored["input_grad"].items()]
    wide = [(np.asarray(x, np.float64), np.asarray(y, np.float64)) for x, y in pairs]
    scale = max((np.abs(y).max(initial=0.0) for _, y in wide), default=0.0) or 1.0
    return float(max((np.abs(x - y).max(initial=0.0) for x, y in wide), default=0.0) / scale)


def run_step(plan: Plan, step: JaxStep, exported: Exported | None) -> JaxReport:
    """Looks at the compiled step, and compares one run with PyTorch where there is a model."""
    program = plan.program
    difference = None
    if exported is not None:
        values = held_tensors(program, exported)
        difference = compare(step, reference_step(program, values))
    return JaxReport(
        inspect_step(step, plan),
        predicted_temp_bytes(
            program, plan.schedule.elementary, figures=XlaPrice(Shapes(program)).figures()
        ),
        difference,
        tolerance(program),
    )
