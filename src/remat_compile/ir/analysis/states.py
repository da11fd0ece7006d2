"""The values that must be alive on the way to one computation, by a backward search over states.

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
bound as well. It holds whatever is run again, and in whatever order.

From the loss on, what it depends on by first executions has run, and so have random cNodes that
stand before it: they are replayed, which reads their tokens, and these stay in N until first
executions make them. What v and what depends on it read later has then to come from tangents and
tokens, none of which is made again, so what is alive separates it from these (`carried.py`): each
step takes the least bytes of a separator that holds all that N says. Where a cNode may run in
either form, only reads that both have are edges, so this holds for replay forms with other reads.

In `y = F2(a, b)`, `a = F0(x)`, `b = F1(x)`, where F0 takes a workspace of 300 bytes and a, b and y
take 100 each, F2 works on 300 bytes. Last before it runs F0, with b alive (500 bytes), or F1, with
a alive, which took 400 when it was made alone.

    >>> States(program, sizes, workspace, workspace).least_bytes("F2", 100)
    (400, 2)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from heapq import heappop, heappush

from ..graph import CALLER_KINDS, CNode
from ..program import Program
from ..semantics.simulate import Sizes
from .carried import Carried, Separators
from .liveness import BudgetKind, counted_sizes, held_bytes, lower_bound_bytes, required_cnodes

_CNODES = 400
"""On larger graphs states are not searched."""
_ROUNDS = ((1, 1_000), (2, 4_000), (4, 16_000))
"""In each round, which part of the computations (one in so many) is looked at, the most promising
ones, and with how many states: a second or two in all, in a graph of a hundred sums."""
_SEPARATORS = 8
"""Limit on the states tried for one computation."""
_WITH_TOKENS = ((1, 100), (2, 400))
"""The rounds where separators are looked for: in graphs with random tokens."""
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
    for part, most_states in _WITH_TOKENS if states.has_tokens else _ROUNDS:
        chosen = sorted(shown, key=shown.__getitem__, reverse=True)
        for name in chosen[: -(-len(shown) // part)]:
            bound, _ = states.least_bytes(name, most_states, best - held)
            shown[name] = (bound, shown[name][1])
            if bound + held > best:
                best, where = bound + held, name
    return best, where


@dataclass(frozen=True)
class _Making:
    """The reads and results of one way to run a cNode, as bits of aNodes, and its workspace."""

    reads: int
    makes: int
    workspace: int
    token: int = 0
    """Its optional results."""
    ended: int = 0
    """The sum that an accumulate continues."""
    is_loss: bool = False


@dataclass(frozen=True)
class _Wanted:
    """The values known to be alive, and whether the loss is still to come."""

    need: int
    before_loss: bool

    def open(self, held: int) -> int:
        """The values to be made: after the loss without those `held` from it on."""
        return self.need if self.before_loss else self.need & ~held


@dataclass(frozen=True)
class _Step:
    """One that leads to a state, going back: what is known to be alive during it."""

    before: _Wanted
    during: int
    workspace: int
    after_loss: bool
    """Or the loss."""


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
        self.names_A = [a.name for a in graph.anodes if a.name not in self.caller]
        self.bit = {name: 1 << k for k, name in enumerate(self.names_A)}
        self.size_A = [size[name] for name in self.names_A]
        self.held = self.bits(program.held_since_loss)
        self.has_tokens = any(c.token is not None for c in graph.cnodes)
        self.carried = Carried(program, size, required_cnodes(graph))
        self.early_A: list[list[_Making]] = [[] for _ in self.names_A]
        """The ways to make each aNode before the loss."""
        self.late_A: list[list[_Making]] = [[] for _ in self.names_A]
        """And from the loss on: of what has run by then, replays."""
        self.first: dict[str, _Making] = {}
        self.after_loss: set[str] = set()
        """The cNodes that depend on the loss."""
        self.late = 0
        """The results of these: not alive before the loss, whatever replay forms read."""
        done = self.carried.done(self.carried.place[graph.loss.name])
        for k, c in enumerate(graph.cnodes):
            self.first[c.name] = first = self._form(c, 1, workspace[c.name])
            replay = self._form(c, 2, again[c.name])
            ran = done >> k & 1
            self._add(self.early_A, [] if c.is_loss else [first, replay])
            self._add(self.late_A, [first] if c.is_loss else [replay] if ran else [first, replay])
            makers = {graph.writer[a].name for a in graph.reads(c) if a in graph.writer}
            if c.is_loss or makers & self.after_loss:
                self.after_loss.add(c.name)
                self.late |= first.makes | first.token

    @staticmethod
    def _add(forms_A: list[list[_Making]], forms: Iterable[_Making]) -> None:
        for form in dict.fromkeys(forms):
            for k in _places(form.makes | form.token):
                forms_A[k].append(form)

    def bits(self, names: Collection[str]) -> int:
        return sum({self.bit[name] for name in names if name in self.bit})

    def _form(self, c: CNode, execution: int, workspace: int) -> _Making:
        reads = self.graph.reads(c, execution)
        return _Making(
            self.bits(reads if execution == 1 or c.token is None else (*reads, c.token)),
            self.bits(c.results_at(execution)),
            workspace,
            self.bits([c.token] if execution == 1 and c.token is not None else []),
            self.bits(reads[:1]) if c.is_accumulate else 0,
            c.is_loss,
        )

    def bytes_of(self, bits: int) -> int:
        return sum([self.size_A[k] for k in _places(bits)])

    def least_bytes(self, name: str, most_states: int, known_bytes: int = 0) -> tuple[int, int]:
        """A lower bound on the peak of every schedule that runs this cNode, in bytes beside what
        the caller holds, and how many states were looked at, `most_states` at most. The bound is
        `known_bytes` where no more is shown."""
        form = self.first[name]
        beside = _Beside(self, name)
        starts = [_Wanted(form.reads, before_loss=True)]  # of the forward, the loss made none
        if self.graph.cnode[name].phase not in ("fwd", "loss"):
            late = _Wanted(form.reads | self.held, before_loss=False)
            starts = [late, *(() if name in self.after_loss else starts)]
        queue: list[tuple[int, int, int, _Wanted, _Step | None]] = []
        pushed = 0
        for start in starts:
            during = start.need if form.ended else start.need | form.makes
            first = _Step(start, during, form.workspace, after_loss=not start.before_loss)
            bound = beside.most_bytes(first, known_bytes)
            pushed += 1
            heappush(queue, (bound, self.bytes_of(start.need), -pushed, start, None))
        looked: set[_Wanted] = set()
        while queue:
            bound, size, _, state, step = heappop(queue)
            if not state.open(self.held) or len(looked) >= most_states:
                break
            if state in looked:
                continue
            if step is not None and (most := beside.most_bytes(step, bound)) > bound:
                pushed += 1
                heappush(queue, (most, size, -pushed, state, None))
                continue
            looked.add(state)
            for least, step in self._steps(state, bound, beside):
                if step.before not in looked:
                    pushed += 1
                    entry = (least, self.bytes_of(step.before.need), -pushed, step.before, step)
                    heappush(queue, entry)
        return bound, len(looked)

    def _steps(self, state: _Wanted, bound: int, beside: _Beside) -> Iterable[tuple[int, _Step]]:
        """The cNodes that make a value of this state, each with a lower bound on the peak; a
        single one if it dominates."""
        forms_A = self.early_A if state.before_loss else self.late_A
        forms = dict.fromkeys(form for k in _places(state.open(self.held)) for form in forms_A[k])
        steps = []
        if not state.before_loss and not state.open(self.held) & self.late:
            passed = _Wanted(state.need & ~self.late, before_loss=True)
            steps.append((bound, _Step(passed, 0, 0, after_loss=False)))  # the loss made none
        for form in forms:
            if form.ended & state.need & ~form.makes:
                continue
            step = self._back(state, form)
            most = self.bytes_of(step.during) + step.workspace
            less = not step.before.need & ~state.need and not form.is_loss
            if less and most <= bound and beside.most_bytes(step, bound) <= bound:
                return [(bound, step)]  # less is asked for, at no price
            steps.append((max(bound, most), step))
        return steps

    def _back(self, state: _Wanted, form: _Making) -> _Step:
        made = form.makes | form.token & state.need
        after_loss = not state.before_loss
        kept = self.held if after_loss and not form.is_loss else 0
        before = state.need & ~(made & ~kept) | form.reads
        during = before if form.ended else before | made
        earlier = _Wanted(before, form.is_loss or state.before_loss)
        return _Step(earlier, during, form.workspace, after_loss=after_loss)


class _Beside:
    """The values alive for later reads, from the loss to the first execution of a cNode."""

    def __init__(self, states: States, name: str):
        self.states = states
        self.separators = Separators(states.carried, name)
        self.known: list[int] = []
        """Separators, the last one that was enough first."""

    def most_bytes(self, step: _Step, enough: int) -> int:
        """The least bytes that a step takes, or `enough` where it is no more than that."""
        if not step.after_loss or not self.states.has_tokens:
            return max(enough, self.states.bytes_of(step.during) + step.workspace)
        for bits in self.known:
            if self.states.bytes_of(bits | step.during) + step.workspace <= enough:
                self.known.remove(bits)
                self.known.insert(0, bits)
                return enough
        names = [self.states.names_A[k] for k in _places(step.during)]
        bits = self.states.bits(self.separators.least_with(names))
        self.known = [bits, *self.known[: _SEPARATORS - 1]]
        return max(enough, self.states.bytes_of(bits) + step.workspace)


def _places(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
