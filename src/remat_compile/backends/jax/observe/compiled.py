"""The step that XLA compiles: bytes, products, names and placements.

A plan is a wish to XLA: it may merge equal computations and drop copies. So the compiled
step is looked at, and what does not follow the plan is told.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import jax
from jax.extend import core
from jax.interpreters import partial_eval

from ....ir.diagnostics import Diagnostic
from ....ir.graph import Graph
from ....ir.schedule import Offload, Prefetch, Schedule
from .absences import Absence, absences, planned_scopes
from .assignment import scratch_bytes

_ALL: frozenset[str] = frozenset()
_PRODUCTS = frozenset(("dot_general", "conv_general_dilated"))
_HLO_PRODUCT = re.compile(
    r"= \S+ (?:dot|convolution)\(|custom_call_target=\"(?:__onednn|__cublas|__cudnn)[^\"]*\""
)
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_SCOPE = re.compile(r"[\w.]+#\d+")
_PLACEMENT = "annotate_device_placement"


@dataclass(frozen=True)
class ObservedStep:
    """A compiled step beside its plan. Bytes are XLA's own figures.

    `scratch_bytes` says how much of the results' buffers holds temporary values too, which
    `temp_bytes` does not count. `planned_products` and `executed_products` count products
    and convolutions by the name of the execution (`F7#2`) before and after XLA's passes.
    `scopes` are the planned executions that there is anything to compute for, `missing`
    those of them that the compiled step has no trace of, and `absent` the other planned
    ones without a trace, with the reason. `placements` are counted in the lowering for CUDA.
    """

    temp_bytes: int
    scratch_bytes: int
    argument_bytes: int
    output_bytes: int
    planned_products: Mapping[str, int]
    executed_products: Mapping[str, int]
    vector_products: int
    scopes: tuple[str, ...]
    missing: tuple[str, ...]
    absent: Mapping[str, Absence]
    planned_placements: int
    placements: int
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def merged(self) -> tuple[str, ...]:
        """Executions whose products are not all there. XLA drops the names of some that it
        rewrites, so nothing is missed while there are as many as planned."""
        if sum(self.executed_products.values()) >= sum(self.planned_products.values()):
            return ()
        executed = self.executed_products
        return tuple(n for n, count in self.planned_products.items() if executed.get(n, 0) < count)

    def defects(self) -> list[Diagnostic]:
        """The parts of the plan that the compiled step lacks (FB0938)."""
        diagnostics = []
        again = (name for name in self.missing if not name.endswith("#1"))
        hint = "compile with compiler_options=" + repr(dict(self.options))
        if gone := list(dict.fromkeys((*self.merged, *again))):
            shown = ", ".join(gone[:8]) + (", ..." if len(gone) > 8 else "")
            message = f"XLA merged away {len(gone)} planned executions: {shown}"
            diagnostics.append(Diagnostic("FB0938", message, hint=hint))
        if self.placements != self.planned_placements:
            message = (
                f"{self.planned_placements} copies between device and host are planned, and "
                f"the lowering for CUDA has {self.placements}"
            )
            diagnostics.append(Diagnostic("FB0938", message, hint="jax_remat3 must be off"))
        return diagnostics


def compiled_step(
    step: Callable[..., Any], example: tuple[Any, ...], options: Mapping[str, str]
) -> tuple[Any, Any]:
    """JAX's trace of a step, and what XLA makes of it for this machine, ready to be called."""
    traced = jax.jit(step).trace(*example)
    return traced, traced.lower().compile(compiler_options=dict(options))


def look(
    traced: Any,
    compiled: Any,
    graph: Graph,
    schedule: Schedule,
    options: Mapping[str, str],
    *,
    named: bool,
) -> ObservedStep:
    """The result of `compiled_step`, beside the plan.

    `named` says that every execution has its name; of the annotated form's backward, which
    JAX derives, many have none.
    """
    text = compiled.as_text() or ""
    seen = {name for op_name in _OP_NAME.findall(text) for name in _SCOPE.findall(op_name)}
    alive_code = _needed(traced.jaxpr.jaxpr)
    needed = set(_work(alive_code))
    products, executed = Counter(_work(alive_code, _PRODUCTS)), Counter(_executed(text))
    absent: Mapping[str, Absence] = {}
    planned = planned_scopes(graph, schedule)
    if named:
        renamed = products if executed[""] else ()
        traced_names = set(_work(traced.jaxpr.jaxpr))
        absent = absences(graph, schedule, seen, traced_names, needed, renamed)
        scopes = tuple(name for name in planned if name not in absent)
    else:
        scopes = tuple(name for name in planned if name in needed)
    alive = set(scopes)
    memory = compiled.memory_analysis()
    copies = sum(isinstance(s, Offload | Prefetch) for s in schedule.steps)
    return ObservedStep(
        temp_bytes=memory.temp_size_in_bytes,
        scratch_bytes=scratch_bytes(memory.serialized_buffer_assignment_proto),
        argument_bytes=memory.argument_size_in_bytes,
        output_bytes=memory.output_size_in_bytes,
        planned_products={name: n for name, n in products.items() if name in alive},
        executed_products=dict(executed),
        vector_products=sum(map(_is_of_vectors, _equations(alive_code))),
        scopes=scopes,
        missing=tuple(name for name in scopes if name not in seen),
        absent=absent,
        planned_placements=copies,
        placements=_placements(traced) if copies else 0,
        options=dict(options),
    )


def _placements(traced: Any) -> int:
    text: str = traced.lower(lowering_platforms=("cuda",)).as_text()
    return text.count(f"@{_PLACEMENT}")


def _needed(jaxpr: core.Jaxpr) -> core.Jaxpr:
    """The program without what no result depends on: a lowering may need no more than the
    shape of what it reads. What goes through a barrier is needed if it is read after it; to JAX
    all is, to XLA not."""
    eqns = [part for eqn in jaxpr.eqns for part in _one_by_one(eqn)]
    apart = jaxpr.replace(eqns=eqns)  # type: ignore[no-untyped-call]
    live, _ = partial_eval.dce_jaxpr(apart, [True] * len(jaxpr.outvars))
    return live


def _one_by_one(eqn: core.JaxprEqn) -> Iterator[core.JaxprEqn]:
    """A barrier as one for each value that goes through it; what else there is as it is."""
    if eqn.primitive.name != "optimization_barrier":
        yield eqn
        return
    for given, made in zip(eqn.invars, eqn.outvars, strict=True):
        yield eqn.replace(invars=[given], outvars=[made])


def _equations(jaxpr: core.Jaxpr) -> Iterator[core.JaxprEqn]:
    """The primitives of a program, those of its inner programs included."""
    return (eqn for eqn, _ in _located(jaxpr, ""))


def _located(jaxpr: core.Jaxpr, outer: str) -> Iterator[tuple[core.JaxprEqn, str]]:
    for eqn in jaxpr.eqns:
        stack = f"{outer}/{eqn.source_info.name_stack}"
        yield eqn, stack
        for value in eqn.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(part, "jaxpr", part)
                if isinstance(inner, core.Jaxpr):
                    yield from _located(inner, stack)


def _work(jaxpr: core.Jaxpr, only: frozenset[str] = _ALL) -> Iterator[str]:
    """The name of the execution that each primitive of a program belongs to."""
    for eqn, stack in _located(jaxpr, ""):
        if not only or (eqn.primitive.name in only and not _is_of_vectors(eqn)):
            yield _innermost(stack)


def _is_of_vectors(eqn: core.JaxprEqn) -> bool:
    """True if XLA does not treat a product as one: by a vector, or of an outer dimension of one."""
    if eqn.primitive.name != "dot_general":
        return False
    left, right = (getattr(v.aval, "shape", ()) for v in eqn.invars)
    (over, over_right), (batch, batch_right) = eqn.params["dimension_numbers"]
    rows = prod(n for i, n in enumerate(left) if i not in (*over, *batch))
    columns = prod(n for i, n in enumerate(right) if i not in (*over_right, *batch_right))
    return bool(min(rows, columns, prod(left[i] for i in over)) <= 1)


def _executed(text: str) -> Iterator[str]:
    """The same for the lines of a compiled program."""
    for line in text.splitlines():
        if _HLO_PRODUCT.search(line):
            name = _OP_NAME.search(line)
            yield _innermost(name[1] if name else "")


def _innermost(stack: str) -> str:
    scopes = _SCOPE.findall(stack)
    return scopes[-1] if scopes else ""
