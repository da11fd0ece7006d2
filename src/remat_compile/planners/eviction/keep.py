"""Takes back recomputations that the budget can do without.

A walk evicts when memory is short, and learns only later which of its evictions were
enough. This pass tries to leave out each recomputation of a finished order, the most
expensive first: the earlier instance of its results then lives on, which must fit
under the budget at every step between. Exact, by slices of the memory profile. Not taken
from a paper.

Four layers x1 = F0(x0) to x4 = F3(x3), each of 100 bytes; their backward reads both sides of its
layer. A walk under 500 bytes has run F0 (cNode 0) again twice: behind F2, for nothing, and
before B7. All kept, B5 and B6 take 600 bytes, 100 of them for x1; so the second must stay. The
first may go: x1 then lives on through F2, which had room.

    >>> walked = [0, 1, 2, 0, 3, 4, 5, 6, 0, 7, 8]
    >>> keep_what_fits(step, walked, 500)
    [0, 1, 2, 3, 4, 5, 6, 0, 7, 8]
    >>> max(step.profile(step.capture)), max(step.profile(keep_what_fits(step, walked, 500)))
    (600, 500)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from time import monotonic

import numpy as np

from ..instance import Instance, Order

_MOST_TOUCHED = 4_000_000_000
"""The pass ends after so many profile entries (a few seconds)."""


@dataclass(slots=True)
class _InstanceLife:
    """One instance of an aNode: written at `born`, read at `reads` (rising)."""

    anode: int
    born: int
    reads: list[int] = field(default_factory=list)
    before: _InstanceLife | None = None
    after: _InstanceLife | None = None
    ended: bool = False
    """True if an accumulate ends it: it cannot live on."""

    @property
    def last(self) -> int:
        return self.reads[-1] if self.reads else self.born


Change = tuple[int, int, int]
"""(from, to, bytes): add bytes to the profile from one position to another, exclusive."""


class _Plan:
    """An order with its instances; removed entries leave a hole (`order[p] < 0`).

    Only what the pass may change is held: the instances of what replays write or read, and per
    position of a replay those that it reads and writes.
    """

    def __init__(self, instance: Instance, order: Order, limit_bytes: int):
        self.instance = instance
        self.order = list(order)
        self.room = limit_bytes - instance.base_bytes
        self.profile = np.array(instance.profile(order), dtype=np.int64)
        self.again = bytearray(len(order))
        self.touched = 0
        self.runs_C: dict[int, list[int]] = {}
        """Positions of the runs of each cNode that has several."""
        self._find_runs()
        replays = [p for p, repeated in enumerate(self.again) if repeated]
        self.read_at: dict[int, list[_InstanceLife]] = {p: [] for p in replays}
        self.written_at: dict[int, list[_InstanceLife]] = {p: [] for p in replays}
        self._find_lives()

    def _find_runs(self) -> None:
        first_C = [-1] * len(self.instance.names_C)
        for p, c in enumerate(self.order):
            if first_C[c] < 0:
                first_C[c] = p
            else:
                self.again[p] = 1
                self.runs_C.setdefault(c, [first_C[c]]).append(p)

    def _find_lives(self) -> None:
        inst, nothing = self.instance, list[_InstanceLife]()
        moves_A = bytearray(len(inst.names_A))
        for c in self.runs_C:
            for a in (*inst.rereads_C[c], *inst.rewrites_C[c]):
                moves_A[a] = 1
        now: dict[int, _InstanceLife] = {}
        for p, c in enumerate(self.order):
            first = not self.again[p]
            read, written = self.read_at.get(p, nothing), self.written_at.get(p, nothing)
            for a in inst.reads_C[c] if first else inst.rereads_C[c]:
                if moves_A[a]:
                    now[a].reads.append(p)
                    if not first:
                        read.append(now[a])
            if (ended := now.get(inst.ends_C[c])) is not None:
                ended.ended = True
            for a in inst.writes_C[c] if first else inst.rewrites_C[c]:
                if not moves_A[a]:
                    continue
                life = _InstanceLife(a, p, before=now.get(a))
                if life.before is not None:
                    life.before.after = life
                if not first:
                    written.append(life)
                if not (inst.kept_A[a] and life.before is not None):
                    now[a] = life

    def unlink(self) -> None:
        """Leaves no cycle: the collector comes late for what may be as large as the graph."""
        for lives in self.written_at.values():
            for life in lives:
                life.before = life.after = None

    def leave_out(self, p: int) -> bool:
        """Leaves out the recomputation at `p`, and those that only it read, if that fits."""
        gone: list[int] = []
        changes: list[Change] = []
        undo: list[Callable[[], None]] = []
        if self._collect(p, gone, changes, undo):
            falls = [change for change in changes if change[2] < 0]
            rises = [change for change in changes if change[2] > 0 and change[0] < change[1]]
            for start, end, size in (*falls, *rises):
                self.profile[start:end] += size
                self.touched += end - start + 1000
            if all(self.profile[start:end].max() <= self.room for start, end, _ in rises):
                for q in gone:
                    self.order[q] = -1
                return True
            for start, end, size in (*falls, *rises):
                self.profile[start:end] -= size
        for back in reversed(undo):
            back()
        return False

    def _collect(
        self, p: int, gone: list[int], changes: list[Change], undo: list[Callable[[], None]]
    ) -> bool:
        """Edits the instances as if `p` were left out; False where that cannot be."""
        inst = self.instance
        queue = [p]
        while queue:
            q = queue.pop()
            gone.append(q)
            c = self.order[q]
            changes.append((q, q + 1, -inst.reworkspace_C[c]))
            self._token(c, q, changes, undo)
            for life in self.written_at[q]:
                if not self._merge(life, changes, undo):
                    return False
            for life in self.read_at[q]:
                self._unread(life, q, changes, undo)
                w = life.born
                unread = self.again[w] and not any(other.reads for other in self.written_at[w])
                if unread and w not in gone and w not in queue and self.order[w] >= 0:
                    queue.append(w)
        return True

    def _merge(
        self, life: _InstanceLife, changes: list[Change], undo: list[Callable[[], None]]
    ) -> bool:
        """The instance before `life` takes over its reads."""
        size = self.instance.size_A[life.anode]
        before, after = life.before, life.after
        p = life.born
        if self.instance.kept_A[life.anode]:
            changes.append((p, p + 1, -size))
            return True
        if before is None or (life.reads and before.ended):
            return False
        if life.reads:
            # From its last read to here the earlier instance now waits; from here on its bytes
            # take the place of those that were made again.
            changes.append((before.last + 1, p, size))
            old = before.reads
            moved = life.reads
            self._hand_over(life, before, moved)
            before.reads = old + moved
            undo.append(lambda: self._split(before, old, life, moved))
            life.reads = []
        else:
            changes.append((p, p + 1, -size))
        before.after = after
        ended = before.ended
        before.ended = ended or life.ended
        if after is not None:
            after.before = before

        def back() -> None:
            before.after, before.ended = life, ended
            if after is not None:
                after.before = life

        undo.append(back)
        return True

    def _split(
        self, before: _InstanceLife, old: list[int], life: _InstanceLife, moved: list[int]
    ) -> None:
        before.reads, life.reads = old, moved
        self._hand_over(before, life, moved)

    def _hand_over(self, one: _InstanceLife, other: _InstanceLife, reads: list[int]) -> None:
        """The reads of one instance are of the other; only those by replays are looked up."""
        for lives in filter(None, map(self.read_at.get, reads)):
            lives[lives.index(one)] = other

    def _unread(
        self, life: _InstanceLife, q: int, changes: list[Change], undo: list[Callable[[], None]]
    ) -> None:
        inst = self.instance
        old = life.reads
        last = life.last
        life.reads = [r for r in old if r != q]

        def back() -> None:
            life.reads = old

        undo.append(back)
        if last == q and not inst.kept_A[life.anode]:
            changes.append((life.last + 1, q + 1, -inst.size_A[life.anode]))

    def _token(self, c: int, q: int, changes: list[Change], undo: list[Callable[[], None]]) -> None:
        """The generator state lives from the first execution to the last, if there are two."""
        runs = self.runs_C[c]
        at = runs.index(q)
        del runs[at]
        undo.append(lambda: runs.insert(at, q))
        token = self.instance.token_C[c]
        if token < 0:
            return
        size = self.instance.size_A[token]
        if at == len(runs):
            changes.append((runs[-1] + 1, q + 1, -size))
        if len(runs) == 1:
            changes.append((runs[0], runs[0] + 1, -size))


def keep_what_fits(
    instance: Instance,
    order: Order,
    limit_bytes: int,
    weight_C: Sequence[float] = (),
    deadline: float = inf,
) -> Order:
    """`order` with as few recomputations as this pass can manage under the budget.

    `weight_C` scales how early the recomputations of a cNode are tried; the pass ends at the
    `deadline` (on the monotonic clock) at the latest.
    """
    plan = _Plan(instance, order, limit_bytes)

    def gain(p: int) -> float:
        c = plan.order[p]
        return (instance.retime_C[c] + 1) * (weight_C[c] if weight_C else 1.0)

    for p in sorted(plan.written_at, key=gain, reverse=True):
        if plan.touched > _MOST_TOUCHED or monotonic() > deadline:
            break
        if plan.order[p] >= 0:
            plan.leave_out(p)
    plan.unlink()
    return [c for c in plan.order if c >= 0]
