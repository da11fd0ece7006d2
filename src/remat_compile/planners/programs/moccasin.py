"""`moccasin`: retention intervals in constraint programming (Bartan et al. 2023).

A job is a possible run of a cNode: its first, at its captured place, and `copies` - 1
replays, each at one of the places where it may be useful. Each run of the job that makes
an aNode begins an interval in which the aNode is retained; a run that reads it must lie in
one of them. Memory is a cumulative constraint over the places.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from math import gcd
from time import monotonic
from typing import Any, ClassVar

from ...ir.diagnostics import fail
from ..isolation.process import Message
from ..kit import Instance, Order, PlanResult, SearchPlanner, Task
from ..solvers.milp import Status
from ..solvers.solve import Worker
from ..spelling.options import at_least
from .answer import Incumbent, ProgramAnswer, conclude, reporter, too_large
from .events import PossibleRun, all_events, useful_pairs

_MOST = 300
_MODULE = "remat_compile.planners.solvers.cpsat:solve"


@dataclass(frozen=True)
class Moccasin(SearchPlanner):
    """Bartan et al. 2023: each cNode runs at most `copies` times, and each run retains its
    results for an interval. Solved by CP-SAT, which the extra `cpsat` installs. `backward`
    lets backward cNodes run again too."""

    name: ClassVar[str] = "moccasin"
    applicability: ClassVar[str] = "any graph of up to 300 cNodes; needs the extra cpsat"
    source: ClassVar[str] = "Bartan et al. 2023"
    copies: int = at_least(2, 2)
    backward: bool = False

    def search(self, task: Task) -> PlanResult:
        """As every planner. FB0410 where OR-Tools is not installed."""
        if find_spec("ortools") is None:
            hint = 'pip install "remat-compile[cpsat]", or use rk-checkmate'
            fail("FB0410", "moccasin needs OR-Tools, which is not installed", hint=hint, usage=True)
        refusal = too_large(task, _MOST, "use rockmate, polish or dtr")
        if refusal is not None:
            return refusal
        if task.instance.peak(task.instance.capture) <= task.limit_bytes:
            return task.answer(task.instance.capture)
        return conclude(task, self._solve(task))

    def _solve(self, task: Task) -> ProgramAnswer:
        inst = task.instance
        events = all_events(useful_pairs(inst, backward=self.backward))
        problem = _RetentionBuilder(inst, events, task.limit_bytes, self.copies).build()
        incumbent = Incumbent(inst, task.limit_bytes, reporter(self.name, inst, task.progress))
        status: list[str] = []

        def take(message: Message) -> bool:
            head, _ = message
            if head.get("last"):
                status.append(head["status"])
                return True
            incumbent.offer(problem.order(head["runs"]))
            return False

        with Worker(_MODULE) as worker:
            worker.ask(problem.request, {}, task.deadline - monotonic(), take)
        # With a limit on copies, its optimum bounds no other planner's.
        ended: Status = "infeasible" if status == ["infeasible"] else "feasible"
        return incumbent.answer(ended, inst.base_time_ns)


@dataclass(frozen=True)
class _Retention:
    """`request` is what `solvers.cpsat` reads; `cnode_J` names the cNode of each job."""

    request: dict[str, Any]
    cnode_J: list[int]

    def order(self, runs: list[int]) -> Order:
        """The cNodes by the places at which their jobs start (-1: does not run)."""
        placed = sorted((at, c) for at, c in zip(runs, self.cnode_J, strict=True) if at >= 0)
        return [c for _, c in placed]


@dataclass
class _RetentionBuilder:
    """The problem for at most `copies` runs of each cNode."""

    inst: Instance
    events: list[PossibleRun]
    limit_bytes: int
    copies: int
    jobs: list[dict[str, Any]] = field(default_factory=list)
    stores: list[dict[str, Any]] = field(default_factory=list)
    cnode_J: list[int] = field(default_factory=list)
    first_J: list[bool] = field(default_factory=list)
    stores_of_A: dict[int, list[int]] = field(default_factory=dict)

    def build(self) -> _Retention:
        inst = self.inst
        places: dict[int, list[int]] = {}
        first: dict[int, int] = {}
        for at, event in enumerate(self.events):
            if event.first:
                first[event.cnode] = at
            else:
                places.setdefault(event.cnode, []).append(at)
        pairs = []
        for c in range(len(inst.names_C)):
            self._job(c, [first[c]], first=True)
            last = -1
            for _ in range(self.copies - 1 if c in places else 0):
                self._job(c, places[c], first=False)
                if last >= 0:
                    pairs.append((last, len(self.jobs) - 1))
                last = len(self.jobs) - 1
        room = self.limit_bytes - inst.base_bytes
        sizes = [s["size"] for s in self.stores] + [j["workspace"] for j in self.jobs]
        unit = gcd(*sizes) or 1
        for item in self.stores:
            item["size"] //= unit
        for item in self.jobs:
            item["workspace"] //= unit
        request = {
            "horizon": len(self.events) - 1,
            "capacity": room // unit,
            "jobs": self.jobs,
            "stores": self.stores,
            "reads": self._reads(),
            "copies": pairs,
        }
        return _Retention(request, self.cnode_J)

    def _job(self, c: int, at: list[int], *, first: bool) -> None:
        inst = self.inst
        job = len(self.jobs)
        writes = inst.writes_C[c] if first else inst.rewrites_C[c]
        workspace = inst.workspace_C[c] if first else inst.reworkspace_C[c]
        ends = inst.ends_C[c] >= 0
        for a in writes:
            if inst.kept_A[a] and not first:
                workspace += inst.size_A[a]  # made a second time and dropped
                continue
            kept = inst.kept_A[a]
            self._store(a, job, ends, len(self.events) - 1 if kept else 0, lazy=False)
        if first and inst.token_C[c] >= 0:
            self._store(inst.token_C[c], job, False, 0, lazy=True)
        cost = 0 if first else inst.retime_C[c]
        self.jobs.append({"at": at, "cost": cost, "optional": not first, "workspace": workspace})
        self.cnode_J.append(c)
        self.first_J.append(first)

    def _store(self, a: int, job: int, ends: bool, least: int, *, lazy: bool) -> None:
        """`ends`: the storage is that of the aNode that an accumulate ends, so that during
        the accumulate it counts under its old name."""
        self.stores_of_A.setdefault(a, []).append(len(self.stores))
        size = self.inst.size_A[a]
        entry = {"job": job, "size": size, "shift": int(ends), "least": least, "lazy": lazy}
        self.stores.append(entry)

    def _reads(self) -> list[tuple[int, list[int]]]:
        inst = self.inst
        reads_of_jobs = []
        for job, (c, first) in enumerate(zip(self.cnode_J, self.first_J, strict=True)):
            token = inst.token_C[c]
            reads = inst.reads_C[c] if first else inst.rereads_C[c]
            if not first and token >= 0:
                reads = (*reads, token)
            reads_of_jobs += [(job, self.stores_of_A[a]) for a in reads]
        return reads_of_jobs
