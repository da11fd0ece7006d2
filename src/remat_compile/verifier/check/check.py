"""A second opinion on every proof, from `spec/semantics.md` alone and from the text itself.

`check` reads the text, runs the machine once, adds up bytes and time, and tries the ranges of the
symbols by intervals. It shares nothing with the rest of the package.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from .machine import CALLERS, KEPT, Effect, run
from .read import Program, Wrong, need, read
from .sizes import Box, Search, Sizes, Undecided, roundup, span

BOUND = {  # what is bound, and what its second name may be
    "arg": (("input",), ("output", *CALLERS)),
    "param": (("param",), ("param_grad",)),
    "buffer": (CALLERS, ("pending",)),
    "result": (("output", *CALLERS), ("tangent", "output")),
}


@dataclass(frozen=True, slots=True)
class Bytes:
    """Peaks: of the device, of activations there, of the host."""

    device: int
    activation: int
    host: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """The schedule is right. `undecided` says why nothing is known of all sizes in the ranges."""

    peak: Bytes  # at the sample
    time_ns: int
    least_time_ns: int  # no valid schedule of the graph takes less, nor fewer device bytes
    least_bytes: int
    undecided: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """It is not, and why; `line` of the text, 0 if no one line is at fault."""

    reason: str
    line: int = 0


def check(
    text: str,
    schedule: str,
    at: Mapping[str, int] | None = None,
    ranges: Box | None = None,
    bound: Bytes | None = None,
    deadline: float = inf,
) -> Accepted | Refused:
    """Is the schedule right at `at` (or the sample), its bytes within `bound` in all `ranges`?

    After `deadline` (of `time.monotonic`) the ranges stay undecided.
    """
    p = Program()
    try:
        read(p, text, schedule)
        for kind, a, b in p.bound:
            firsts, seconds = BOUND[kind]
            need(p.kind[a] in firsts and (not b or p.kind[b] in seconds), "cannot bind", a, b)
        effects = run(p)
        box = {b: (n, n) for b, (_, _, n) in p.symbols.items()}
        box |= {b: (n, n) for b, n in (at or {}).items()}
        keeps_sizes(p, box, Search(inf))
        size = rounded(p, {e: span(e, box).high for e in p.expressions()})
        found = Accepted(peaks(p, effects, size), time_ns(p, size), *least(p, size))
    except (Wrong, RecursionError, MemoryError, ValueError, LookupError) as error:
        return Refused(f"{error or 'this cannot be read'}", p.line)
    try:
        if ranges is not None and bound is not None:
            search = Search(deadline)
            keeps_sizes(p, {**box, **ranges}, search)
            keeps_bytes(p, effects, {**box, **ranges}, bound, search)
    except Undecided as why:
        return replace(found, undecided=str(why))
    except Wrong as error:
        return Refused(str(error))
    return found


def keeps_sizes(p: Program, box: Box, search: Search) -> None:
    """Sizes are sizes, and an accumulation adds into a storage of its own size."""
    goals = [f"0 {e} -" for e in p.expressions()]
    for call in p.nodes.values():
        if call.operator == "accumulate":
            one, other = p.size[p.reads(call)[0]], p.size[call.results[0]]
            goals += [f"{one} {other} -", f"{other} {one} -"] if one != other else []
    for goal in goals:
        search.everywhere(box, [goal], lambda values: max(values.values()) <= 0)


def keeps_bytes(p: Program, effects: list[Effect], box: Box, bound: Bytes, search: Search) -> None:
    def holds(values: Sizes) -> bool:
        peak = peaks(p, effects, rounded(p, values))
        fits = peak.device <= bound.device and peak.activation <= bound.activation
        return fits and peak.host <= bound.host

    search.everywhere(box, p.expressions(), holds, cost=10 * len(effects))


def rounded(p: Program, values: Sizes) -> Sizes:
    """Bytes of each aNode and of each expression of workspace, in whole granules."""
    size = {e: roundup(n, p.target["granularity"]) for e, n in values.items()}
    return size | {a: size[e] for a, e in p.size.items()}


def peaks(p: Program, effects: list[Effect], size: Sizes) -> Bytes:
    """The largest of what is there during each step."""
    nothing = dict.fromkeys(size, 0) | {f"host {a}": 0 for a in p.size}
    device = {**nothing, **size}
    active = device | {a: 0 for a, kind in p.kind.items() if kind in (*CALLERS, "param_grad")}
    host = nothing | {f"host {a}": size[a] for a in p.size}
    return Bytes(peak(effects, device, held(p, size)), peak(effects, active), peak(effects, host))


def peak(effects: list[Effect], size: Sizes, now: int = 0) -> int:
    most = now
    for takes, enters, leaves in effects:
        most = max(most, now + sum([size[a] for a in takes]))
        now += sum([size[a] for a in enters]) - sum([size[a] for a in leaves])
    return most


def held(p: Program, size: Sizes) -> int:
    """What the caller holds during all steps, gradients of the step before among it."""
    own = [a for a, kind in p.kind.items() if kind in CALLERS]
    old = [a for kind, a, gradient in p.bound if kind == "param" and gradient and p.accumulate]
    return sum(size[a] for a in (*own, *old))


def time_ns(p: Program, size: Sizes) -> int:
    """`busy` is when the last copy of a direction ends, `ends` when that of an aNode."""
    now, busy, ends, runs = 0, {"offload": 0, "prefetch": 0}, dict[str, int](), set[str]()
    for _, what, a in p.steps:
        if what in ("compute", "nosave"):
            own, again = p.nodes[a].time_ns or 0, p.nodes[a].replay
            now += again.time_ns if a in runs and again and again.time_ns is not None else own
            runs.add(a)
        elif what in busy:
            rate = p.target.get("d2h" if what == "offload" else "h2d", 0)
            took = -(-size[a] * 10**9 // rate) if rate else 0
            busy[what] = ends[a] = max(now, busy[what]) + took
        elif what == "wait":
            now = max(now, ends[a])
    return now


def least(p: Program, size: Sizes) -> tuple[int, int]:
    """Time and bytes that every valid schedule takes: it runs the loss, what draws, and who writes
    what must be written or what these read; their reads and results are there at once."""
    must = {a for a, kind in p.kind.items() if kind in (*KEPT, "pending")}
    time, always = 0, held(p, size)
    floor = always
    for call in reversed(p.nodes.values()):
        if call.token or call.phase == "loss" or must & {*call.results}:
            reads = {a for a in p.reads(call) if p.kind[a] not in CALLERS}
            made = [] if call.operator == "accumulate" else call.made()
            floor = max(floor, always + sum(size[a] for a in (*reads, *made, call.workspace)))
            must |= reads
            time += call.time_ns or 0
    return time, floor
