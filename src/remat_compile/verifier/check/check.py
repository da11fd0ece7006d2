"""A second opinion on every proof, from `spec/semantics.md` alone and from the text itself.

`check` reads the text, runs the machine once, adds up bytes and time, and tries the ranges of the
symbols by intervals. It shares nothing with the rest of the package.
"""

from collections.abc import Mapping
from itertools import accumulate
from math import inf
from typing import NamedTuple

from .clock import time_ns
from .graph import KEPT
from .machine import Machine
from .packs import approximate
from .read import CALLERS, Program, Wrong, read
from .sizes import Box, Search, Undecided, Values, span


class Bytes(NamedTuple):
    """Peaks: of the device, of activations there, of the host."""

    device: int
    activation: int
    host: int


class Accepted(NamedTuple):
    """The schedule is right. `undecided` says why nothing is known of all sizes in the ranges."""

    peak: Bytes  # at the sample
    time_ns: int
    least_time_ns: int  # no valid schedule of the graph takes less, nor fewer device bytes
    least_bytes: int
    approximate: frozenset[str] = frozenset()  # what lossy codecs change
    undecided: str = ""


class Refused(NamedTuple):
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
    axioms: Mapping[str, frozenset[tuple[str, int]]] | None = None,
) -> Accepted | Refused:
    """Is the schedule right at `at` (or the sample), its bytes within `bound` in all `ranges`?

    After `deadline` (of `time.monotonic`) the ranges stay undecided. `axioms` has codecs of others
    that are exact where they are read, at the places alone where there are some; what codecs that
    are neither known nor there give back is taken for approximate.
    """
    p, search = Program(), Search(deadline)
    p.axioms = dict(axioms or {})
    try:
        read(p, text, schedule)
        machine = Machine(p)
        machine.run()
        parts = counted(machine)
        values = {b: sample for b, (_, _, sample) in p.symbols.items()} | dict(at or {})
        box = {b: (n, n) for b, n in values.items()}
        keeps_sizes(p, box, search)
        size = rounded(p, {e: span(e, box).high for e in p.expressions()})
        accepted = Accepted(
            peaks(parts, size), time_ns(machine, size), *least(p, size), approximate(p)
        )
        if ranges is not None and bound is not None:
            keeps_sizes(p, box | dict(ranges), search)

            def fits(sizes: Values) -> bool:
                peak = peaks(parts, rounded(p, sizes))
                return all(n <= most for n, most in zip(peak, bound, strict=True))

            search.everywhere(box | dict(ranges), p.expressions(), fits, 10 * len(p.steps))
    except Undecided as why:
        return accepted._replace(undecided=str(why))
    except (Wrong, RecursionError, MemoryError, ValueError, LookupError) as error:
        return Refused(f"{error or 'this cannot be read'}", p.line)
    return accepted


def keeps_sizes(p: Program, box: Box, search: Search) -> None:
    """Values are sizes, and what takes over a storage has its size."""
    taken = [pair for c in p.nodes.values() for pair in c.takes_over(p.reads(c)).items()]
    pairs = {(p.size[a], p.size[b]) for a, b in taken}
    goals = [f"{x} {y} -" for a, b in pairs if a != b for x, y in ((a, b), (b, a))]
    for goal in (*goals, *p.least, *(f"0 {e} -" for e in p.expressions())):
        search.everywhere(box, [goal], lambda values: max(values.values()) <= 0)


def rounded(p: Program, values: Values) -> Values:
    """Bytes of each aNode, `host %a` if there, and of each workspace, in whole granules."""
    grain = p.target["granularity"]
    size = {e: -(-n // grain) * grain for e, n in values.items()}
    return size | {where + a: size[e] for a, e in p.size.items() for where in ("", "host ")}


def counted(machine: Machine) -> list[list[tuple[int, str]]]:
    """Bytes taken (1) and given back (-1), in order: of the device, activations, the host."""
    kinds = [machine.p.kind.get(a, "host" if "%" in a else "") for _, a in machine.changes]
    here, others = {*kinds} - {"host"}, {"host", "param_grad", "updated", *CALLERS}
    asked = (here, here - others, {"host"})
    return [[c for c, k in zip(machine.changes, kinds, strict=True) if k in of] for of in asked]


def peaks(parts: list[list[tuple[int, str]]], size: Values) -> Bytes:
    """The largest of what is there during each step: as bytes are taken before they are given
    back, the largest at any time."""
    taken = ([sign * size[name] for sign, name in part] for part in parts)
    return Bytes(*(max(accumulate(bytes_), default=0) for bytes_ in taken))


def least(p: Program, size: Values) -> tuple[int, int]:
    """Time and bytes that every valid schedule takes: it runs the loss, what draws, and who writes
    what must be written or what these read; their reads and results are there at once."""
    must = {a for a, kind in p.kind.items() if kind in (*KEPT, "pending")}
    time, floor = 0, 0
    for call in reversed(p.nodes.values()):
        if call.operator == "update":  # it may run on the host
            must |= {*p.reads(call)}
        elif call.token or call.phase == "loss" or must & {*call.results}:
            reads = p.reads(call)
            there = {a for a in reads if p.kind[a] not in CALLERS or a in p.homes}
            made = [] if call.takes_over(reads) else call.made()
            floor = max(floor, sum(size[a] for a in (*there, *made, call.workspace)))
            must |= there
            time += call.time_ns or 0
    return time, floor + sum(size[a] for a in p.held() if a in p.kind)
