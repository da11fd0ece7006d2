"""Checks that the computations of a plan give the declared values in JAX.

A plan can be edited by hand. What PyTorch refuses when a computation runs (a scalar that is a text,
an axis that there is not) JAX refuses in its own words when it traces the step, and an array of
another shape than the plan's would be counted with the wrong bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax

from ....ir.analysis.regions import region_function
from ....ir.diagnostics import Diagnostic, FBError
from ....ir.graph import CNode
from ....ir.program import Program
from ....ir.semantics.simulate import KEPT_KINDS
from ..emit.tables import needs_x64
from ..runtime.interpret import as_function
from .price import alone
from .shapes import Shapes

_HINT = "correct the call in the text, or plan the model again"
_LONGEST = 200
"""Characters of a message of JAX."""


def require_shapes(program: Program) -> None:
    """FB0733 for each computation that JAX cannot trace at the program's sample sizes, and for
    each result that it gives in another shape than the plan's, and that is read. Random ones and
    replay forms are not traced. Every operator has a lowering (`require_lowerings`)."""
    walk = _Agreement(program)
    with jax.enable_x64(needs_x64(program)):
        diagnostics = [d for c in program.graph.cnodes for d in walk.problems(c)]
    if diagnostics:
        raise FBError(diagnostics)


class _Agreement:
    """Traces each function with the same arguments once."""

    def __init__(self, program: Program):
        self._shapes = Shapes(program)
        self._env = program.sample
        self._made: dict[str, tuple[Any, ...]] = {}
        graph = program.graph
        reads = {name for c in graph.cnodes for name in graph.reads(c)}
        self._read = reads | {a.name for a in graph.anodes if a.kind in KEPT_KINDS}

    def problems(self, c: CNode) -> Iterator[Diagnostic]:
        if c.is_loss or c.is_accumulate or c.token is not None:
            return
        region = c if c.is_fused else alone(c)
        try:
            made = self._traced(region, [self._shapes.of(name) for name in region.call.refs()])
        except FBError:
            raise
        except Exception as error:  # whatever a lowering, or JAX, thinks of its arguments
            what = " ".join(str(error).split())[:_LONGEST]
            message = f"JAX cannot compute {c.name}: {type(error).__name__}: {what}"
            yield Diagnostic("FB0733", message, c.span, hint=_HINT)
            return
        for name, one in zip(region.results, made, strict=True):
            planned = self._shapes.of(name).shape
            if one is not None and name in self._read and tuple(one.shape) != planned:
                shown, expected = (_shown(shape) for shape in (one.shape, planned))
                message = f"{c.name} gives %{name} as {shown} in JAX, and the plan has {expected}"
                yield Diagnostic("FB0733", message, c.span, hint=_HINT)

    def _traced(self, region: CNode, given: Sequence[jax.ShapeDtypeStruct]) -> tuple[Any, ...]:
        function = region_function(region)
        key = repr((function, given))
        if key not in self._made:
            self._made[key] = jax.eval_shape(as_function(function, self._env), *given)
        return self._made[key]


def _shown(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"
