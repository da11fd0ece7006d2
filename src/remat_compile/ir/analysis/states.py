"""What must be alive on the way to one computation, by a search backwards over states.

`carried.py` looks at one moment. Before v runs for the first time, what it reads has to be made,
each thing while the others wait, and that may take more than v itself. Go back through any
schedule from there, with N the aNodes that are known to be alive. A step that makes none of N
leaves N as it is. One that makes some of it asks for what it reads instead: N becomes
N' = (N without its results) and its reads, and N' and all its results are alive during it. The loss
runs once, so no tangent is in N before it; after it the results that the caller holds are alive
too. At the start of the step N is empty. So the schedule takes at least the least, over all ways
back from v to nothing, of the most bytes on the way: a bottleneck shortest path. A replay form may
read other things than the first execution, so what does not depend on the loss by its first
execution may be alive before the loss or made with what the loss gives. Ways are followed
in the order of their bytes, so that where the search is cut short, the bytes of the next one are a
bound as well. What is left out (tokens of random numbers, what is carried for later) only makes the
bound lower. It holds whatever is run again, and in whatever order.

In `y = F2(a, b)`, `a = F0(x)`, `b = F1(x)`, where F0 takes a workspace of 300 bytes and a, b and y
take 100 each, F2 works on 300 bytes. Last before it runs F0, with b alive (500 bytes), or F1, with
a alive, which took 400 when it was made alone.

    >>> States(program, sizes, workspace, workspace).least_bytes("F2", 100)
    (400, 2)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heappop, heappush

from ..graph import CALLER_KINDS, CNode
from ..program import Program
from ..semantics.simulate import Sizes
from .liveness import BudgetKind, counted_sizes, held_bytes, lower_bound_bytes, required_cnodes

__all__ = ["States", "searched_bound_bytes"]

_CNODES = 400
"""On larger graphs states are not searched."""
_ROUNDS = ((1, 1_000), (2, 4_000), (4, 16_000))
"""In each round, which part of the computations (one in so many) is looked at, the most promising
ones, and with how many states: a second or two in all, in a graph of a hundred sums."""
_MOST = 40
"""Computations that are looked at in the first round, the last ones of the capture."""


def searched_bound_bytes(
    program: Program,
    kind: BudgetKind = "device",
    *,
    copies: bool = False,
) -> tuple[int, str]:
    """A bound at the sample as `lower_bound_bytes`, at least as high. It adds what must be alive on
    the way to each sum of gradients, and takes a second or two, on graphs of up to 400 cNodes."""
    if copies or len(program.graph.cnodes) > _CNODES:
        return lower_bound_bytes(program, kind, copies=copies)
    return _searched(replace(program, schedules=(), proven=()), kind)


@lru_cache(maxsize=4)
def _searched(program: Program, kind: BudgetKind) -> tuple[int, str]:
    best, where = lower_bound_bytes(program, kind)
    graph = program.graph
    sizes = Sizes.of(program)
    counted = counted_sizes(program, kind, sizes)
    held = held_bytes(program, kind, sizes)
    states = States(program, counted, sizes.workspace, sizes.replay_workspace)
    required = required_cnodes(graph)
    sums = [c.name for c in graph.cnodes if c.is_accumulate and c.name in required]
    shown = {name: (0, k) for k, name in enumerate(sums) if k >= len(sums) - _MOST}
    for part, most_states in _ROUNDS:
        chosen = sorted(shown, key=shown.__getitem__, reverse=True)
        for name in chosen[: -(-len(shown) // part)]:
            bound, _ = states.least_bytes(name, most_states, best - held)
            shown[name] = (bound, shown[name][1])
            if bound + held > best:
                best, where = bound + held, name
    return best, where


@dataclass(frozen=True)
class _Making:
    """What one way to run a cNode reads and makes, as bits of aNodes, and its workspace."""

    reads: int
    makes: int
    workspace: int
    ended: int = 0
    """Of an accumulate, the sum that it goes on with."""
    is_loss: bool = False


class States:
    """`size` is what each aNode counts; `workspace` and `again` what a first and another
    execution of each cNode take beside, in bytes."""

    def __init__(
        self,
        program: Program,
        size: Mapping[str, int],
        workspace: Mapping[str, int],
        again: Mapping[str, int],
    ):
        graph = self.graph = program.graph
        self.caller = {a.name for a in graph.anodes if a.kind in CALLER_KINDS}
        names = [a.name for a in graph.anodes if a.name not in self.caller]
        self.bit = {name: 1 << k for k, name in enumerate(names)}
        self.size_A = [size[name] for name in names]
        self.held = self._bits(program.held_since_loss)
        self.forms_A: list[list[_Making]] = [[] for _ in names]
        """The ways to make each aNode."""
        self.first: dict[str, _Making] = {}
        self.after_loss: set[str] = set()
        """What depends on the loss."""
        self.late = 0
        """What that makes: not alive before the loss, whatever replay forms read."""
        for c in graph.cnodes:
            self.first[c.name] = first = self._form(c, 1, workspace[c.name])
            forms = [first]
            if not c.is_loss and (form := self._form(c, 2, again[c.name])) != first:
                forms.append(form)
            for form in forms:
                for k in _places(form.makes):
                    self.forms_A[k].append(form)
            makers = {graph.writer[a].name for a in graph.reads(c) if a in graph.writer}
            if c.is_loss or makers & self.after_loss:
                self.after_loss.add(c.name)
                self.late |= first.makes

    def _bits(self, names: Collection[str]) -> int:
        return sum({self.bit[name] for name in names if name in self.bit})

    def _form(self, c: CNode, execution: int, workspace: int) -> _Making:
        reads = self.graph.reads(c, execution)
        ended = self._bits(reads[:1]) if c.is_accumulate else 0
        makes = self._bits(c.results_at(execution))
        return _Making(self._bits(reads), makes, workspace, ended, c.is_loss)

    def bytes_of(self, bits: int) -> int:
        return sum(self.size_A[k] for k in _places(bits))

    def least_bytes(self, name: str, most_states: int, known_bytes: int = 0) -> tuple[int, int]:
        """A lower bound on the peak of every schedule that runs this cNode, in bytes beside what
        the caller holds, and how many of `most_states` states were looked at. The bound is
        `known_bytes` where no more is shown."""
        form = self.first[name]
        starts = [(form.reads, True)]  # what the forward reads, the loss did not make
        if self.graph.cnode[name].phase not in ("fwd", "loss"):
            late = name in self.after_loss
            starts = [(form.reads | self.held, False), *(() if late else starts)]
        best: dict[tuple[int, bool], int] = {}
        queue: list[tuple[int, int, int, tuple[int, bool]]] = []
        for need, passed in starts:
            during = need if form.ended else need | form.makes
            bound = max(known_bytes, self.bytes_of(during) + form.workspace)
            best[need, passed] = bound
            heappush(queue, (bound, self.bytes_of(need), -len(best), (need, passed)))
        looked = 0
        while queue:
            key, _, _, state = heappop(queue)
            if best[state] < key:
                continue
            bound = key
            if not state[0] & ~(0 if state[1] else self.held) or looked >= most_states:
                break
            looked += 1
            for peak, after in self._before(key, state):
                if after not in best or peak < best[after]:
                    best[after] = peak
                    heappush(queue, (peak, self.bytes_of(after[0]), -len(best), after))
        return bound, looked

    def _before(self, key: int, state: tuple[int, bool]) -> Iterator[tuple[int, tuple[int, bool]]]:
        """The states that one making of something in this one leads back to, each with the most
        bytes on the way; a single one where that is no worse than any other."""
        need, passed = state
        open_ = need if passed else need & ~self.held
        forms = dict.fromkeys(form for k in _places(open_) for form in self.forms_A[k])
        made = [(form, self._undo(need, need if form.is_loss else open_, form)) for form in forms]
        after: list[tuple[int, tuple[int, bool]]] = []
        if not passed and not open_ & self.late:
            after.append((key, (need & ~self.late, True)))  # the loss made nothing of these
        for form, before in made:
            if (form.is_loss and passed) or form.ended & need & ~form.makes:
                continue
            during = before if form.ended else before | form.makes
            peak = max(key, self.bytes_of(during) + form.workspace)
            now = (before, passed or form.is_loss)
            if peak == key and not before & ~need and not form.is_loss:
                return iter([(peak, now)])  # less is asked for, at no price
            after.append((peak, now))
        return iter(after)

    @staticmethod
    def _undo(need: int, open_: int, form: _Making) -> int:
        return need & ~(open_ & form.makes) | form.reads


def _places(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
