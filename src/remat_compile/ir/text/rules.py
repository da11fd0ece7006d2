"""From the rules of `fbir.lark` to the data model: one method per rule.

The parser calls a method with the list of what the rule's parts gave: tokens, or what
their own methods returned; `None` stands for an optional part that is absent.
"""

from __future__ import annotations

from typing import Any, cast

from ..graph import Graph
from ..program import (
    Argument,
    Binding,
    Budget,
    BufferBinding,
    Certificate,
    Header,
    ParamBinding,
    Program,
    Proven,
    Result,
    Symbol,
    Target,
)
from ..schedule import Compute, Free, HostFree, Offload, Prefetch, Schedule, Wait
from .rules_calls import CallRules, ExpressionRules
from .rules_graph import GraphRules
from .tokens import (
    amount_of,
    duration_of,
    integer,
    name_of,
    once,
    span_of,
    string,
    title,
    word,
)

__all__ = ["Builder"]


class _Fields(dict[str, Any]):
    """Fields of the header that one line gave."""


class _Frame:
    """Rules of what stands before the graph."""

    def version(self, c: list[Any]) -> int:
        return int(c[0])

    def device(self, c: list[Any]) -> tuple[str, Any, str]:
        return "device", c[0], word(c[0])

    def threads(self, c: list[Any]) -> tuple[str, Any, int]:
        return "threads", c[0], integer(c[0])

    def torch(self, c: list[Any]) -> tuple[str, Any, str]:
        return "torch", c[0], string(c[0])

    def costs(self, c: list[Any]) -> tuple[str, Any, str]:
        return "costs", c[0], str(c[0])

    def replays(self, c: list[Any]) -> tuple[str, Any, str]:
        return "replays", c[0], str(c[0])

    def captured(self, c: list[Any]) -> _Fields:
        given = once(c, "in this line")
        if "torch" in given:
            given["torch_version"] = given.pop("torch")
        return _Fields(given)

    def source(self, c: list[Any]) -> _Fields:
        sha256 = None if c[1] is None else string(c[1])
        return _Fields({"source": string(c[0]), "sha256": sha256})

    def source_hash(self, c: list[Any]) -> _Fields:
        return _Fields({"sha256": string(c[0])})

    def sym(self, c: list[Any]) -> Symbol:
        low, high, sample, argument, dim = map(integer, c[1:])
        return Symbol(str(c[0]), low, high, sample, argument, dim, span_of(c[0]))

    def memory(self, c: list[Any]) -> tuple[str, Any, int]:
        return "memory", c[0], amount_of(c[0])

    def granularity(self, c: list[Any]) -> tuple[str, Any, int]:
        return "granularity", c[0], amount_of(c[0])

    def host(self, c: list[Any]) -> tuple[str, Any, int]:
        return "host", c[0], amount_of(c[0])

    def d2h(self, c: list[Any]) -> tuple[str, Any, int]:
        return "d2h", c[0], amount_of(c[0])

    def h2d(self, c: list[Any]) -> tuple[str, Any, int]:
        return "h2d", c[0], amount_of(c[0])

    def target(self, c: list[Any]) -> Target:
        given = once([part for part in c[1:] if part], "in this target")
        return Target(
            string(c[0]),
            given.get("memory"),
            given.get("granularity", 1),
            given.get("host"),
            given.get("d2h"),
            given.get("h2d"),
        )


class _Rest:
    """Rules of what stands after the graph, and of the whole."""

    def strings(self, c: list[Any]) -> tuple[Any, tuple[str, ...]]:
        return c[0], tuple(string(part) for part in c)

    def bind_arg(self, c: list[Any]) -> tuple[Argument, str | None]:
        return Argument(string(c[0]), str(c[1][1:]), span_of(c[1])), name_of(c[2])

    def bind_param(self, c: list[Any]) -> ParamBinding:
        return ParamBinding(c[0][1], str(c[1][1:]), name_of(c[2]), span_of(c[1]))

    def bind_buffer(self, c: list[Any]) -> BufferBinding:
        return BufferBinding(c[0][1], str(c[1][1:]), name_of(c[2]), span_of(c[1]))

    def bind_result(self, c: list[Any]) -> Result:
        return Result(str(c[0][1:]), name_of(c[1]), span_of(c[0]))

    def bind_grads(self, c: list[Any]) -> Any:
        return c[0]

    def bind(self, c: list[Any]) -> Binding:
        modes = [("grads", part, str(part)) for part in c if hasattr(part, "type")]
        pairs = [part for part in c if type(part) is tuple]
        return Binding(
            tuple(argument for argument, _ in pairs),
            tuple(part for part in c if type(part) is ParamBinding),
            tuple(part for part in c if type(part) is BufferBinding),
            tuple(part for part in c if type(part) is Result),
            tuple((i, grad) for i, (_, grad) in enumerate(pairs) if grad is not None),
            cast(Any, once(modes, "in this binding").get("grads", "fresh")),
        )

    def compute(self, c: list[Any]) -> Compute:
        return Compute(str(c[0]), len(c) == 2, span_of(c[0], c[-1]))

    def free(self, c: list[Any]) -> Free:
        return Free(str(c[1][1:]), span_of(c[0], c[1]))

    def offload(self, c: list[Any]) -> Offload:
        return Offload(str(c[1][1:]), span_of(c[0], c[1]))

    def prefetch(self, c: list[Any]) -> Prefetch:
        return Prefetch(str(c[1][1:]), span_of(c[0], c[1]))

    def wait(self, c: list[Any]) -> Wait:
        return Wait(str(c[1][1:]), span_of(c[0], c[1]))

    def hostfree(self, c: list[Any]) -> HostFree:
        return HostFree(str(c[1][1:]), span_of(c[0], c[1]))

    def schedule(self, c: list[Any]) -> Schedule:
        planner = "" if c[1] is None else string(c[1])
        return Schedule(title(c[0]), planner, tuple(c[2:]), span_of(c[0]))

    def words(self, c: list[Any]) -> tuple[str, ...]:
        return tuple(word(part) for part in c)

    def bound(self, c: list[Any]) -> int:
        return amount_of(c[0])

    def budget(self, c: list[Any]) -> Budget:
        return Budget(c[1], cast(Any, str(c[0])))

    def range(self, c: list[Any]) -> tuple[str, int, int]:
        return str(c[0]), integer(c[1]), integer(c[2])

    def certificate(self, c: list[Any]) -> Certificate:
        time, least, floor, *covers, assuming, version, seal = c
        return Certificate(
            duration_of(time),
            duration_of(least),
            floor,
            tuple(part for part in covers if type(part) is Budget),
            tuple(part for part in covers if type(part) is tuple),
            string(version),
            string(seal),
            assuming or (),
        )

    def assuming(self, c: list[Any]) -> tuple[str, ...]:
        return tuple(map(string, c))

    def host_bound(self, c: list[Any]) -> int:
        return int(c[0])

    def proven(self, c: list[Any]) -> Proven:
        words = c[1] if type(c[1]) is tuple else ()
        device, activation, host, prover, graph, certificate = c[-6:]
        return Proven(
            title(c[0]),
            words,
            device,
            activation,
            string(prover),
            string(graph),
            host or 0,
            certificate,
            span_of(c[0]),
        )

    def start(self, c: list[Any]) -> Program:
        header: dict[str, Any] = {"version": c[0]}
        for part in c:
            if type(part) is _Fields:
                header |= part
        graph = next(part for part in c if type(part) is Graph)
        return Program(
            graph,
            next((part for part in c if type(part) is Binding), Binding()),
            Header(**header),
            tuple(part for part in c if type(part) is Symbol),
            next((part for part in c if type(part) is Target), Target()),
            tuple(part for part in c if type(part) is Schedule),
            tuple(part for part in c if type(part) is Proven),
        )


class Builder(ExpressionRules, CallRules, GraphRules, _Frame, _Rest):
    """All rules. It holds no state, so that one parser serves every thread."""
