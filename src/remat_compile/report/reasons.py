"""Reasons of the peak, and cost and savings of a tensor or a module."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ..ir.analysis.liveness import BudgetKind, counted_sizes, floor_bytes, working_set
from ..ir.diagnostics import Diagnostic, FBError, nearest
from ..ir.graph import CALLER_KINDS, ANode
from ..ir.schedule import Compute
from ..ir.semantics.sizes import Sizes
from .charts.rollup import module_path
from .charts.timeline import Life
from .charts.variants import Effect, gap_at, keep, move, rebuild
from .moments import Holding
from .subject import Subject

Treatment = Literal["caller's", "kept", "recomputed", "moved", "passing", "never made"]
"""`passing`: made, used and freed with nothing in between that could spare it; `kept`: held
from forward to backward."""

MOST_REMEDIES = 12
STEPS_TO_SIMULATE = 200_000
"""Limit on the steps that the search for a remedy simulates in all."""


@dataclass(frozen=True, slots=True)
class HeldAtPeak:
    """Something on the device at the peak: the next step (index) that uses it, the step of the
    peak where that does, None where none does any more."""

    holding: Holding
    next_use: int | None


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change: an aNode made again, or copied to the host, over the peak."""

    anode: str
    how: Literal["recompute", "move"]
    effect: Effect


@dataclass(frozen=True)
class PeakReasons:
    """`own_bytes` is what the step of the peak needs by itself, with what the caller holds;
    the rest waits for later steps. `remedies` lower the peak, the best first, of `tried`."""

    step: int
    own_bytes: int
    held: tuple[HeldAtPeak, ...]
    remedies: tuple[Remedy, ...]
    tried: int
    next_peak_bytes: int


@dataclass(frozen=True)
class TensorReasons:
    """`kept_effect` is that of holding it throughout, `dropped` that of making it again over the
    peak, `moved` that of copying it to the host there; None where that does not apply."""

    node: ANode
    size_bytes: int
    treatment: Treatment
    lives: tuple[Life, ...]
    runs: int
    again_ns: int
    copies: int
    at_peak: bool
    kept_effect: Effect | None
    dropped: Effect | None
    moved: Effect | None


@dataclass(frozen=True, slots=True)
class Owner:
    """Bytes that a floor cannot do without, and why: `held` by the caller throughout; what its
    cNode reads, makes, or needs as workspace."""

    name: str
    bytes: int
    why: Literal["held", "read", "made", "workspace"]


@dataclass(frozen=True)
class FloorReasons:
    """No plan takes less than `bytes`: `cnode` needs the `owners` at once; the largest first."""

    kind: BudgetKind
    bytes: int
    cnode: str
    owners: tuple[Owner, ...]


@dataclass(frozen=True)
class ModuleReasons:
    """The tensors that a module makes, each with bytes and treatment, the largest first;
    `kept_effect` is that of keeping all of them throughout, None where that changes nothing or
    makes no valid plan."""

    path: str
    tensors: tuple[tuple[str, int, Treatment], ...]
    peak_bytes: int
    first_ns: int
    again_ns: int
    kept_effect: Effect | None


def of_floor(subject: Subject, kind: BudgetKind = "device") -> FloorReasons:
    """The holders of the bytes that no plan can avoid."""
    program, graph = subject.program, subject.program.graph
    homes = subject.schedule.homes
    floor, name = floor_bytes(program, kind, homes=homes)
    sizes, c = Sizes.of(program), graph.cnode[name]
    counted = counted_sizes(program, kind, sizes)
    reads = frozenset(graph.reads(c))
    needs = [
        Owner(f"%{n}", counted[n], "read" if n in reads else "made") for n in working_set(graph, c)
    ]
    callers = [a.name for a in graph.anodes if a.kind in CALLER_KINDS and kind == "device"]
    needs += [Owner(f"%{n}", sizes.anode[n], "held") for n in callers if n not in homes]
    needs += [Owner(f"%{n}", sizes.anode[n], "read") for n in callers if n in homes & reads]
    needs.append(Owner("(workspace)", sizes.workspace[name], "workspace"))
    rest = floor - sum(owner.bytes for owner in needs)
    needs.append(Owner("(existing gradients)", rest, "held"))
    owners = sorted((n for n in needs if n.bytes), key=lambda n: (-n.bytes, n.name))
    return FloorReasons(kind, floor, name, tuple(owners))


def of_peak(subject: Subject) -> PeakReasons:
    """The holders of the peak, and the single changes that would lower it."""
    step, trace = subject.trace.peak_step, subject.trace
    held = tuple(HeldAtPeak(h, _next_use(subject, h.name, step)) for h in subject.peak.holdings)
    own = sum(h.holding.bytes for h in held if h.next_use == step or h.holding.kind == "parameters")
    spare = [h.holding.name.removeprefix("%") for h in held if h.next_use not in (None, step)]
    most = max(3, min(MOST_REMEDIES, STEPS_TO_SIMULATE // (2 * len(subject.schedule.steps))))
    tried = [name for name in spare if _life_at(subject, name, step) is not None][:most]
    remedies = [r for name in tried for r in _remedies(subject, name) if r.effect.more_bytes < 0]
    remedies.sort(key=lambda r: (r.effect.peak_bytes, r.effect.time_ns, r.anode))
    others = [b for i, b in enumerate(trace.during) if i != step]
    return PeakReasons(step, own, held, tuple(remedies), len(tried), max(others, default=0))


def _next_use(subject: Subject, shown_name: str, step: int) -> int | None:
    """The next step from `step` on that computes or copies with it."""
    name = shown_name.removeprefix("%")
    node = subject.program.graph.anode.get(name)
    if node is None:
        return step if shown_name.startswith(("(workspace", "(dropped")) else None
    steps = subject.schedule.steps
    for index in range(step, len(steps)):
        at = steps[index]
        uses = isinstance(at, Compute) or at.copies is not None
        if uses and name in subject.touched[index]:
            return index
    return None


def _life_at(subject: Subject, name: str, step: int) -> Life | None:
    lives = subject.lives_of.get(name, ())
    return next((life for life in lives if life.born < step < life.died), None)


def _remedies(subject: Subject, name: str) -> Iterable[Remedy]:
    step = subject.trace.peak_step
    life = _life_at(subject, name, step)
    gap = None if life is None else gap_at(subject, life, step)
    if gap is None:
        return
    if (effect := rebuild(subject, gap)) is not None:
        yield Remedy(name, "recompute", effect)
    if (effect := move(subject, gap, step)) is not None:
        yield Remedy(name, "move", effect)


def of_tensor(subject: Subject, name: str) -> TensorReasons:
    """The treatment of an aNode, its reasons, and the alternatives. FB0730 for no such name."""
    graph, trace = subject.program.graph, subject.trace
    name = graph.storage.get(name, name)
    if name not in graph.anode:
        raise _unknown(subject, f"%{name}")
    node, writer = graph.anode[name], graph.writer.get(name)
    runs = 0 if writer is None else trace.executions.get(writer.name, 0)
    copies = sum(c.anode == name for c in trace.copies)
    treatment = _treatment(subject, name)
    changes = {r.how: r.effect for r in _remedies(subject, name)}
    return TensorReasons(
        node,
        trace._sizes.anode[name],
        treatment,
        subject.lives_of.get(name, ()),
        runs,
        0 if writer is None else max(0, runs - 1) * writer.time_ns_at(2),
        copies,
        _on_device(subject, name),
        keep(subject, name) if treatment in ("recomputed", "moved") else None,
        changes.get("recompute"),
        changes.get("move"),
    )


def _on_device(subject: Subject, name: str) -> bool:
    return any(h.name == f"%{name}" for h in subject.peak.holdings)


def _treatment(subject: Subject, name: str) -> Treatment:
    if subject.program.graph.anode[name].kind in CALLER_KINDS:
        return "caller's"
    if any(copy.anode == name for copy in subject.trace.copies):
        return "moved"
    lives = subject.lives_of.get(name, ())
    if not lives:
        return "never made"
    if len(lives) > 1:
        return "recomputed"
    loss = subject.trace.loss_step
    return "kept" if lives[0].born < loss < lives[0].died else "passing"


def modules(subject: Subject) -> frozenset[str]:
    """Every module that makes something, and those around it."""
    graph = subject.program.graph
    paths = {module_path(graph, c) for c in graph.cnodes}
    return frozenset(".".join(path[:i]) for path in paths for i in range(1, len(path) + 1))


def of_module(subject: Subject, path: str) -> ModuleReasons:
    """The values of a module and their treatment. FB0730 for no such module."""
    graph, sizes = subject.program.graph, subject.trace._sizes.anode
    if path not in modules(subject):
        raise _unknown(subject, path)
    parts = tuple(path.split("."))
    inside = {c.name for c in graph.cnodes if module_path(graph, c)[: len(parts)] == parts}
    names = {name for c in graph.cnodes if c.name in inside for name in c.results}
    tensors = sorted(
        ((n, sizes[n], _treatment(subject, n)) for n in names), key=lambda t: (-t[1], t[0])
    )
    runs = [r for r in subject.timeline.runs if r.cnode in inside]
    away = [n for n, _, treatment in tensors if treatment in ("recomputed", "moved")]
    return ModuleReasons(
        path,
        tuple(tensors),
        sum(h.bytes for h in subject.peak.holdings if h.name.removeprefix("%") in names),
        sum(r.end_ns - r.start_ns for r in runs if r.execution == 1),
        sum(r.end_ns - r.start_ns for r in runs if r.execution > 1),
        keep(subject, *away) if away else None,
    )


def _unknown(subject: Subject, name: str) -> FBError:
    graph = subject.program.graph
    known = {f"%{n}" for n in graph.storage} if name.startswith("%") else modules(subject)
    what = "tensor" if name.startswith("%") else "module"
    message = f"the plan has no {what} {name}.{nearest(name, known)}"
    hint = "write a tensor with its %, as %x; a module by its path, as blocks.0.attn"
    return FBError(Diagnostic("FB0730", message, hint=hint), usage=True)
