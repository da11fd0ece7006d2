"""The assumptions and limits of a proof, printed with every verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..ir.codecs import PACKS, UNPACKS
from ..ir.expr import Const
from ..ir.graph import ACCUMULATE_OP, FUSED_OP, LOSS_OP, UPDATE_OP, ANode
from ..ir.program import Program
from ..ir.schedule import Compute, Schedule
from ..operators import effects
from .arithmetic.intervals import names_of
from .arithmetic.shapes import MAY_OVERLAP, least_bytes
from .read.calls import names_in, same_call
from .read.lossy import Error, bounds_of, read_lossy

MOST_NAMES = 3


@dataclass(frozen=True, slots=True)
class Assumption:
    """`key` is stable, for programs and certificates; `text` is for people, one line."""

    key: str
    text: str


def assumptions(
    program: Program, schedule: Schedule, ranges: Iterable[str] = ()
) -> tuple[Assumption, ...]:
    """The assumptions of the proof of `schedule`, beside the rules of the language.

    `ranges` are the symbols for all values of which bytes are proven. A pure function, so
    that a certificate about the same program and steps has the same list; section 8 of
    `spec/verification.md` says what each means.
    """
    return (
        Assumption("graph", "for the graph as written: model not seen"),
        Assumption("operators", "operators compute from their arguments and random state alone"),
        *_libraries(program),
        *_replay_forms(program, schedule),
        *_regions(program),
        *_updates(program),
        *_codecs(program),
        *_lossy(program),
        *_gradients(program),
        *_costs(program),
        *_loss(program),
        *_sample(program, frozenset(ranges)),
        *_storage(program),
    )


def cost_assumptions(program: Program) -> tuple[Assumption, ...]:
    """The assumptions behind numbers in the graph, which a simulated plan makes too."""
    return (*_costs(program), *_loss(program))


def _libraries(program: Program) -> Iterator[Assumption]:
    """Operators of which no table tells what they do beside computing."""
    calls = [view.call for view in program.graph.views]
    for c in program.graph.cnodes:
        calls += (*c.call.parts(), *([] if c.replay is None else [c.replay.call]))
    names = dict.fromkeys(call.op for call in calls)
    unknown = [name for name in names if (own := effects(name)) is None or "m" in own.flags]
    unknown = [
        name for name in unknown if name not in (LOSS_OP, ACCUMULATE_OP, UPDATE_OP, FUSED_OP)
    ]
    if unknown:
        text = f"operators not in the table ({_some(unknown)}) write nothing, draw by a token only"
        yield Assumption("libraries", text)


def _replay_forms(program: Program, schedule: Schedule) -> Iterator[Assumption]:
    """Forms with another call that the schedule runs: equal to the first one by (P2)."""
    runs = Counter(step.cnode for step in schedule.steps if isinstance(step, Compute))
    forms = [
        (c.call.op, c.replay.call.op)
        for c in program.graph.cnodes
        if c.replay is not None and runs[c.name] > 1 and not same_call(c.replay.call, c.call)
    ]
    if not forms:
        return
    pairs = Counter(f"{_short(first)} -> {_short(again)}" for first, again in forms)
    cnodes = f"{len(forms)} cNode{'s' if len(forms) > 1 else ''}"
    text = f"replay form of {cnodes} gives the same results: {_some(list(pairs))}"
    if program.header.replays:
        text += " (bits compared at capture)"
    yield Assumption("replay-forms", text)


def _regions(program: Program) -> Iterator[Assumption]:
    """Fused cNodes: their values are the composition of their calls, their bits need not be."""
    regions = [c for c in program.graph.cnodes if c.call.region]
    if regions:
        calls = sum(len(c.call.region) for c in regions)
        shown = "1 fused cNode" if len(regions) == 1 else f"{len(regions)} fused cNodes"
        text = f"{shown} of {calls} calls: equal values, bits may differ by rounding inside"
        yield Assumption("fused", text)


def _updates(program: Program) -> Iterator[Assumption]:
    """Steps of an optimizer: they write what they take over, and nothing else."""
    updates = sum(c.call.op == UPDATE_OP for c in program.graph.cnodes)
    if updates:
        shown = "1 update" if updates == 1 else f"{updates} updates"
        text = f"{shown}: new contents come of what is named and of the optimizer's numbers alone; "
        yield Assumption("updates", text + "temporaries on the host are not counted")


def _codecs(program: Program) -> Iterator[Assumption]:
    """The axioms of codecs that the values rest on, each with how often it is used."""
    codecs = [PACKS[c.call.op] for c in program.graph.cnodes if c.call.op in PACKS]
    used = Counter(codec for codec in codecs if not codec.is_lossy)
    if used:
        axioms = (f"{codec.name} ({number}): {codec.axiom}" for codec, number in used.items())
        yield Assumption("codecs", f"packed values: {'; '.join(axioms)}")


def _lossy(program: Program) -> Iterator[Assumption]:
    """Values that come back with an error, with its bound, and each gradient that it reaches."""
    lossy = read_lossy(program)
    if not lossy.codecs:
        return
    uses = Counter((source, codec.name) for source, codec in lossy.codecs.values())
    values = ", ".join(f"%{source} ({name})" for source, name in uses)
    bounds = "; ".join(f"{name}: {bound}" for name, bound in bounds_of(lossy).items())
    yield Assumption("lossy", f"approximate: {values}; per element, {bounds}")
    told = "linear, unbiased" if lossy.is_unbiased else "linear"
    shown = (
        f"{name} ({told})" if error is Error.SUM else name
        for name, error in lossy.gradients.items()
    )
    number = f"{len(lossy.gradients)} of {lossy.number_of_gradients}"
    text = f"{number} gradients are approximate: {', '.join(shown)}; loss, outputs, buffers are not"
    yield Assumption("lossy-gradients", text)


def _costs(program: Program) -> Iterator[Assumption]:
    h = program.header
    threads = f"{h.threads} thread{'s' if h.threads != 1 else ''}"
    where = f"{h.device}, {threads}, torch {h.torch_version or 'unknown'}"
    match h.costs:
        case "measured":
            text = f"sizes, workspaces and times as measured on {where}"
            if any(s.low < s.high for s in program.symbols):
                text += ", even growth between"
            if names := _ranging_workspaces(program):
                text += f" (workspaces over the range of {names}: at no more than 24 points)"
        case "roofline":
            text = f"times by roofline for {program.target.name}, nothing was run; "
            text += _workspaces(program)
        case "none":
            text = "sizes, workspaces and times as written, 0 where unknown; nothing was measured"
    yield Assumption(f"costs-{h.costs}", text)


def _workspaces(program: Program) -> str:
    cnodes = [c for c in program.graph.cnodes if c.workspace != Const(0)]
    known = sum(c.call.op not in PACKS and c.call.op not in UNPACKS for c in cnodes)
    but = f", but for unused results of {known}" if known else ""
    but += ", and what codecs declare" if known < len(cnodes) else ""
    return f"operators need no workspace{but}"


def _ranging_workspaces(program: Program) -> str:
    sizes = {form.workspace for c in program.graph.cnodes for form in (c, c.replay or c)}
    used = frozenset[str]().union(*map(names_of, sizes))
    return ", ".join(s.name for s in program.symbols if s.low < s.high and s.name in used)


def _loss(program: Program) -> Iterator[Assumption]:
    if any(c.phase == "loss" and c.workspace == Const(0) for c in program.graph.cnodes):
        yield Assumption("loss", "the caller's loss takes no memory but for its tangents")


def _sample(program: Program, ranges: frozenset[str]) -> Iterator[Assumption]:
    left = [s for s in program.symbols if s.low < s.high and s.name not in ranges]
    if left:
        at = ", ".join(f"{s.name} = {s.sample}" for s in left)
        yield Assumption("sample", f"bytes are bounded at {at} only")


def _gradients(program: Program) -> Iterator[Assumption]:
    """Gradients that no tangent reaches: zero in a true backward, as of `sign`, or made up."""
    base = {view.name: view.base for view in program.graph.views}
    reached: set[str] = set()
    for c in program.graph.cnodes:
        reads = (base.get(name, name) for name in names_in(c.call))
        if c.phase == "loss" or not reached.isdisjoint(reads):
            reached.update(name for name in c.writes if name is not None)
    names = [
        f'"{p.names[0]}"'
        for p in program.binding.params
        if p.grad is not None and base.get(p.grad, p.grad) not in reached
    ]
    if names:
        text = f"the gradient of {_some(names)} is zero: it reads no tangent"
        yield Assumption("constant-gradients", text)


def _storage(program: Program) -> Iterator[Assumption]:
    """Storage of the caller that holds less than its shape takes: it must be expanded."""
    names = [f"%{a.name}" for a in program.graph.anodes if _is_expanded(a)]
    if names:
        text = f"elements of {_some(names)} share bytes (expanded by the caller)"
        yield Assumption("expanded", text)


def _is_expanded(a: ANode) -> bool:
    if a.kind not in MAY_OVERLAP:
        return False
    match a.size, least_bytes(a):
        case Const(size), Const(least):
            return size < least
        case _:
            return False


def _short(op: str) -> str:
    return op.removeprefix("aten.").removesuffix(".default")


def _some(names: list[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
