"""The rules of `fbir.lark` as methods that build the data model.

A text is read in two passes. While it is parsed, `ValueRules` build what stands inside
statements; of the tree of statements that is left, `StatementRules` build the program, with
places in the file that they are told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, cast

from lark import Token, Tree

from ..expr import Expr
from ..graph import ANode, ANodeKind, Call, CNode, Graph, InnerCall, Phase, View
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
    TensorLayout,
)
from ..schedule import STORAGE_STEPS, Compute, Schedule, Step
from ..span import Span
from .tokens import (
    Entry,
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

T = TypeVar("T")
Range: TypeAlias = tuple[str, int, int]


class _Input(NamedTuple):
    """A line of the binding about an argument, with the gradient of it that the caller wants."""

    argument: Argument
    grad: str | None


BindingPart: TypeAlias = _Input | ParamBinding | BufferBinding | Result | Entry


def _entry(word: str, read: Callable[[Token], Any], field: str = "") -> Any:
    """The rule of an entry that one token spells."""
    return lambda _, token: Entry(word, token, field or word, read(token))


class StatementRules:
    """The rules of statements, with their places in `file`, out of what the rules inside a
    statement made."""

    def __init__(self, file: str):
        self._file = file

    def build(self, part: object) -> object:
        """The rules' results for a tree: a method takes the parts of its node as parameters."""
        if type(part) is not Tree:
            return part
        return getattr(self, part.data)(*map(self.build, part.children))

    def _span(self, token: Token, last: Token | None = None) -> Span:
        return span_of(token, last, self._file)

    # The header, the symbols and the target.

    def version(self, number: Token) -> int:
        return int(number)

    device = _entry("device", word)
    threads = _entry("threads", integer)
    torch = _entry("torch", string, "torch_version")
    costs = _entry("costs", str)
    replays = _entry("replays", str)

    def run_once(self, *names: Token) -> Entry:
        return Entry("once", names[0], "run_once", tuple(map(str, names)))

    def captured(self, *entries: Entry) -> tuple[Entry, ...]:
        once(entries, "in this line")
        return entries

    def layouts(self, *layouts: TensorLayout) -> tuple[TensorLayout, ...]:
        return layouts

    def layout(self, name: Token, form: Token, *numbers: Token) -> TensorLayout:
        kind: Literal["order", "strides"] = "order" if form == "order" else "strides"
        return TensorLayout(name[1:], kind, tuple(map(integer, numbers)), self._span(name))

    def source(self, file: Token, sha256: Token | None) -> tuple[Entry, ...]:
        named = Entry("source", file, "source", string(file))
        return (named,) if sha256 is None else (named, *self.source_hash(sha256))

    def source_hash(self, sha256: Token) -> tuple[Entry, ...]:
        return (Entry("sha256", sha256, "sha256", string(sha256)),)

    def header(
        self,
        version: int,
        captured: tuple[Entry, ...] | None,
        layouts: tuple[TensorLayout, ...] | None,
        source: tuple[Entry, ...] | None,
    ) -> Header:
        entries = (*(captured or ()), *(source or ()))
        return Header(version, layouts=layouts, **once(entries, "in the header"))

    def sym(self, name: Token, *numbers: Token) -> Symbol:
        low, high, sample, argument, dim = map(integer, numbers)
        return Symbol(str(name), low, high, sample, argument, dim, self._span(name))

    memory = _entry("memory", amount_of, "memory_bytes")
    granularity = _entry("granularity", amount_of, "granularity_bytes")
    host = _entry("host", amount_of, "host_bytes")
    d2h = _entry("d2h", amount_of, "d2h_bytes_per_s")
    h2d = _entry("h2d", amount_of, "h2d_bytes_per_s")
    both = _entry("both", amount_of, "both_bytes_per_s")
    copy_latency = _entry("copy_latency", duration_of, "copy_latency_ns")
    copy_issue = _entry("copy_issue", duration_of, "copy_issue_ns")

    def target(self, name: Token, *entries: Entry | None) -> Target:
        return Target(string(name), **once(filter(None, entries), "in this target"))

    def sections(self, *sections: T) -> tuple[T, ...]:
        return sections

    def words(self, *words: Token) -> tuple[str, ...]:
        return tuple(map(word, words))

    # The graph.

    def anode(
        self, name: Token, kind: Token, dtype: Token, shape: tuple[Expr, ...], size: Expr
    ) -> ANode:
        where = self._span(name)
        return ANode(name[1:], cast(ANodeKind, str(kind)), dtype[:-1], shape, size, where)

    def view(self, name: Token, base: Token, call: Call, index: int | None) -> View:
        return View(name[1:], base[1:], call, index, self._span(name))

    def cnode(
        self,
        label: Token,
        phase: Token,
        writes: tuple[str | None, ...] | None,
        call: Call,
        region: tuple[InnerCall, ...] | None,
        *attributes: Entry,
    ) -> CNode:
        name = label.rstrip(": \t")
        place = self._span(label)
        span = Span(place.line, place.column, place.column + len(name), self._file)
        if region:
            call = replace(call, region=region)
        given = once(attributes, f"for {name}") if attributes else {}
        return CNode(name, cast(Phase, str(phase)), writes or (), call, **given, span=span)

    def graph(self, name: Token, *nodes: ANode | View | CNode) -> Graph:
        return Graph(
            title(name),
            tuple(node for node in nodes if type(node) is ANode),
            tuple(node for node in nodes if type(node) is View),
            tuple(node for node in nodes if type(node) is CNode),
        )

    # How the graph meets its caller.

    def bind_arg(self, path: Token, name: Token, grad: Token | None) -> _Input:
        return _Input(Argument(string(path), name[1:], self._span(name)), name_of(grad))

    def bind_param(self, names: tuple[str, ...], name: Token, grad: Token | None) -> ParamBinding:
        return ParamBinding(names, name[1:], name_of(grad), self._span(name))

    def bind_buffer(
        self, names: tuple[str, ...], name: Token, update: Token | None
    ) -> BufferBinding:
        return BufferBinding(names, name[1:], name_of(update), self._span(name))

    def bind_result(self, name: Token, tangent: Token | None) -> Result:
        return Result(name[1:], name_of(tangent), self._span(name))

    bind_grads = _entry("grads", str)

    def bind(self, *parts: BindingPart) -> Binding:
        inputs = _of(_Input, parts)
        return Binding(
            tuple(part.argument for part in inputs),
            _of(ParamBinding, parts),
            _of(BufferBinding, parts),
            _of(Result, parts),
            tuple((i, part.grad) for i, part in enumerate(inputs) if part.grad is not None),
            **once(_of(Entry, parts), "in this binding"),
        )

    # Schedules.

    def compute(self, cnode: Token, how: Token | None) -> Compute:
        nosave, on_host = how == "nosave", how is not None and how != "nosave"
        return Compute(str(cnode), nosave, on_host, self._span(cnode, how))

    def storage_step(self, word: Token, anode: Token) -> Step:
        return STORAGE_STEPS[" ".join(word.split())](anode[1:], self._span(word, anode))

    def schedule(self, name: Token, planner: Token | None, *steps: Step) -> Schedule:
        by = "" if planner is None else string(planner)
        return Schedule(title(name), by, steps, self._span(name))

    # Proofs.

    def bound(self, size: Token) -> int:
        return amount_of(size)

    def budget(self, kind: Token, bound: int) -> Budget:
        return Budget(bound, cast(Literal["device", "activation", "host"], str(kind)))

    def range(self, symbol: Token, low: Token, high: Token) -> Range:
        return str(symbol), integer(low), integer(high)

    def covers(self, *parts: Budget | Range) -> tuple[tuple[Budget, ...], tuple[Range, ...]]:
        return _of(Budget, parts), tuple(part for part in parts if type(part) is tuple)

    def certificate(
        self,
        time: Token,
        least_time: Token,
        least_bytes: int,
        covers: tuple[tuple[Budget, ...], tuple[Range, ...]],
        assuming: tuple[str, ...] | None,
        version: Token,
        seal: Token,
    ) -> Certificate:
        times = duration_of(time), duration_of(least_time)
        sealed = string(version), string(seal)
        return Certificate(*times, least_bytes, *covers, *sealed, assuming or ())

    def proven(
        self,
        schedule: Token,
        obligations: tuple[str, ...] | None,
        device: int,
        activation: int,
        host: int | None,
        prover: Token,
        graph: Token,
        certificate: Certificate | None,
    ) -> Proven:
        return Proven(
            title(schedule),
            obligations or (),
            device,
            activation,
            string(prover),
            string(graph),
            host or 0,
            certificate,
            self._span(schedule),
        )

    # The whole.

    def start(
        self,
        header: Header,
        symbols: tuple[Symbol, ...],
        target: Target | None,
        graph: Graph,
        binding: Binding | None,
        schedules: tuple[Schedule, ...],
        proofs: tuple[Proven, ...],
    ) -> Program:
        known = target or Target(), schedules, proofs
        return Program(graph, binding or Binding(), header, symbols, *known)


def _of(kind: type[T], parts: tuple[object, ...]) -> tuple[T, ...]:
    return tuple(part for part in parts if type(part) is kind)
