"""Regions as functions: what two fused cNodes share when they differ in names only.

%dw = fused(%dy, %x) { %t = neg(%x); %dw = mul(%dy, %t) }
    is (a0, a1) -> t0 = neg(a1); t1 = mul(a0, t0); t1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..graph import Arg, Call, CNode, InnerCall, Ref

ROUNDING: Mapping[str, float] = {"f64": 1e-12, "f32": 1e-5, "f16": 2e-3, "bf16": 2e-2}
"""By type: the difference between a region as a kernel and its calls, over the largest value of a
tensor, that is taken for rounding."""


@dataclass(frozen=True, slots=True)
class RegionFunction:
    """Parameters `a0 a1 …`, calls that write `t0 t1 …`, and the names returned."""

    parameters: tuple[str, ...]
    calls: tuple[InnerCall, ...]
    results: tuple[str, ...]


def region_function(c: CNode) -> RegionFunction:
    """The function that a fused cNode applies to its arguments, names of the graph left out."""
    given = [arg.name for arg in c.call.args if isinstance(arg, Ref)]
    names = {name: f"a{index}" for index, name in enumerate(given)}
    parameters = tuple(names.values())
    for inner in c.call.region:
        for name in inner.writes:
            if name is not None:
                names[name] = f"t{len(names) - len(given)}"
    calls = tuple(
        InnerCall(
            tuple(None if name is None else names[name] for name in inner.writes),
            renamed_call(inner.call, names),
            inner.index,
        )
        for inner in c.call.region
    )
    return RegionFunction(parameters, calls, tuple(names[name] for name in c.results))


def renamed_call(call: Call, names: Mapping[str, str]) -> Call:
    """The call with other names for what it reads; a region inside keeps its own."""
    kwargs = tuple((key, _renamed(arg, names)) for key, arg in call.kwargs)
    return replace(call, args=tuple(_renamed(a, names) for a in call.args), kwargs=kwargs)


def renamed(c: CNode, names: Mapping[str, str]) -> CNode:
    """The cNode with other names for what it reads and writes, in its region as well; none of
    the new ones may be a name inside."""

    def given(writes: tuple[str | None, ...]) -> tuple[str | None, ...]:
        return tuple(None if name is None else names.get(name, name) for name in writes)

    region = tuple(
        replace(inner, writes=given(inner.writes), call=renamed_call(inner.call, names))
        for inner in c.call.region
    )
    call = replace(renamed_call(c.call, names), region=region)
    return replace(c, writes=given(c.writes), call=call)


def _renamed(arg: Arg, names: Mapping[str, str]) -> Arg:
    match arg:
        case Ref(name):
            return Ref(names.get(name, name))
        case tuple():
            return tuple(_renamed(part, names) for part in arg)
        case _:
            return arg
