"""Orders by recursion over balanced separators (Kumar et al. 2019, after a public implementation).

What is needed of a part of the graph is made in two steps. First, one after the other in
topological order, the needed cNodes of its separator: for each, what it reads in the parts that
the separator leaves is made by the same recursion, part by part, then the cNode runs, and what was
made for it goes. Then, with the separator held, what the caller needs of the parts themselves.
So at any time a separator of each level is held, and what one cNode reads beside it. The recursion
ends early where the plain order, each needed cNode once, fits beside what the callers hold.

Nodes are cNodes. The recursion is for nodes of which each may be computed again at any time. What
a step has beside, `Prerequisites` reads from the instance:

* what can run only once (the loss, sums, readers of what a sum ends), and what writes a result that
  stays (an output, a gradient of a parameter), need not be held by anyone: it *has run*, and the
  result is there until its last reader. So such reads are asked for once (`done_C`);
* random cNodes and the loss draw and run in the order of capture, readers of a sum before the
  addition that ends it, and before the loss whatever may not follow it: also in `done_C`;
* every cNode runs at least once: those that nobody reads are what is asked for at first.

Both relations are edges of the graph that is separated. So what a cNode of a part asks for outside
of it stands in a separator around it, before the cNode that the part is run for, and is there.

Four layers F0 to F3: F1, F2 and the backward B6 of F2 separate F0 and its backward from the last
layer and the loss. They run in order, B6 after the last layer, the loss and B5 have run for it. F0
has run for F1; for its own backward, with F1 still held, it runs again. B8 reads d1 alone.

    >>> needs = Prerequisites.of(step)
    >>> needs.held_C[6], needs.done_C[4]
    ((1, 2, 5), (3,))
    >>> tree = separator_tree(tree_decomposition(needs.neighbours()), needs.bytes_C)
    >>> tree.separator, [part.separator for part in tree.parts]
    ((1, 2, 6), [(0, 7), (3, 5)])
    >>> order = SeparatorOrder(needs, -1, 100).run(tree)
    >>> order, max(step.profile(order))
    ([0, 1, 2, 3, 4, 5, 6, 0, 7, 8], 500)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...ir.analysis.treewidth import Separated
from ..instance import Instance, Order


class OrderTooLong(Exception):
    """The order has more entries than it may."""


@dataclass(frozen=True)
class Prerequisites:
    """The requirements of each cNode before it runs, as rising lists of cNodes.

    `held_C`: what must have left its results in memory, before every execution. `done_C`: what
    must have run, before the first. `bytes_C`: what its results take that go when they are not
    held. `workspace_C` as in the instance.
    """

    held_C: list[tuple[int, ...]]
    done_C: list[tuple[int, ...]]
    bytes_C: list[int]
    workspace_C: list[int]

    @staticmethod
    def of(instance: Instance, *, backward: bool = True) -> Prerequisites:
        """Reads them from an instance. Without `backward`, backward cNodes run once."""
        inst = instance
        cnodes = range(len(inst.names_C))
        once_C = [
            not inst.makable_C[c]
            or (inst.phase_C[c] == "bwd" and not backward)
            or any(inst.writer_A[a] > c for a in inst.rereads_C[c])
            for c in cnodes
        ]
        stays_A = [
            w < 0 or once_C[w] or inst.kept_A[a] or a not in inst.rewrites_C[w]
            for a, w in enumerate(inst.writer_A)
        ]
        held: list[set[int]] = [set() for _ in cnodes]
        done = _before(inst)
        for c in cnodes:
            for a in (*inst.reads_C[c], *(() if once_C[c] else inst.rereads_C[c])):
                writer = inst.writer_A[a]
                if writer >= 0 and writer != c:
                    (done if stays_A[a] else held)[c].add(writer)
        sizes = (sum(inst.size_A[a] for a in inst.rewrites_C[c] if not stays_A[a]) for c in cnodes)
        return Prerequisites(
            [tuple(sorted(h)) for h in held],
            [tuple(sorted(d - h)) for d, h in zip(done, held, strict=True)],
            list(sizes),
            inst.workspace_C,
        )

    def neighbours(self) -> list[set[int]]:
        """The undirected graph of both relations."""
        near: list[set[int]] = [set() for _ in self.held_C]
        for c, (held, done) in enumerate(zip(self.held_C, self.done_C, strict=True)):
            for before in (*held, *done):
                near[c].add(before)
                near[before].add(c)
        return near

    def last(self) -> set[int]:
        """cNodes that none asks for."""
        asked = {c for before in (*self.held_C, *self.done_C) for c in before}
        return set(range(len(self.held_C))) - asked


def _before(inst: Instance) -> list[set[int]]:
    """The cNodes that must run before each cNode runs first, whether or not it reads them."""
    done = [set(after) for after in inst.after_C]
    drawn: int | None = None
    ended_by = {a: c for c, a in enumerate(inst.ends_C) if a >= 0}
    for c, phase in enumerate(inst.phase_C):
        if inst.token_C[c] >= 0 or c == inst.loss:
            done[c].update(() if drawn is None else (drawn,))
            drawn = c
        if c < inst.loss and (not inst.makable_C[c] or inst.replay_C[c]):
            done[inst.loss].add(c)
        if phase == "opt":
            done[c].update(range(c))
        for a in inst.reads_C[c]:
            if ended_by.get(a, c) != c:
                done[ended_by[a]].add(c)
    return done


class SeparatorOrder:
    """One order of at most so many entries. `plain_bytes` is what a plain order may take, with
    what its callers hold, so that the recursion ends there; below 0 it goes to the leaves.
    `check` is called again and again, and may raise."""

    def __init__(
        self,
        needs: Prerequisites,
        plain_bytes: float,
        most: int,
        check: Callable[[], None] = lambda: None,
    ):
        self.needs = needs
        self.plain_bytes = plain_bytes
        self.most = most
        self.check = check
        self.order: Order = []
        self.has_run = bytearray(len(needs.held_C))

    def run(self, whole: Separated) -> Order:
        """The order of the whole step. OrderTooLong where it is longer than `most`."""
        self._make(whole, set(), self.needs.last(), 0)
        return self.order

    def _make(self, part: Separated, hold: set[int], do: set[int], held_bytes: int) -> None:
        """Makes `hold` and leaves it in memory, and runs those of `do` that have not run."""
        self.check()
        needed = self._needed(part, hold, do)
        if not needed:
            return
        order = sorted(needed)
        if not part.parts or held_bytes + self._plain(order, hold) <= self.plain_bytes:
            self._emit(order)
            return
        for c in part.separator:
            if c in needed:
                missing = () if self.has_run[c] else self.needs.done_C[c]
                self._make_in_parts(part, self.needs.held_C[c], missing, held_bytes)
                self._emit([c])
                held_bytes += self.needs.bytes_C[c]
        self._make_in_parts(part, sorted(hold), sorted(do), held_bytes)

    def _make_in_parts(
        self, part: Separated, hold: Sequence[int], do: Sequence[int], held_bytes: int
    ) -> None:
        """The same for those of both that lie in the parts below, one part after the other."""
        asked: dict[int, tuple[set[int], set[int]]] = {}
        for wanted, cnodes in enumerate((hold, do)):
            for c in cnodes:
                if c in part.part_of:
                    asked.setdefault(part.part_of[c], (set(), set()))[wanted].add(c)
        for k, (held, done) in asked.items():
            self._make(part.parts[k], held, done, held_bytes)
            held_bytes += sum(self.needs.bytes_C[c] for c in held)

    def _needed(self, part: Separated, hold: set[int], do: set[int]) -> set[int]:
        """The cNodes of the part that must run; requirements outside of the part are met."""
        has_run, inside, needs = self.has_run, part.part_of, self.needs
        here = set(part.separator)
        walk = [*hold, *(c for c in do if not has_run[c])]
        needed = set(walk)
        for c in walk:
            missing = () if has_run[c] else needs.done_C[c]
            asked = (*needs.held_C[c], *(d for d in missing if not has_run[d]))
            for before in asked:
                if before not in needed and (before in inside or before in here):
                    needed.add(before)
                    walk.append(before)
        return needed

    def _plain(self, order: Sequence[int], hold: set[int]) -> int:
        """Bytes of a plain order: results go after their last reader in it, unless held."""
        last: dict[int, int] = {c: i for i, c in enumerate(order)}
        for i, c in enumerate(order):
            for before in self.needs.held_C[c]:
                if before in last:
                    last[before] = i
        going = [0] * (len(order) + 1)
        live = peak = 0
        for i, c in enumerate(order):
            live += self.needs.bytes_C[c]
            peak = max(peak, live + self.needs.workspace_C[c])
            going[len(order) if c in hold else last[c]] += self.needs.bytes_C[c]
            live -= going[i]
        return peak

    def _emit(self, order: Sequence[int]) -> None:
        if len(self.order) + len(order) > self.most:
            raise OrderTooLong
        self.order += order
        for c in order:
            self.has_run[c] = 1
