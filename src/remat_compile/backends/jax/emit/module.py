"""Schedule -> one readable JAX module: the code that runs, and that can be saved."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ....ir.graph import CALLER_KINDS
from ....ir.program import Program
from ....ir.rewrites.identities import identities
from ....ir.schedule import Schedule
from ...python.allowed import check_generated
from ...python.names import called_operators, loss_index, symbol_key
from ...python.quote import literal
from ...views import without_identities
from ..honoured import for_jax
from ..readback.explicit import check_source
from .allowed import MODULE_NAMES, allowed, defined_names
from .body import Body, Liveness
from .groups import Barrier, barriers
from .order import numbered
from .tables import tables
from .template import CHECK, RUN, header
from .text import BASE_KEY, KEY, JaxText

if TYPE_CHECKING:
    from .shared_work import SharedWork

SourceOf = Callable[[Sequence[str]], str]
"""The source text of operators, their imports included."""


def operators_of(program: Program) -> tuple[str, ...]:
    """The operators that a schedule of the program may run, in order of appearance."""
    return called_operators(program.graph)


def emit(program: Program, schedule: Schedule, source_of: SourceOf) -> str:
    """The source of a module with `forward`, `backward`, `model` and `step`, read back and
    held against the schedule.

    `schedule` must be valid, and every operator must have a source. FB0945 or FB0946 where
    the source is not the schedule.
    """
    source = _written(program, schedule, source_of)
    check_source(source, program, schedule)
    return source


def _written(program: Program, schedule: Schedule, source_of: SourceOf) -> str:
    from .shared_work import SharedWork  # needs JAX

    shared = SharedWork(program)
    program = lowered_calls(program)
    lowerings = source_of(operators_of(program))
    x = JaxText(program, defined_names(lowerings) | MODULE_NAMES)
    functions = _Functions(program, schedule, x, shared).text()
    regions = regions_text(x)
    head = header(program.graph.name, schedule)
    operators = source_of(tuple(x.operators)).strip()
    source = f"{head}{operators}\n\n\n{tables(program)}\n\n{regions}{functions}{RUN}{CHECK}"
    return check_generated(source, allowed(lowerings, program.graph))


def lowered_calls(program: Program) -> Program:
    """The program whose calls are those of the lowerings, without operators that change nothing."""
    program = for_jax(program)
    graph = without_identities(program.graph, identities(program.graph))
    return replace(program, graph=graph)


def regions_text(x: JaxText) -> str:
    """The functions of the regions and two empty lines, if there are any."""
    regions = "".join(x.region_texts()).lstrip("\n")
    return f"{regions}\n\n" if regions else ""


class _Functions:
    """`forward` and `backward`. The backward comes first: it says what is to be saved."""

    def __init__(self, program: Program, schedule: Schedule, x: JaxText, shared: SharedWork):
        graph = program.graph
        self.program, self.graph, self.binding, self.x = program, graph, program.binding, x
        self.held = {a.name for a in graph.anodes if a.kind in CALLER_KINDS}
        tokens = [c.token for c in graph.cnodes if c.token is not None]
        state = Liveness(set(self.held), {token: i for i, token in enumerate(tokens)})
        through = barriers(graph, schedule, shared)
        steps = list(numbered(graph, schedule.steps))
        border = loss_index(graph, schedule)
        self.forward = Body(graph, x, state, through)
        self.forward.steps(steps[:border])
        state.live.update(graph.loss.results)
        self.backward = Body(graph, x, state, through)
        self.backward.bound(graph.loss.results)
        self.backward.steps(steps[border + 1 :])

    def text(self) -> str:
        self._end_of_backward()
        saved = tuple(self.backward.free)
        kept = [self._variable(name) for name in saved]
        if self.program.symbols:
            kept.append("sizes")
        self._end_of_forward(saved, kept)
        forward = function_text(
            "forward(params, buffers, args, key=None)",
            (*self._unpack_caller(saved), *self.forward.lines),
        )
        backward = function_text(
            "backward(saved, tangents)", (*self._unpack_saved(kept), *self.backward.lines)
        )
        return f"{forward}\n\n{backward}"

    def _end_of_backward(self) -> None:
        body, binding = self.backward, self.binding
        grads = [
            (p.names[0], "None" if p.grad is None else body.value(p.grad)) for p in binding.params
        ]
        by_index = dict(binding.input_grads)
        inputs = [
            body.value(by_index[i]) if i in by_index else "None"
            for i in range(len(binding.arguments))
        ]
        body.lines += [
            "grads = {",
            *(f"    {literal(name)}: {value}," for name, value in grads),
            "}",
            f"return grads, None, {tuple_text(inputs)}, None",
        ]

    def _end_of_forward(self, saved: tuple[str, ...], kept: list[str]) -> None:
        body, binding = self.forward, self.binding
        self._border(saved)
        outputs = [body.value(r.name) for r in binding.results]
        updates = [(b.names[0], body.value(b.update)) for b in binding.buffers if b.update]
        if self.program.symbols:
            sizes = ", ".join(self.x.variable(symbol_key(s.name)) for s in self.program.symbols)
            body.lines.append(f"sizes = jnp.zeros(({sizes}, 0), bool)")
        body.lines += [
            f"new_buffers = {dict_text(updates)}",
            f"return ({tuple_text(outputs)}, new_buffers), {tuple_text(kept)}",
        ]

    def _border(self, saved: tuple[str, ...]) -> None:
        """Saved values pass a barrier with the outputs: no work of the backward
        can begin before the forward has ended."""
        own = [n for n in saved if n in self.graph.anode and n not in self.held]
        hosts = [name.removeprefix("host ") for name in saved if name.startswith("host ")]
        if own or hosts or BASE_KEY in saved:
            ends = [self.graph.storage[r.name] for r in self.binding.results]
            sources = dict.fromkeys((*own, *(n for n in ends if n not in self.held)))
            self.forward.barrier(Barrier(tuple(sources), tuple(hosts), (), BASE_KEY in saved))

    def _unpack_caller(self, saved: tuple[str, ...]) -> list[str]:
        return unpack_inputs(self.x, self.program, {*self.forward.free, *saved})

    def _unpack_saved(self, kept: list[str]) -> list[str]:
        tangents = [
            "_" if r.tangent is None else self.x.variable(r.tangent) for r in self.binding.results
        ]
        lines = [f"{tuple_text(kept)} = saved"] if kept else []
        if self.program.symbols:
            sizes = [self.x.variable(symbol_key(s.name)) for s in self.program.symbols]
            lines.append(f"{tuple_text([*sizes, '_'])} = sizes.shape")
        lines.append(f"({tuple_text(tangents)}, _) = tangents")
        return lines

    def _variable(self, name: str) -> str:
        if name == BASE_KEY:
            return KEY
        if name.startswith("host "):
            return self.x.host(name.removeprefix("host "))
        return self.x.variable(name)


def function_text(signature: str, lines: Iterable[str]) -> str:
    """A function with these lines as its body."""
    return f"def {signature}:\n" + "".join(f"    {line}".rstrip() + "\n" for line in lines)


def unpack_inputs(x: JaxText, program: Program, wanted: Container[str]) -> list[str]:
    """Lines that name the `wanted` parameters and buffers, the arguments in `args`, and the sizes
    in their shapes."""
    binding = program.binding
    lines = [
        f"{x.variable(b.name)} = {source}[{literal(b.names[0])}]"
        for source, bindings in (("params", binding.params), ("buffers", binding.buffers))
        for b in bindings
        if b.name in wanted
    ]
    names = [x.variable(a.name) for a in binding.arguments]
    lines += [f"{tuple_text(names)} = args"] if names else []
    for s in program.symbols:
        lines.append(f"{x.variable(symbol_key(s.name))} = {names[s.argument]}.shape[{s.dim}]")
    return lines


def tuple_text(parts: Sequence[str]) -> str:
    """A tuple of expressions."""
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def dict_text(entries: Iterable[tuple[str, str]]) -> str:
    """A dictionary of expressions by names of the model."""
    return "{" + ", ".join(f"{literal(name)}: {value}" for name, value in entries) + "}"
