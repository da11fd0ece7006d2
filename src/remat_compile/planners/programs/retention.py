"""Moccasin's retention intervals (Bartan et al. 2023) for one of our graphs, as data.

A job is a possible run of a cNode: its first, at its captured place, and `copies` - 1
replays, each at one of the places where it may be useful. Each run of the job that makes
an aNode begins an interval in which the aNode is retained; a run that reads it must lie in
one of them. Memory is a cumulative constraint over the places.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import Any

from ..instance import Instance, Order
from .events import Event, all_events, useful_pairs

__all__ = ["Retention", "retention"]


@dataclass(frozen=True)
class Retention:
    """`request` is what `solvers/cpsat.py` reads; `cnode_J` names the cNode of each job."""

    request: dict[str, Any]
    cnode_J: list[int]

    def order(self, runs: list[int]) -> Order:
        """The cNodes by the places at which their jobs start (-1: does not run)."""
        placed = sorted((at, c) for at, c in zip(runs, self.cnode_J, strict=True) if at >= 0)
        return [c for _, c in placed]


def retention(instance: Instance, limit_bytes: int, copies: int, backward: bool) -> Retention:
    """The problem for at most `copies` runs of each cNode."""
    pairs = useful_pairs(instance, backward=backward)
    return _Builder(instance, all_events(pairs), limit_bytes, copies).build()


@dataclass
class _Builder:
    inst: Instance
    events: list[Event]
    limit_bytes: int
    copies: int
    jobs: list[dict[str, Any]] = field(default_factory=list)
    stores: list[dict[str, Any]] = field(default_factory=list)
    cnode_J: list[int] = field(default_factory=list)
    first_J: list[bool] = field(default_factory=list)
    stores_of_A: dict[int, list[int]] = field(default_factory=dict)

    def build(self) -> Retention:
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
        return Retention(request, self.cnode_J)

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
        found = []
        for job, (c, first) in enumerate(zip(self.cnode_J, self.first_J, strict=True)):
            token = inst.token_C[c]
            reads = inst.reads_C[c] if first else inst.rereads_C[c]
            if not first and token >= 0:
                reads = (*reads, token)
            found += [(job, self.stores_of_A[a]) for a in reads]
        return found
