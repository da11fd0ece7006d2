"""A second opinion on every proof, from `spec/semantics.md` alone and from the text itself.

`check` reads the text, runs the machine once, adds up bytes and time, and tries the ranges of the
symbols by intervals. It shares nothing with the rest of the package.
"""

import ast
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import inf
from time import monotonic
from typing import NamedTuple

from .machine import CALLERS, Effect, Wrong, run
from .read import Program, Unread, inner, read

PHASES = ("fwd", "loss", "bwd", "opt")
WRITERS = {"act": "fwd", "phantom": "fwd", "pending": "fwd", "tangent": "loss", "grad": "bwd"}
WRITERS |= {"param_grad": "bwd", "output": "fwd loss bwd"}
ENDS = ("output", *CALLERS)  # what a result and the gradient of an input may be
ROUND: dict[str, Callable[[int, int], int]] = {
    "floordiv": lambda value, n: value // n,
    "ceildiv": lambda value, n: -(-value // n),
    "roundup": lambda value, n: -(-value // n) * n,
}
RANGE_WORK = 10**6  # expressions and tens of steps, some seconds

Box = Mapping[str, tuple[int, int]]  # lowest and highest value of each symbol
Sizes = Mapping[str, int]


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
    try:
        p = read(text, schedule)
        well_formed(p)
        effects = run(p)
        values = {b: n for b, (_, _, n) in p.symbols.items()} | inner(at or {})
        box = {b: (n, n) for b, n in values.items()}
        undecided = keeps_sizes(p, box, inf)
        size = sizes(p, {e: span(parse(e), box)[1] for e in p.expressions()})
        peak = peaks(p, effects, size)
        if ranges is not None and bound is not None:
            box |= inner(ranges)
            undecided = keeps_sizes(p, box, deadline)
            undecided = undecided or keeps_bytes(p, effects, box, bound, deadline)
        return Accepted(peak, time_ns(p, size), *least(p, size), undecided)
    except (Unread, Wrong) as error:
        return Refused(*error.args)
    except (RecursionError, MemoryError, SyntaxError, ValueError, KeyError) as error:
        return Refused(f"this cannot be read: {error}")


# ---- What the meaning rests on (grammar.md: the graph, the binding)


def well_formed(p: Program) -> None:
    there = {a for a, kind in p.kind.items() if kind in CALLERS}  # may be read
    written, phase, line = {*there}, 0, 0

    def need(holds: bool, *words: str) -> None:
        if not holds:
            raise Wrong(" ".join(words), line)

    for name, call in p.nodes.items():
        form, line = call.replay or call, call.line
        need(phase <= PHASES.index(call.phase), name, "stands after a later phase")
        need((call.phase == "loss") == (call.operator == "loss"), name, "is the loss, or is not")
        phase = PHASES.index(call.phase)
        for a in (*p.reads(call), *p.reads(form)):
            need(a in there, name, "reads what is not there:", a)
        made = [a for a in call.results if a != "_"]
        for a in made:
            need(call.phase in WRITERS.get(p.kind[a], ""), name, "writes no such thing:", a)
        need(not call.token or p.kind[call.token] == "rng", name, "has no random state")
        for a in (*made, *([call.token] if call.token else [])):
            need(a not in written, name, "writes what another writes:", a)
            written.add(a)
        again = [a for a in form.results if a != "_"]
        need({*again} <= {*made} and len({*again}) == len(again), name, "replays other results")
        if form.same(call):
            places = [a in ("_", *call.results[j : j + 1]) for j, a in enumerate(form.results)]
            need(all(places), name, "replays its results in other places")
        if call.operator == "accumulate":
            (g1, c), no_keyword = p.reads(call), call.arguments[:2] == [p.reads(call)[0], ","]
            sums = len(made) == 1 and len(call.arguments) == 3 and no_keyword
            need(sums and g1 != c and p.kind[g1] == "grad", name, "does not add to", g1)
            need(not call.token and not call.replay and call.phase == "bwd", name, "adds up")
            there.remove(g1)
        there.update(made)
        if call.phase == "loss":
            ends = {b for kind, _, b in p.bound if kind == "buffer" and b}
            ends |= {a for kind, a, _ in p.bound if kind == "result"}
            ends |= {a for a in p.kind if p.kind[a] == "pending"}
            need(ends <= {*p.reads(call)}, "the loss does not read all results and new contents")
    need(written == {*p.kind}, "nobody writes", *({*p.kind} - written))
    need([call.phase for call in p.nodes.values()].count("loss") == 1, "there is not one loss")
    for kind, a, b in p.bound:
        of, to = p.kind[a], p.kind.get(b)
        need(kind != "result" or (of in ENDS and to in (None, "tangent", "output")), "result", a)
        need(kind != "arg" or (of == "input" and to in (None, *ENDS)), "argument", a, b)
        need(kind != "param" or (of == "param" and to in (None, "param_grad")), "parameter", a, b)
        need(kind != "buffer" or (of in CALLERS and to in (None, "pending")), "buffer", a, b)


# ---- Expressions over a box


@cache
def parse(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


NONE = frozenset[str]()


class Span(NamedTuple):
    """Bounds of an expression in a box, and the symbols with which it may rise, and may fall."""

    low: int
    high: int
    up: frozenset[str] = NONE
    down: frozenset[str] = NONE


def span(e: ast.expr, box: Box) -> Span:
    match e:
        case ast.Constant(value=int(n)):
            return Span(n, n)
        case ast.Name(id=b):
            return Span(*box[b], up=frozenset({b}))
        case ast.UnaryOp(op=ast.USub(), operand=inside):
            low, high, up, down = span(inside, box)
            return Span(-high, -low, down, up)
        case ast.BinOp(left, ast.Sub(), right):
            return span(ast.BinOp(left, ast.Add(), ast.UnaryOp(ast.USub(), right)), box)
        case ast.BinOp(left, ast.Add(), right):
            one, two = span(left, box), span(right, box)
            return Span(
                one.low + two.low, one.high + two.high, one.up | two.up, one.down | two.down
            )
        case ast.BinOp(left, ast.Mult(), right):
            one, two, up, down = span(left, box), span(right, box), NONE, NONE
            for x, y in ((one, two), (two, one)):  # x' y - x y has the sign of (x' - x) y
                up |= (x.up if y.high > 0 else NONE) | (x.down if y.low < 0 else NONE)
                down |= (x.down if y.high > 0 else NONE) | (x.up if y.low < 0 else NONE)
            ends = [n * m for n in (one.low, one.high) for m in (two.low, two.high)]
            return Span(min(ends), max(ends), up, down)
        case ast.Call(ast.Name("max"), [first, *others]):
            most = span(first, box)
            for x in (span(other, box) for other in others):
                up, down = most.up | x.up, most.down | x.down
                most = Span(max(most.low, x.low), max(most.high, x.high), up, down)
            return most
        case ast.Call(ast.Name(how), [inside, ast.Constant(int(n))]) if n > 0 and how in ROUND:
            low, high, up, down = span(inside, box)
            return Span(ROUND[how](low, n), ROUND[how](high, n), up, down)
    raise Wrong("no expression of the symbols: " + ast.unparse(e), 0)


def everywhere(
    box: Box,
    exprs: Iterable[str],
    holds: Callable[[Sizes], bool],
    cost: int,
    deadline: float = inf,
) -> str:
    """Does what holds of too large values, too, hold in all the box? If not known, why.

    Corner: what rises with sizes that all may only rise with `b` is worst at the highest `b`, and
    if all may only fall, at the lowest. A box that is not settled is halved, down to points.
    """
    todo, work = [box], RANGE_WORK
    while todo:
        box = todo.pop()
        spans = [span(parse(e), box) for e in exprs]
        ups, downs = NONE.union(*(s.up for s in spans)), NONE.union(*(s.down for s in spans))
        tops = {b: (high, high) for b, (_, high) in box.items() if b not in downs}
        box = {b: (low, low if b not in ups else high) for b, (low, high) in box.items()} | tops
        if holds({e: span(parse(e), box)[1] for e in exprs}):
            continue
        widest = max(box, key=lambda b: box[b][1] - box[b][0], default="")
        low, high = box.get(widest, (0, 0))
        if low == high:
            at = ", ".join(f"{b[1:]} = {n}" for b, (n, _) in box.items())
            raise Wrong(f"a size or a bound on bytes does not hold at {at or 'the sample'}", 0)
        work -= cost
        if work < 0:
            return "there are too many boxes"
        if monotonic() > deadline:
            return "the time limit was reached"
        middle = (low + high) // 2
        todo += [{**box, widest: (low, middle)}, {**box, widest: (middle + 1, high)}]
    return ""


# ---- Bytes


def keeps_sizes(p: Program, box: Box, deadline: float) -> str:
    """Sizes are sizes, and an accumulation adds into a storage of its own size."""
    goals = [f"-({e})" for e in p.expressions()]
    for call in p.nodes.values():
        if call.operator == "accumulate":
            one, other = p.size[p.reads(call)[0]], p.size[call.results[0]]
            goals += [f"{one} - ({other})", f"{other} - ({one})"] if one != other else []
    found = (everywhere(box, [e], not_above_0, 1, deadline) for e in goals)
    return next(filter(None, found), "")


def not_above_0(values: Sizes) -> bool:
    return max(values.values()) <= 0


def keeps_bytes(p: Program, effects: list[Effect], box: Box, bound: Bytes, deadline: float) -> str:
    def holds(values: Sizes) -> bool:
        peak = peaks(p, effects, sizes(p, values))
        fits = peak.device <= bound.device and peak.activation <= bound.activation
        return fits and peak.host <= bound.host

    cost = len(effects) // 10 + len(p.expressions())
    return everywhere(box, p.expressions(), holds, cost, deadline)


def sizes(p: Program, values: Sizes) -> Sizes:
    return {e: ROUND["roundup"](n, p.target["granularity"]) for e, n in values.items()}


def peaks(p: Program, effects: list[Effect], size: Sizes) -> Bytes:
    """The largest of what is there during each step; `size` of each expression, rounded up."""
    device = {a: size[e] for a, e in p.size.items()}
    active = {a: 0 if p.kind[a] in (*CALLERS, "param_grad") else n for a, n in device.items()}
    now, now_active, home = held(p, device), 0, 0
    most = most_active = most_home = 0
    for taken, workspace, enters, leaves, copied, dropped in effects:
        during = sum([device[a] for a in taken]) + size[workspace]
        during_active = sum([active[a] for a in taken]) + size[workspace]
        most, most_active = max(most, now + during), max(most_active, now_active + during_active)
        now += sum([device[a] for a in enters]) - sum([device[a] for a in leaves])
        now_active += sum([active[a] for a in enters]) - sum([active[a] for a in leaves])
        home += (device[copied] if copied else 0) - (device[dropped] if dropped else 0)
        most_home = max(most_home, home)
    return Bytes(most, most_active, most_home)


def held(p: Program, device: Sizes) -> int:
    """What the caller holds during all steps, gradients of the step before among it."""
    old = [a for kind, a, b in p.bound if kind == "param" and b and p.accumulate]
    return sum(device[a] for a in (*(a for a in p.kind if p.kind[a] in CALLERS), *old))


# ---- Time, and what no schedule takes less than


def time_ns(p: Program, size: Sizes) -> int:
    """Three streams: `busy` is when the last copy of a direction ends, `ends` when that of `a`."""
    now, busy, ends, runs = 0, {"offload": 0, "prefetch": 0}, dict[str, int](), set[str]()
    for what, a, _ in p.steps:
        if what in ("compute", "nosave"):
            own, again = p.nodes[a].time_ns or 0, p.nodes[a].replay
            now += again.time_ns if a in runs and again and again.time_ns is not None else own
            runs.add(a)
        elif what in busy:
            rate = p.target.get("d2h" if what == "offload" else "h2d", 0)
            took = -(-size[p.size[a]] * 10**9 // rate) if rate else 0
            busy[what] = ends[a] = max(now, busy[what]) + took
        elif what == "wait":
            now = max(now, ends[a])
    return now


def least(p: Program, size: Sizes) -> tuple[int, int]:
    """Every valid schedule runs the loss, what draws, the writers of what must be written, and the
    writers of what these read; during each of them its reads and results are there."""
    writer = {a: name for name, call in p.nodes.items() for a in call.results if a != "_"}
    todo = [writer[a] for a in writer if p.kind[a] in ("output", "param_grad", "pending")]
    todo += [name for name, call in p.nodes.items() if call.token or call.phase == "loss"]
    must, device = set[str](), {a: size[e] for a, e in p.size.items()}
    floor = always = held(p, device)
    while todo:
        if (name := todo.pop()) not in must:
            must.add(name)
            call = p.nodes[name]
            reads = {a for a in p.reads(call) if a in writer}
            made = [] if call.operator == "accumulate" else [a for a in call.results if a != "_"]
            there = sum(device[a] for a in (*reads, *made)) + size[call.workspace]
            floor = max(floor, always + there)
            todo += [writer[a] for a in reads]
    return sum(p.nodes[name].time_ns or 0 for name in must), floor
