"""The clock of a window's program: rows for times of copies and of waits.

Time is exact where the two ways of the link do not share it: T[b] is when boundary b is over,
copies of one way follow each other.

    T[b'] >= T[b] + what runs between them + issues
    out[g] >= out[one before] + s[g] O[g],  out[g] >= T[behind its making] + s[g] O[g]
    T[f] >= out[g] - M (1 - sum over f' <= f of y[g, f'])
    in[g] >= in[one before] + s[g] O[g],    in[g] >= T[i] + s[g] - M (1 - sum over i' >= i of z)
    T[where it is back] >= in[g]

and the end is minimised. Ways out go in the order in which tensors are made, ways back in that in
which they are read. A copy needs s[g], its latency included. What follows for whole tensors makes
the relaxation sharper: what left by f, and was made behind j, takes T[f] - T[j] of the link. Where
both ways share a link (`both`), only such rows speak of that, so the program may be too hopeful
there; the simulator has the last word.

Three tensors made at 10, 20 and 30 ns that take 15 each on the way out: they are gone at 25, 40 and
55. If the second is not moved, the third is gone at 45.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Literal

from ...ir.program import Target
from ..offload.copies.place import copy_ns
from .window_rows import WindowRows

_OUT, _GONE, _ISSUED, _BACK = range(4)
"""Moments of a boundary, in this order: copies out are issued; what left has left; copies back are
issued; what is read next is back."""

Moment = tuple[int, int]
"""A boundary and one of its moments."""
Linear = tuple[float, dict[int, float]]
"""A constant and terms."""


Way = Literal["out", "in", "both"]
"""Bandwidths and latency of the link; `both`: bytes by the total of a link that is shared, without
latency."""


class WindowClock:
    """States the rows of time on top of those of bytes; times are in units of `unit_ns`."""

    def __init__(self, rows: WindowRows, target: Target, cutoff_ns: int):
        inst, events, detours = rows.inst, rows.events, rows.detours
        self.on, self.target = rows, target
        self.unit_ns = max(1.0, cutoff_ns / 1000)
        self.most = (cutoff_ns - 1) / self.unit_ns
        self.event_ns = [(inst.time_C if e.first else inst.retime_C)[e.cnode] for e in events]
        certain = [0 if e.optional else t for e, t in zip(events, self.event_ns, strict=True)]
        self.certain_ns = [0, *accumulate(certain)]
        d2h, h2d = target.d2h_bytes_per_s, target.h2d_bytes_per_s
        self.takes: dict[Way, list[float]] = {
            "out": [copy_ns(g.size_bytes, d2h, target) / self.unit_ns for g in detours],
            "in": [copy_ns(g.size_bytes, h2d, target) / self.unit_ns for g in detours],
        }
        if (both := target.shared_bytes_per_s) is not None:
            unit = both * self.unit_ns / 1e9
            self.takes["both"] = [g.size_bytes / unit for g in detours]
        self.column: dict[Moment, int] = {}
        """T of the moments that matter."""

    def state(self) -> None:
        """All rows, and the end of the step as what is minimised."""
        self._moments()
        self._out()
        self._back()
        self._sharper()

    def _moments(self) -> None:
        """Columns of the moments that matter, and the computations and issues between them."""
        b, needed = self.on.builder, {(len(self.on.events), _BACK)}
        issues: dict[Moment, dict[int, float]] = defaultdict(dict)
        constant: dict[Moment, float] = defaultdict(float)
        each = self.target.copy_issue_ns / self.unit_ns
        for k, g in enumerate(self.on.detours):
            begin = (g.made + 1, _OUT)
            needed |= {begin, (g.back, _BACK)}
            needed |= {(f, _GONE) for f in g.frees} | {(i, _ISSUED) for i in g.issues}
            if g.fixed:
                constant[begin] += each
                constant[g.issues[0], _ISSUED] += each
            elif each:
                for column, _ in self.on.taken[k].terms:
                    issues[begin][column] = issues[begin].get(column, 0.0) + each
                for i, column in self.on.issues[k].items():
                    beside = issues[i, _ISSUED]
                    beside[column] = beside.get(column, 0.0) + each
        before: int | None = None
        at = 0
        for moment in sorted(needed):
            boundary = moment[0]
            certain = self.certain_ns[boundary]
            self.column[moment] = b.column(
                lower=certain / self.unit_ns,
                upper=self.most - (self.certain_ns[-1] - certain) / self.unit_ns,
                integer=False,
            )
            terms = [(self.column[moment], 1.0)]
            least = (certain - self.certain_ns[at]) / self.unit_ns + constant[moment]
            if before is not None:
                terms.append((before, -1.0))
            for e in range(at, boundary):
                if self.on.event_column[e] >= 0 and self.event_ns[e]:
                    terms.append((self.on.event_column[e], -self.event_ns[e] / self.unit_ns))
            terms += [(column, -ns) for column, ns in issues[moment].items()]
            b.row(terms, lower=least)
            before, at = self.column[moment], boundary
        assert before is not None
        b.price(before, 1.0)

    def _copy(self, way: Way, k: int) -> Linear:
        """Link time of a copy if its detour is taken."""
        takes, taken = self.takes[way][k], self.on.taken[k]
        return takes * taken.constant, {column: takes for column, _ in taken.terms}

    def _after(self, end: int, begin: int | None, copy: Linear) -> None:
        """Row: end >= begin + copy."""
        terms = [(end, 1.0), *((column, -ns) for column, ns in copy[1].items())]
        if begin is not None:
            terms.append((begin, -1.0))
        self.on.builder.row(terms, lower=copy[0])

    def _unless(
        self, later: int, earlier: int, least: float, chosen: Iterable[int], never: float = 0.0
    ) -> None:
        """Row: later >= earlier + least if one of these columns is 1; `later` is `never` below."""
        big = self.most + least - never
        terms = [(later, 1.0), (earlier, -1.0), *((column, -big) for column in chosen)]
        self.on.builder.row(terms, lower=least - big)

    def _out(self) -> None:
        rows, before = self.on, None
        turns = sorted(
            range(len(rows.detours)),
            key=lambda k: (rows.detours[k].made, rows.detours[k].anode),
        )
        for k in turns:
            g = rows.detours[k]
            end = rows.builder.column(upper=self.most, integer=False)
            copy = self._copy("out", k)
            self._after(end, before, copy)
            self._after(end, self.column[g.made + 1, _OUT], copy)
            if g.fixed:
                self._after(self.column[g.frees[0], _GONE], end, (0.0, {}))
            chosen: list[int] = []
            for f, column in sorted(rows.frees[k].items()):
                chosen.append(column)
                self._unless(
                    self.column[f, _GONE], end, 0.0, chosen, self.certain_ns[f] / self.unit_ns
                )
            before = end

    def _back(self) -> None:
        rows, before = self.on, None
        turns = sorted(
            range(len(rows.detours)),
            key=lambda k: (rows.detours[k].back, rows.detours[k].made, rows.detours[k].anode),
        )
        for k in turns:
            g = rows.detours[k]
            end = rows.builder.column(upper=self.most, integer=False)
            copy = self._copy("in", k)
            if before is not None:
                self._after(end, before, copy)
            if g.fixed:
                self._after(end, self.column[g.issues[0], _ISSUED], copy)
            chosen: list[int] = []
            for i, column in sorted(rows.issues[k].items(), reverse=True):
                chosen.append(column)
                self._unless(end, self.column[i, _ISSUED], self.takes["in"][k], chosen)
            self._after(self.column[g.back, _BACK], end, (0.0, {}))
            before = end

    def _sharper(self) -> None:
        """Rows for whole tensors implied by the rows above; they tighten the linear relaxation."""
        rows = self.on
        goings = sorted(m for m in self.column if m[1] == _GONE)
        issues = sorted(m for m in self.column if m[1] == _ISSUED)
        backs = sorted(m for m in self.column if m[1] == _BACK)
        starts = sorted(m for m in self.column if m[1] == _OUT)
        for end in goings:
            for begin in (None, *thinned(starts, 2)):
                if begin is None or begin < end:
                    self._busy(begin, end, self._left(begin, end))
        for begin in issues:
            for end in thinned(backs, 3):
                if begin < end:
                    self._busy(begin, end, self._came(begin, end))
        if self.target.shared_bytes_per_s is not None and rows.detours:
            self._shared(goings, issues, backs)

    def _shared(
        self, goings: Sequence[Moment], issues: Sequence[Moment], backs: Sequence[Moment]
    ) -> None:
        """Both ways together take at least their bytes by the total of the link."""
        begins: list[Moment | None] = [None, *thinned(issues, 5)]
        for begin in begins:
            for end in sorted({*thinned(goings, 4), *thinned(backs, 8)}):
                if begin is None or begin < end:
                    left, came = self._left(begin, end, "both"), self._came(begin, end, "both")
                    self._busy(begin, end, _sum(left, came))

    def _left(self, begin: Moment | None, end: Moment, way: Way = "out") -> Linear:
        """Copies out that begin and end in between."""
        total, terms = 0.0, dict[int, float]()
        for k, g in enumerate(self.on.detours):
            if begin is not None and (g.made + 1, _OUT) < begin:
                continue
            takes = self.takes[way][k]
            if g.fixed:
                total += takes * ((g.frees[0], _GONE) <= end)
            for f, column in self.on.frees[k].items():
                if (f, _GONE) <= end:
                    terms[column] = terms.get(column, 0.0) + takes
        return total, terms

    def _came(self, begin: Moment | None, end: Moment, way: Way = "in") -> Linear:
        """Copies back that begin and end in between."""
        total, terms = 0.0, dict[int, float]()
        for k, g in enumerate(self.on.detours):
            if (g.back, _BACK) > end:
                continue
            takes = self.takes[way][k]
            if g.fixed:
                total += takes * (begin is None or (g.issues[0], _ISSUED) >= begin)
            for i, column in self.on.issues[k].items():
                if begin is None or (i, _ISSUED) >= begin:
                    terms[column] = terms.get(column, 0.0) + takes
        return total, terms

    def _busy(self, begin: Moment | None, end: Moment, work: Linear) -> None:
        if work[0] or work[1]:
            start = None if begin is None else self.column[begin]
            self._after(self.column[end], start, work)


def thinned(moments: Sequence[Moment], count: int) -> list[Moment]:
    """About so many of them, the last one among them."""
    step = max(1, len(moments) // count)
    return list(moments[::-1][::step])[:count]


def _sum(one: Linear, other: Linear) -> Linear:
    terms = dict(one[1])
    for column, ns in other[1].items():
        terms[column] = terms.get(column, 0.0) + ns
    return one[0] + other[0], terms
