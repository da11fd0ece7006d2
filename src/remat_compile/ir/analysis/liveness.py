"""The computations that every schedule must run, and lower bounds on its memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal

from ..graph import CALLER_KINDS, CNode, Graph
from ..program import Program
from ..semantics.simulate import KEPT_KINDS, NON_ACTIVATION_KINDS, Sizes
from ..semantics.sizes import existing_grads
from .carried import Carried

BudgetKind = Literal["device", "activation"]

CARRIED, _MOMENTS = 2000, 4
"""On larger graphs, and at more moments, what is carried through is not looked at."""


def required_cnodes(graph: Graph) -> frozenset[str]:
    """The cNodes that every valid schedule runs: what the loss, the outputs, the
    gradients of parameters and the updates of buffers depend on."""
    roots = [
        c
        for c in graph.cnodes
        if c.is_loss
        or any(
            graph.anode[name].kind in KEPT_KINDS or graph.anode[name].kind == "pending"
            for name in c.results
        )
    ]
    return _ancestors(graph, roots)


def _ancestors(graph: Graph, roots: Iterable[CNode]) -> frozenset[str]:
    """The roots and every cNode whose results their first executions depend on."""
    stack = list(roots)
    ancestors = {c.name for c in stack}
    while stack:
        for name in graph.reads(stack.pop()):
            writer = graph.writer.get(name)
            if writer is not None and writer.name not in ancestors:
                ancestors.add(writer.name)
                stack.append(writer)
    return frozenset(ancestors)


def counted_sizes(program: Program, kind: BudgetKind, sizes: Sizes) -> Mapping[str, int]:
    """Bytes of each aNode as a budget of this kind counts them (0 where it does not)."""
    if kind == "device":
        return sizes.anode
    uncounted = {a.name for a in program.graph.anodes if a.kind in NON_ACTIVATION_KINDS}
    return {name: 0 if name in uncounted else size for name, size in sizes.anode.items()}


def held_bytes(
    program: Program, kind: BudgetKind, sizes: Sizes, homes: Collection[str] = ()
) -> int:
    """Bytes counted from the first step to the last: what the caller holds, without `homes`, which
    are on the host between two steps."""
    if kind == "activation":
        return 0
    callers = (a.name for a in program.graph.anodes if a.kind in CALLER_KINDS)
    held = sum(sizes.anode[name] for name in callers if name not in homes)
    return held + existing_grads(program, sizes, homes)[0]


def working_set(graph: Graph, c: CNode) -> tuple[str, ...]:
    """The aNodes, caller-held ones left out, that a first execution of `c` needs alive."""
    taken = () if c.takes_over else c.results
    names = dict.fromkeys((*graph.reads(c), *taken))
    return tuple(name for name in names if graph.anode[name].kind not in CALLER_KINDS)


def floor_bytes(
    program: Program,
    kind: BudgetKind = "device",
    env: Mapping[str, int] | None = None,
    homes: Collection[str] = (),
) -> tuple[int, str]:
    """The largest working set of a single required cNode, and the name of that cNode.

    In bytes at `env` (the sample by default). What the caller holds is included for
    `device`. No schedule with these `homes` can use less: every required cNode runs a first time,
    with what it reads, its results and its workspace alive. An update of what is at home on the
    host may run there, and needs nothing here.
    """
    return _largest(program, kind, env, {}, homes)


def lower_bound_bytes(
    program: Program,
    kind: BudgetKind = "device",
    env: Mapping[str, int] | None = None,
    *,
    copies: bool = False,
) -> tuple[int, str]:
    """A bound as `floor_bytes`, at least as high: it adds what cannot be made again. With
    `copies` it holds for plans that copy to the host too, where that can wait: it is `floor_bytes`.

    A tangent is written once, by the loss, so it is alive at each cNode that runs
    between the loss and a required reader of it in every schedule; likewise a pending
    buffer content that only its writer's first execution makes, up to the loss; and from
    the loss on the results, which the caller holds. On up to `CARRIED` cNodes the fullest
    moments also count what is carried through them for what comes later (`carried.py`).
    """
    if copies:
        return _largest(program, kind, env, {})
    return max(_moments(program, kind, env), key=lambda moment: moment[0])


def held_beside(program: Program, kind: BudgetKind, name: str) -> dict[str, int]:
    """Bytes in `lower_bound_bytes` at a cNode's first execution, beside its working set and the
    caller's: values that cannot be recomputed, and values carried through."""
    graph = program.graph
    counted = counted_sizes(program, kind, Sizes.of(program))
    own = {*working_set(graph, graph.cnode[name])}
    held = dict.fromkeys(a for a in _unavoidable(program).get(name, ()) if a not in own)
    if len(graph.cnodes) <= CARRIED:
        carried = Carried(program, counted, required_cnodes(graph))
        held |= dict.fromkeys(carried.named_beside(name, {*own, *held}))
    return {a: counted[a] for a in held if counted[a]}


def _moments(
    program: Program, kind: BudgetKind, env: Mapping[str, int] | None
) -> Iterator[tuple[int, str]]:
    """Bounds with the cNodes at whose first execution they hold."""
    graph = program.graph
    beside = _unavoidable(program)
    best, where = _largest(program, kind, env, beside)
    yield best, where
    if len(graph.cnodes) > CARRIED:
        return
    sizes = Sizes.of(program, env)
    counted = counted_sizes(program, kind, sizes)
    held = held_bytes(program, kind, sizes)
    required = required_cnodes(graph)
    carried = Carried(program, counted, required)
    alive = {
        c.name: {*working_set(graph, c), *beside.get(c.name, ())}
        for c in graph.cnodes
        if c.name in required
    }
    total = {
        name: held + sum(counted[a] for a in names) + sizes.workspace[name]
        for name, names in alive.items()
    }
    for name in sorted(alive, key=lambda name: -total[name])[:_MOMENTS]:
        if total[name] + carried.most <= best:
            return
        bound = total[name] + carried.beside(name, alive[name])
        best = max(best, bound)
        yield bound, name


def _largest(
    program: Program,
    kind: BudgetKind,
    env: Mapping[str, int] | None,
    beside: Mapping[str, Iterable[str]],
    homes: Collection[str] = (),
) -> tuple[int, str]:
    graph = program.graph
    sizes = Sizes.of(program, env)
    counted = counted_sizes(program, kind, sizes)
    required = required_cnodes(graph)
    held = {a.name for a in graph.anodes if a.kind in CALLER_KINDS and a.name not in homes}
    own = {a.name: 0 if a.name in held else counted[a.name] for a in graph.anodes}
    best, where = 0, graph.loss.name
    for c in graph.cnodes:
        away = c.is_update and all(old in homes for old, _ in c.takes_over)
        if c.name not in required or away:  # or may run on the host
            continue
        taken = () if c.takes_over else c.results  # as in `working_set`
        names = {*graph.reads(c), *taken, *beside.get(c.name, ())}
        total = sum([own[name] for name in names]) + sizes.workspace[c.name]
        if total > best:
            best, where = total, c.name
    return best + held_bytes(program, kind, sizes, homes), where


def _unavoidable(program: Program) -> dict[str, list[str]]:
    """aNodes that no schedule can have freed at the first execution of each cNode."""
    graph = program.graph
    required = required_cnodes(graph)
    unavoidable: dict[str, list[str]] = {}
    after_loss = _descendants(graph, graph.loss)
    given = [name for name in program.held_since_loss if graph.anode[name].kind not in CALLER_KINDS]
    for name in after_loss:
        unavoidable.setdefault(name, []).extend(given)
    for name in graph.loss.results:
        readers = [c for c in graph.readers[name] if c.name in required]
        for between in _ancestors(graph, readers) & after_loss & required:
            unavoidable.setdefault(between, []).append(name)
    before_loss = _ancestors(graph, [graph.loss])
    for c in graph.cnodes:
        once = [
            name
            for name in c.results
            if graph.anode[name].kind == "pending" and name not in c.results_at(2)
        ]
        if once:
            for between in _descendants(graph, c) & before_loss:
                unavoidable.setdefault(between, []).extend(once)
    return unavoidable


def _descendants(graph: Graph, root: CNode) -> frozenset[str]:
    """Every cNode that depends on `root`, itself left out."""
    stack = [root]
    descendants: set[str] = set()
    while stack:
        for name in stack.pop().results:
            for reader in graph.readers[name]:
                if reader.name not in descendants:
                    descendants.add(reader.name)
                    stack.append(reader)
    return frozenset(descendants)
