"""A plan as a function of JAX: `(params, *inputs) -> (outputs, grads)`."""

from __future__ import annotations

import linecache
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
from jax import Array

from ....ir.diagnostics import fail
from ...python.quote import comment
from ..check import check_x64
from .guards import check_call

if TYPE_CHECKING:
    from ....ir.program import Program

Arrays = Mapping[str, Any]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class JaxStepResult:
    """One whole step. `outputs` is an array where the model returns one, else a tuple;
    `grads` by parameter name; `buffers` all of them, updated; `input_grads` by argument."""

    outputs: Any
    grads: dict[str, Array | None]
    buffers: dict[str, Array]
    input_grads: tuple[Array | None, ...]


class JaxStep:
    """One planned training step: pure, to be transformed and compiled like any function.

    `step(params, *inputs)` gives `(outputs, grads)`. `params` has the model's parameters
    by name, each tied one under its first name. `buffers` and `key` are keywords: buffers
    default to the model's own at the time of the plan; `key` is needed where the model
    draws random numbers. `tangents` belong to the outputs; a scalar needs none, nor does a
    step with a `loss`, a function of the outputs. Compile it with

        jax.jit(step, compiler_options=step.compiler_options)

    or XLA will not follow the plan. `step.source` is the generated module, and
    `step.generated` its own function over all that it needs. `step.params` and
    `step.buffers` are the values of the model that was planned in this process; None for
    a plan from a file.
    """

    def __init__(
        self,
        program: Program,
        source: str,
        params: Arrays | None,
        buffers: Arrays | None,
        loss: Callable[[Any], Array] | None,
    ):
        check_x64(program)
        self.program = program
        self.source = source
        self.params = params
        self.buffers = buffers
        self._loss = loss
        space = _load(source, program.graph.name)
        self.generated: Callable[..., Any] = space["step"]
        self.is_explicit = "backward" in space
        self._model = space["model"]
        self._compiler_options: dict[str, str] = space["compiler_options"]()
        self._is_to_warn = True

    @property
    def compiler_options(self) -> dict[str, str]:
        """The options of `jax.jit` with which XLA follows the plan."""
        self._is_to_warn = False
        return self._compiler_options

    def _warn_without_options(self, params: Arrays) -> None:
        """Once, where the step is traced and nobody has asked for its compiler options."""
        if not self._is_to_warn:
            return
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(params)):
            self._is_to_warn = False
            message = (
                "remat-compile: XLA will not follow the plan without its compiler options: "
                "jax.jit(step, compiler_options=step.compiler_options)"
            )
            warnings.warn(message, stacklevel=4)

    def __call__(
        self,
        params: Arrays,
        *inputs: Any,
        buffers: Arrays | None = None,
        key: Array | None = None,
        tangents: Any = None,
    ) -> tuple[Any, dict[str, Array | None]]:
        """Outputs and gradients by parameter name. FB0934 for other arrays than planned for."""
        done = self.full(params, *inputs, buffers=buffers, key=key, tangents=tangents)
        return done.outputs, done.grads

    def full(
        self,
        params: Arrays,
        *inputs: Any,
        buffers: Arrays | None = None,
        key: Array | None = None,
        tangents: Any = None,
    ) -> JaxStepResult:
        """The same with the new contents of buffers and the gradients of inputs."""
        held = self._held(params, inputs, buffers, key)
        if tangents is None and self._loss is not None:
            tangents = self._tangents
        elif tangents is None:
            self._check_scalar()
        elif not isinstance(tangents, tuple):
            tangents = (tangents,)
        outputs, new, grads, input_grads = self.generated(params, held, inputs, key, tangents)
        return JaxStepResult(_alone(outputs), grads, {**held, **new}, input_grads)

    def apply(
        self,
        params: Arrays,
        *inputs: Any,
        buffers: Arrays | None = None,
        key: Array | None = None,
    ) -> Any:
        """The outputs alone, to be differentiated: the backward is the planned one."""
        held = self._held(params, inputs, buffers, key)
        return _alone(self._model(params, held, inputs, key)[0])

    def _held(
        self, params: Arrays, inputs: tuple[Any, ...], buffers: Arrays | None, key: Array | None
    ) -> dict[str, Any]:
        self._warn_without_options(params)
        given = self.buffers if buffers is None else buffers
        check_call(self.program, params, inputs, given, key)
        return dict(given or {})

    def _tangents(self, outputs: tuple[Array, ...]) -> tuple[Array, ...]:
        assert self._loss is not None
        loss = self._loss
        made: tuple[Array, ...] = jax.grad(lambda o: loss(_alone(o)), allow_int=True)(outputs)
        return made

    def _check_scalar(self) -> None:
        graph, results = self.program.graph, self.program.binding.results
        name = results[0].name
        if len(results) == 1 and name in graph.anode and graph.anode[name].shape == ():
            return
        message = f"the model returns {len(results)} outputs, and there is no loss of them"
        if len(results) == 1:
            message = "the model's output is no scalar, and there is no loss of it"
        hint = "give jax_step(plan, loss=function), or tangents="
        fail("FB0939", message, hint=hint)


def _alone(outputs: tuple[Any, ...]) -> Any:
    return outputs[0] if len(outputs) == 1 else outputs


def _load(source: str, name: str) -> dict[str, Any]:
    """Runs the generated module; tracebacks and debuggers show its lines."""
    file = comment(f"<remat-compile {name} for JAX>")
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    space: dict[str, Any] = {"__name__": file}
    exec(compile(source, file, "exec"), space)
    return space
