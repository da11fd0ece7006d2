"""Fusion after planning: runs of a schedule's computations become one fused cNode each.

What a run makes and frees again has no storage any more; what it makes and leaves alive is what
the fused cNode writes. So the recomputation of a forward value for one backward computation right
after it goes into the kernel of the latter:

    F2 again; B2; free %t; free %h      ->      B2 with %t = … inside; free %h

The result is another graph and a schedule of it: to be simulated and proven like any. Nothing is
fused that would exceed a given peak, nor what `price` does not find faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ..ir.analysis.regions import region_function
from ..ir.graph import CNode, Graph
from ..ir.program import Program
from ..ir.schedule import Compute, Free, Schedule, Step
from ..ir.semantics.simulate import simulate
from .region import CallsTime, Prepare, Price, Priced, RunMember, fused_cnode, price_key, with_fused
from .walk import Liveness, Peaks, is_plain, peaks_of

MOST_CALLS = 64
"""In one region: a kernel of more reads too much at once, and takes long to compile."""
GAIN = 0.03
"""The share of its time that a run must lose as a kernel where that saves no bytes: so much two
measurements differ by chance, and a kernel changes bits."""
LEAST_SHARE = 0.005
"""Share of the step's time that equal runs take together, or a computation by itself. Below it, no
kernel is compiled for them."""


@dataclass(frozen=True)
class Fused:
    """A program and its schedule, with what was fused: the cNodes' names in order."""

    program: Program
    schedule: Schedule
    cnodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _FusedRun:
    """Steps `start` to `end` (not included), and the executions among them."""

    start: int
    end: int
    members: tuple[RunMember, ...]

    @property
    def executions(self) -> tuple[tuple[str, int], ...]:
        return tuple((m.cnode.name, m.execution) for m in self.members)


_Asked = Sequence[tuple[_FusedRun, CNode | None]]


@dataclass
class _Decisions:
    """Runs that were found not to be fused: executions that stay alone, runs that are cut in
    two."""

    alone: set[tuple[str, int]] = field(default_factory=set)
    cut: set[tuple[tuple[str, int], ...]] = field(default_factory=set)


class Fusing:
    """Makes the same step with runs of it fused: `done` gives it, or the step as it was where no
    run is worth it. Prices are asked for from the start, so that kernels are compiled until then.

    `peaks`, of the device and of the activations in bytes, are not exceeded (left out: those of
    the schedule).
    `schedule` must be valid for `program`. `may_fuse` tells operators that a kernel compiler
    takes; random operators, replay forms, new buffer contents and the loss stay outside in any
    case. A sum in place is a plain sum inside, after which the term is freed.
    What has a price and is no faster is fused with `always` only. `prepare` is given the cNodes of
    which prices will be asked for next, `calls_ns` those that are fused already.
    """

    def __init__(
        self,
        program: Program,
        schedule: Schedule,
        may_fuse: Callable[[CNode], bool],
        price: Price,
        peaks: Peaks | None = None,
        always: bool = False,
        prepare: Prepare | None = None,
        calls_ns: CallsTime = lambda c: c.time_ns,
    ):
        self.always, self.calls_ns = always, calls_ns
        self.prepare: Prepare = prepare or (lambda _: None)
        self.program, self.graph = program, program.graph
        self.schedule, self.price = schedule, price
        self.steps: Sequence[Step] = schedule.steps
        self.peaks = peaks or peaks_of(program, schedule)
        self.prices: dict[str, Priced | None] = {}
        self.fusible = {c.name for c in self.graph.cnodes if is_plain(c, self.graph)}
        self.fusible = {name for name in self.fusible if may_fuse(self.graph.cnode[name])}
        runs = (step.cnode for step in schedule.steps if isinstance(step, Compute))
        self.step_ns = sum(self.graph.cnode[name].time_ns or 0 for name in runs)
        self._begin(_Decisions())

    def done(self) -> Fused:
        """The same step with runs of it fused. Ends, since every round takes runs apart."""
        decisions = _Decisions()
        while runs := self._runs(decisions):
            if self._conflicts(runs, decisions):
                continue
            made = self._rewritten(runs, decisions)
            if made is not None and not self._above_peak(made, runs, decisions):
                return made
        return Fused(self.program, self.schedule)

    # -- which steps -------------------------------------------------------------------

    def _runs(self, decisions: _Decisions) -> list[_FusedRun]:
        """The runs that are worth it, in order. Where one is not, what of its two parts is, after
        all others were asked for: so kernels are compiled beside each other."""
        accepted: list[_FusedRun] = []
        asked = self._begin(decisions)
        while asked:
            parts: list[_FusedRun] = []
            for run, c in asked:
                if c is not None and self._is_faster(run, c):
                    accepted.append(run)
                elif len(run.members) > 1:
                    parts += (part for part in self._parts(run) if len(part.members) > 1)
            asked = self._asked(parts, decisions)
        return sorted(accepted, key=lambda run: run.start)

    def _begin(self, decisions: _Decisions) -> _Asked:
        """The runs that are looked at first."""
        return self._asked(self._candidates(decisions.alone), decisions)

    def _asked(self, runs: Iterable[_FusedRun], decisions: _Decisions) -> _Asked:
        """Runs with the cNodes of which prices are to be asked, which are told before.

        Equal runs share a kernel. It is asked for where they take some time together.
        """
        asked = [(run, self._as_kernel(run, decisions)) for run in runs]
        if not self.always:
            spent: Counter[str] = Counter()
            for run, c in asked:
                if c is not None:
                    spent[_function_of(c)] += self._time_ns(run)
            least = LEAST_SHARE * self.step_ns
            asked = [
                (run, c if c is not None and spent[_function_of(c)] > least else None)
                for run, c in asked
            ]
        self.prepare([c for _, c in asked if c is not None and price_key(c) not in self.prices])
        return asked

    def _candidates(self, alone: set[tuple[str, int]]) -> Iterator[_FusedRun]:
        """The longest runs of executions that may be fused, frees between them included."""
        now = Liveness(self.graph)
        touched: set[str] = set()  # what the run at hand has made or freed
        members: list[RunMember] = []
        start = end = 0
        for index, step in enumerate(self.steps):
            if isinstance(step, Free):
                touched.add(step.anode)
                end = index + 1 if members else end
                now.step(step)
                continue
            member = self._member(index, step, now.executions, alone)
            made = set() if member is None else {*member.cnode.results}
            meets = not (made.isdisjoint(now.live) and made.isdisjoint(touched))
            if member is None or meets or len(members) == MOST_CALLS:
                if members:
                    yield _FusedRun(start, end, tuple(members))
                members = []
                touched.clear()
            if member is not None and made.isdisjoint(now.live):
                start = start if members else index
                members.append(member)
                end = index + 1
            now.step(step)
            if isinstance(step, Compute):
                c = self.graph.cnode[step.cnode]
                touched.update(c.results_at(now.executions[c.name]))
                touched.update(self.graph.reads(c)[:1] if c.is_accumulate else ())
        if members:
            yield _FusedRun(start, end, tuple(members))

    def _member(
        self, index: int, step: Step, executions: Counter[str], alone: set[tuple[str, int]]
    ) -> RunMember | None:
        """The execution at this step; None where it may not be fused."""
        if not isinstance(step, Compute) or step.cnode not in self.fusible:
            return None
        n = executions[step.cnode] + 1
        own = self.graph.cnode[step.cnode]
        return None if (step.cnode, n) in alone else RunMember(own, n, index)

    def _as_kernel(self, run: _FusedRun, decisions: _Decisions) -> CNode | None:
        """The run as one cNode, which is to be priced; None where it cannot or need not be one."""
        exported = self._exported(run)
        if not exported or run.executions in decisions.cut:
            return None
        if len(run.members) == 1:
            if not self._may_gain_alone(run.members[0], exported):
                return None
        elif {m.cnode.phase for m in run.members} != {"fwd"} and any(
            m.cnode.phase == "fwd" and not exported.isdisjoint(m.cnode.results) for m in run.members
        ):
            return None
        return self._cnode("fused", run, exported)

    def _may_gain_alone(self, member: RunMember, exported: set[str]) -> bool:
        """Return whether one computation is tried as a kernel: one that is a kernel already where
        it writes what is freed at once."""
        c = member.cnode
        if c.is_fused:
            return not exported.issuperset(c.results)
        return not c.is_accumulate and (c.time_ns_at(member.execution) > LEAST_SHARE * self.step_ns)

    def _parts(self, run: _FusedRun) -> tuple[_FusedRun, _FusedRun]:
        """Cut where the phase changes, else where the two parts have least in common, as near to
        the middle as can be."""
        members = run.members
        inside = range(1, len(members))
        changes = [i for i in inside if members[i].cnode.phase != members[i - 1].cnode.phase]
        common = _in_common(members, self.graph)
        at = (
            changes[0]
            if changes
            else min(inside, key=lambda i: (common[i], abs(2 * i - len(members))))
        )
        border = members[at].index
        return (
            _FusedRun(run.start, border, members[:at]),
            _FusedRun(border, run.end, members[at:]),
        )

    def _is_faster(self, run: _FusedRun, c: CNode) -> bool:
        now = self._time_ns(run)
        priced = self._priced(c)
        if priced is None:
            return False
        if len(run.members) == 1 and not run.members[0].cnode.is_fused:
            return priced.time_ns < (1 - GAIN) * now
        is_leaner = any(name not in c.results for m in run.members for name in m.cnode.results)
        return self.always or priced.time_ns < (now if is_leaner else (1 - GAIN) * now)

    @staticmethod
    def _time_ns(run: _FusedRun) -> int:
        """The time of its executions one after the other."""
        return sum(m.cnode.time_ns_at(m.execution) for m in run.members)

    def _cnode(self, name: str, run: _FusedRun, exported: set[str]) -> CNode:
        return fused_cnode(name, run.members, exported, self.program, self.calls_ns)

    def _priced(self, c: CNode) -> Priced | None:
        key = price_key(c)
        if key not in self.prices:
            self.prices[key] = self.price(c)
        return self.prices[key]

    def _exported(self, run: _FusedRun) -> set[str]:
        """Return the aNodes that the run makes and leaves alive."""
        now = Liveness(self.graph)
        for step in self.steps[run.start : run.end]:
            now.step(step)
        return now.live

    # -- one writer for each aNode -----------------------------------------------------

    def _conflicts(self, runs: list[_FusedRun], decisions: _Decisions) -> bool:
        """Return whether two cNodes would write one aNode; its makers are to stay alone then."""
        writers: dict[str, set[object]] = {}
        inside = {execution for run in runs for execution in run.executions}
        for run in runs:
            exported = self._exported(run)
            key = tuple(m.cnode.name for m in run.members), frozenset(exported)
            for name in exported:
                writers.setdefault(name, set()).add(key)
        executions: dict[str, int] = {}
        for step in self.steps:
            if isinstance(step, Compute):
                n = executions[step.cnode] = executions.get(step.cnode, 0) + 1
                if (step.cnode, n) not in inside:
                    for name in self.graph.cnode[step.cnode].results:
                        writers.setdefault(name, set()).add(step.cnode)
        several = {name for name, keys in writers.items() if len(keys) > 1}
        alone = {
            (m.cnode.name, m.execution)
            for run in runs
            for m in run.members
            if not several.isdisjoint(self._exported(run) & {*m.cnode.results})
        }
        decisions.alone |= alone
        return bool(alone)

    # -- the program -------------------------------------------------------------------

    def _rewritten(self, runs: list[_FusedRun], decisions: _Decisions) -> Fused | None:
        """The graph and schedule in which each run is one cNode. None where such a graph has no
        order, as when a run reads a sum and a term of it that was made again; it is cut then."""
        cnodes: dict[object, CNode] = {}
        names: list[str] = []
        steps: list[Step] = []
        at = 0
        for run in runs:
            exported = self._exported(run)
            key = tuple(m.cnode.name for m in run.members), frozenset(exported)
            if key not in cnodes:
                cnodes[key] = self._fused(run, exported, {c.name for c in cnodes.values()})
            c = cnodes[key]
            names.append(c.name)
            made = {name for m in run.members for name in m.cnode.results}
            read = {self.graph.storage[name] for name in c.call.refs()}
            freed = [s for s in self.steps[run.start : run.end] if isinstance(s, Free)]
            sums = (m.cnode for m in run.members if m.cnode.is_accumulate)
            freed += (Free(self.graph.reads(added)[0]) for added in sums)
            outside = [s for s in freed if s.anode not in made]
            steps += self.steps[at : run.start]
            steps += (s for s in outside if s.anode not in read)
            steps.append(Compute(c.name))
            steps += (s for s in outside if s.anode in read)
            at = run.end
        steps += self.steps[at:]
        schedule = replace(self.schedule, steps=tuple(steps))
        graph, unordered = with_fused(self.graph, tuple(cnodes.values()), schedule)
        if unordered:
            left = zip(runs, names, strict=True)
            decisions.cut.update(run.executions for run, name in left if name in unordered)
            return None
        program = replace(self.program, graph=graph, schedules=(), proven=())
        return Fused(program, schedule, tuple(c.name for c in cnodes.values()))

    def _fused(self, run: _FusedRun, exported: set[str], taken: set[str]) -> CNode:
        first, last = run.members[0].cnode.name, run.members[-1].cnode.name
        name = f"{first}_{last}"
        while name in taken or name in self.graph.cnode:
            name += "_"
        c = self._cnode(name, run, exported)
        priced = self._priced(replace(c, name="fused"))
        assert priced is not None
        return replace(c, time_ns=priced.time_ns, workspace=priced.workspace)

    def _above_peak(self, made: Fused, runs: list[_FusedRun], decisions: _Decisions) -> bool:
        """Return whether the peak would rise; the runs at fault are to be cut then."""
        trace = simulate(made.program, made.schedule)
        device, activation = self.peaks
        order = [
            i
            for i, step in enumerate(made.schedule.steps)
            if isinstance(step, Compute) and step.cnode in made.cnodes
        ]
        wrong = [
            run.executions
            for i, run in zip(order, runs, strict=True)
            if trace.during[i] > device or trace.during_activation[i] > activation
        ]
        decisions.cut.update(wrong)
        return bool(wrong)


def _function_of(c: CNode) -> str:
    """Return the text of what a fused cNode computes, which equal runs share."""
    return repr(region_function(c))


def _in_common(members: Sequence[RunMember], graph: Graph) -> list[int]:
    """Return for each place how many aNodes both sides read or make."""
    touched = [{*m.cnode.results, *graph.reads(m.cnode)} for m in members]
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for place, names in enumerate(touched):
        for name in names:
            first.setdefault(name, place)
            last[name] = place
    return [sum(first[n] < at <= last[n] for n in first) for at in range(len(members))]
