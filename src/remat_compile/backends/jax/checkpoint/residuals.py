"""The residuals of a function: values that JAX keeps between forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import core

from ....ir.diagnostics import Diagnostic, FBError
from ....ir.wording import worded

_PASS_ON = frozenset(("reduce_precision", "device_put", "optimization_barrier"))


@dataclass(frozen=True)
class Residuals:
    """Names given by `checkpoint_name`, those of them that are kept on the host, and the
    other arrays that no argument is."""

    names: frozenset[str]
    offloaded: frozenset[str]
    unnamed: tuple[str, ...]


def residuals_of(
    function: Callable[..., Any], primals: tuple[Any, ...], others: tuple[Any, ...] = ()
) -> Residuals:
    """Traces the vjp of `function(*primals, *others) -> (outputs, aux)` by its primals.

    Arguments may be abstract.
    """

    def run(primals: Any, others: Any) -> Any:
        return jax.vjp(lambda *p: function(*p, *others), *primals, has_aux=True)[1]

    jaxpr = jax.make_jaxpr(run)(primals, others).jaxpr
    inputs = set(jaxpr.invars)
    names: set[str] = set()
    device: set[str] = set()
    unnamed = []
    for var in jaxpr.outvars:
        if isinstance(var, core.Literal) or var in inputs:
            continue
        if (name := _name_of(jaxpr, var)) is None:
            unnamed.append(str(var.aval))
            continue
        names.add(name)
        if getattr(var.aval, "memory_space", None) != jax.memory.Space.Host:
            device.add(name)
    return Residuals(frozenset(names), frozenset(names - device), tuple(unnamed))


def _name_of(jaxpr: core.Jaxpr, var: Any) -> str | None:
    """The name of a variable, or of what it is a mere copy of."""
    for eqn in reversed(jaxpr.eqns):
        if var not in eqn.outvars:
            continue
        if eqn.primitive.name == "name":
            return str(eqn.params["name"])
        index = eqn.outvars.index(var)
        if eqn.primitive.name in _PASS_ON:
            source = eqn.invars[index]
            return None if isinstance(source, core.Literal) else _name_of(jaxpr, source)
        for inner in _inner(eqn):
            if len(inner.outvars) == len(eqn.outvars):
                return _name_of(inner, inner.outvars[index])
        return None
    return None


def _inner(eqn: core.JaxprEqn) -> Iterator[core.Jaxpr]:
    for value in eqn.params.values():
        inner = getattr(value, "jaxpr", value)
        if isinstance(inner, core.Jaxpr):
            yield inner


def check_residuals(residuals: Residuals, kept: frozenset[str], offloaded: frozenset[str]) -> None:
    """FB0936 where JAX keeps something else than what the plan names, or elsewhere."""
    planned = kept | offloaded
    problems = []
    if wrong := sorted((offloaded ^ residuals.offloaded) & planned & residuals.names):
        listed = ", ".join(f"%{name}" for name in wrong)
        message = f"JAX keeps {listed} on the other side than the plan: device, not host"
        problems.append(
            Diagnostic("FB0936", message, hint=worded("use {jax_style}", jax_style="explicit"))
        )
    if ignored := sorted(planned - residuals.names):
        listed = ", ".join(f"%{name}" for name in ignored)
        message = f"JAX does not keep {listed}: its derivatives do not read these values"
        hint = worded("plan without keeping them, or use {jax_style}", jax_style="explicit")
        problems.append(Diagnostic("FB0936", message, hint=hint))
    if more := sorted(residuals.names - planned):
        listed = ", ".join(f"%{name}" for name in more)
        problems.append(Diagnostic("FB0936", f"JAX also keeps {listed}, which the plan does not"))
    if problems:
        raise FBError(problems)
