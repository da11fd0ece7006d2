"""The best flat orders of a whole step under its budget, as the parts of `hiremate` find them."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from time import monotonic

from ..contract import Progress
from ..eviction.keep import keep_what_fits
from ..instance import Instance, Order
from ..programs.solve_compact import is_valid


@dataclass
class Candidates:
    """Orders under the budget, the fastest first; each with who found it."""

    instance: Instance
    limit_bytes: int
    deadline: float
    progress: Progress
    late: bool = False
    """True if the deadline ended a search early or skipped it."""
    entries: list[tuple[int, int, Order, str]] = field(default_factory=list)
    least: Order | None = None
    """The order of the least peak, whether it fits or not."""
    _least_bytes: int = 0
    _longest_s: float = 0.0
    """An order may take so long to look at: on 10^5 computations seconds, which must be left."""

    @property
    def best(self) -> Order | None:
        return self.entries[0][2] if self.entries else None

    def starts(self, most: int) -> list[Order]:
        """The best order of each finder, the fastest first, those of equal time once."""
        finders: dict[str, tuple[int, Order]] = {}
        for time_ns, _, order, finder in self.entries:
            if all(time_ns != known for known, _ in finders.values()):
                finders.setdefault(finder, (time_ns, order))
        return [order for _, order in finders.values()][:most]

    def offer(self, order: Order, finder: str, *, keep: bool = True) -> bool:
        """Takes an order in where it is valid and fits; whether it leads now. Where there is one,
        none is looked at for which the time up to the deadline is too short."""
        began = monotonic()
        if self.entries and began + self._longest_s > self.deadline:
            self.late = True
            return False
        leads = self._enter(order, finder, keep=keep)
        self._longest_s = max(self._longest_s, monotonic() - began)
        return leads

    def _enter(self, order: Order, finder: str, *, keep: bool) -> bool:
        inst = self.instance
        if not is_valid(inst, order):
            return False
        peak = inst.peak(order)
        if self.least is None or peak < self._least_bytes:
            self.least, self._least_bytes = order, peak
        if peak > self.limit_bytes:
            return False
        if keep:
            shorter = keep_what_fits(inst, order, self.limit_bytes, (), self.deadline)
            self.late = self.late or monotonic() > self.deadline
            order = shorter if inst.peak(shorter) <= self.limit_bytes else order
        time_ns = inst.time_ns(order)
        leads = not self.entries or time_ns < self.entries[0][0]
        insort(self.entries, (time_ns, len(self.entries), order, finder))
        if leads:
            base = inst.base_time_ns or 1
            self.progress(f"hiremate: {finder}, {time_ns / base:.4f} of the time without budget")
        return leads
