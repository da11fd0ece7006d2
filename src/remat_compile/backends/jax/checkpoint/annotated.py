"""Annotated emission: the forward alone, with `jax.checkpoint` around each segment.

JAX derives the backward. What the plan keeps has a name, and the policy of the segments
keeps or offloads exactly these names. Phantoms (means, masks, indices) cannot be kept by
name, as JAX's own derivatives read values inside the operators: they are computed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ....ir.diagnostics import Note, fail
from ....ir.graph import CALLER_KINDS, CNode
from ....ir.program import Program
from ....ir.schedule import Compute, Schedule
from ....ir.wording import worded
from ...python.allowed import check_generated
from ...python.quote import literal
from ..emit.allowed import (
    MODULE_NAMES,
    NAMED_IMPORT,
    allowed_annotated,
    defined_names,
    segment_name,
)
from ..emit.body import Body, Liveness
from ..emit.module import (
    SourceOf,
    dict_text,
    function_text,
    lowered_calls,
    operators_of,
    regions_text,
    tuple_text,
    unpack_inputs,
)
from ..emit.order import numbered
from ..emit.tables import tables
from ..emit.template import ANNOTATED_RUN, CHECK, KEEP, header
from ..emit.text import BASE_KEY, JaxText
from ..observe.predict import predicted_temp_bytes
from ..readback.annotated import check_annotated
from .form import Form, form_of, misfit, schedule_of


def names_of(program: Program, form: Form) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names that the policy keeps on the device, and those that it offloads."""
    named = [a.name for a in program.graph.anodes if a.kind == "act"]
    kept = tuple(name for name in named if name in form.kept)
    return kept, tuple(name for name in named if name in form.offloaded)


def fitting_form(program: Program, schedule: Schedule, *, nearest: bool) -> Form:
    """The form of a plan that `jax.checkpoint` can express; with `nearest`, of the nearest
    that it can. FB0935 with the first step that does not fit."""
    graph = program.graph
    form = form_of(graph, schedule)
    deviation = None if nearest else misfit(graph, schedule, form)
    if deviation is None:
        return form
    near = schedule_of(graph, form, schedule.name, schedule.planner)
    name = deviation.step.cnode if isinstance(deviation.step, Compute) else str(deviation.step)
    ours = predicted_temp_bytes(program, schedule)
    theirs = predicted_temp_bytes(program, near)
    return fail(
        "FB0935",
        f"jax.checkpoint cannot express this plan: step {name} does not fit, as {deviation.why}",
        deviation.step.span,
        Note(f"the nearest plan takes {theirs} temporary bytes, this one {ours}"),
        hint=worded(
            "use {jax_style}, or annotated-nearest for the nearest plan", jax_style="explicit"
        ),
    )


def emit_form(program: Program, schedule: Schedule, form: Form, source_of: SourceOf) -> str:
    """The source of a module with `model` and `step`, as `emit`, for a form of a schedule, read
    back. FB0945 or FB0946 where the source is not the form."""
    source = _written(program, schedule, form, source_of)
    check_annotated(source, program, schedule, form)
    return source


def _written(program: Program, schedule: Schedule, form: Form, source_of: SourceOf) -> str:
    program = lowered_calls(program)
    lowerings = source_of(operators_of(program))
    forward = len(list(program.graph.in_phase("fwd")))
    segments = {segment_name(i) for i in range(1, forward + 1)}
    x = JaxText(program, defined_names(lowerings) | MODULE_NAMES | segments)
    model = _ModelText(program, form, x).text()
    regions = regions_text(x)
    kept, offloaded = names_of(program, form)
    head = header(program.graph.name, schedule)
    operators = source_of(tuple(x.operators)).strip()
    run = ANNOTATED_RUN.format(
        inputs=tuple(sorted(i for i, _ in program.binding.input_grads)),
        without=tuple(p.names[0] for p in program.binding.params if p.grad is None),
    )
    keep = _policy(kept, offloaded)
    head += NAMED_IMPORT
    source = f"{head}{operators}\n\n\n{tables(program)}{keep}\n\n{regions}{model}{run}{CHECK}"
    return check_generated(source, allowed_annotated(lowerings, program.graph))


def _policy(kept: Sequence[str], offloaded: Sequence[str]) -> str:
    kept_text, offloaded_text = (
        f"[{', '.join(map(literal, names))}]" for names in (kept, offloaded)
    )
    return f"KEPT = {kept_text}\nOFFLOADED = {offloaded_text}\n{KEEP}"


@dataclass
class _Named(Body):
    """A body that names what the plan keeps."""

    named: frozenset[str] = field(default_factory=frozenset)

    def computed(self, c: CNode, names: Iterable[str]) -> None:
        for name in names:
            if name in self.named:
                v = self.x.variable(name)
                self.lines.append(f"{v} = checkpoint_name({v}, {literal(name)})")


class _ModelText:
    """The text of `model`: its segments as functions, and the calls of them."""

    def __init__(self, program: Program, form: Form, x: JaxText):
        self.program, self.graph, self.binding, self.x = program, program.graph, program.binding, x
        self.held = {a.name for a in self.graph.anodes if a.kind in CALLER_KINDS}
        tokens = [c.token for c in self.graph.cnodes if c.token is not None]
        state = Liveness(set(self.held), {token: i for i, token in enumerate(tokens)})
        kept, offloaded = names_of(program, form)
        named = frozenset((*kept, *offloaded))
        forward = [c.name for c in self.graph.in_phase("fwd")]
        ends = [*form.starts[1:], len(forward)]
        self.segments: list[_Named] = []
        for start, end in zip(form.starts, ends, strict=True):
            body = _Named(self.graph, x, state, {}, named=named)
            body.steps(numbered(self.graph, tuple(map(Compute, forward[start:end]))))
            self.segments.append(body)
        self.end = Body(self.graph, x, state, {})

    def text(self) -> str:
        binding = self.binding
        outputs = [self.end.value(r.name) for r in binding.results]
        updates = [(b.names[0], self.end.value(b.update)) for b in binding.buffers if b.update]
        wanted = {name for body in (*self.segments, self.end) for name in body.free}
        lines = unpack_inputs(self.x, self.program, wanted)
        for number, body in enumerate(self.segments, 1):
            lines += self._segment(number, body)
        lines += [*self.end.lines, f"return {tuple_text(outputs)}, {dict_text(updates)}"]
        return function_text("model(params, buffers, args, key=None)", lines)

    def _segment(self, number: int, body: _Named) -> list[str]:
        later = (*self.segments[number:], self.end)
        wanted = {name for other in later for name in other.free}
        # A segment that nothing reads is left out: JAX has no side effects.
        made = [n for n in body.bound_names() if n not in body.free and n in wanted]
        if not made:
            return []
        takes = [self.x.variable(n) for n in body.free if n not in self.held and n != BASE_KEY]
        gives = tuple_text([self.x.variable(n) for n in made])
        name = segment_name(number)
        return [
            "",
            f"def {name}({', '.join(takes)}):",
            *(f"    {line}" for line in body.lines),
            f"    return {gives}",
            "",
            f"{gives} = jax.checkpoint({name}, policy=KEEP)({', '.join(takes)})",
        ]
