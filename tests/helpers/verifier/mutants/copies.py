"""Copies to the host and back: read too early, given back too early, or never issued."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from remat_compile.ir.program import Budget
from remat_compile.ir.schedule import Compute, Free, HostFree, Offload, Prefetch, Wait

from .case import Case, Edit, Mutant
from .offloaded import Trip, trips
from .registry import seeds


def _race(edit: Edit, issued: int, use: int, racing: str, resting: str) -> str:
    """`racing`, or `resting` where the copy has ended all the same: a later copy of its
    direction, which comes after it, was waited for."""
    steps = [step for _, step in edit.items]
    start, stop = edit.at(issued), edit.at(use)
    lane = type(steps[start])
    later: set[str] = set()
    for step in steps[start + 1 : stop]:
        if isinstance(step, lane):
            later.add(step.anode)  # type: ignore[union-attr]
        elif isinstance(step, Wait) and step.anode in later:
            return resting
    return racing


Seed = Callable[[Edit, Trip], tuple[str, int]]
"""Breaks one trip; the code that must be told, and the key of the step where."""


def once_per_trip(name: str) -> Callable[[Seed], Seed]:
    """Registers a fault that can be seeded into every trip of a plan."""

    def register(seed: Seed) -> Seed:
        @seeds(name, copies=True)
        def generate(case: Case, kind: str) -> Iterator[Mutant]:
            for trip in trips(case):
                edit = case.edit()
                code, key = seed(edit, trip)
                yield case.mutant(kind, edit, code, key, words=f"%{trip.anode}")

        return seed

    return register


@once_per_trip("read before wait")
def read_before_wait(edit: Edit, trip: Trip) -> tuple[str, int]:
    edit.move_after(trip.back, trip.reader)
    return _race(edit, trip.prefetch, trip.reader, "FB0860", "FB0850"), trip.reader


@once_per_trip("copy back never waited for")
def never_waited(edit: Edit, trip: Trip) -> tuple[str, int]:
    edit.drop(trip.back)
    return _race(edit, trip.prefetch, trip.reader, "FB0860", "FB0850"), trip.reader


@once_per_trip("host buffer reused before the copy back ends")
def host_reused(edit: Edit, trip: Trip) -> tuple[str, int]:
    edit.move_after(trip.hostfree, trip.prefetch)
    return _race(edit, trip.prefetch, trip.hostfree, "FB0862", "FB0851"), trip.hostfree


@once_per_trip("host buffer reused before the copy out ends")
def host_reused_early(edit: Edit, trip: Trip) -> tuple[str, int]:
    edit.move_after(trip.hostfree, trip.offload)
    return _race(edit, trip.offload, trip.hostfree, "FB0862", "FB0851"), trip.hostfree


@once_per_trip("destination freed while the copy runs")
def destination_freed(edit: Edit, trip: Trip) -> tuple[str, int]:
    freed = edit.after(trip.prefetch, Free(trip.anode))
    return _race(edit, trip.prefetch, freed, "FB0861", "FB0851"), freed


@once_per_trip("source freed while the copy runs")
def source_freed(edit: Edit, trip: Trip) -> tuple[str, int]:
    edit.move(trip.freed, before=trip.landed)
    return _race(edit, trip.offload, trip.freed, "FB0861", "FB0851"), trip.freed


@once_per_trip("prefetch without offload")
def no_offload(edit: Edit, trip: Trip) -> tuple[str, int]:
    edit.drop(trip.offload)
    edit.drop(trip.landed)
    return "FB0852", trip.prefetch


@once_per_trip("host copy given back too early")
def hostfree_early(edit: Edit, trip: Trip) -> tuple[str, int]:
    edit.move(trip.hostfree, before=trip.prefetch)
    return "FB0852", trip.prefetch


@seeds("stale host copy after a sum", copies=True)
def stale(case: Case, kind: str) -> Iterator[Mutant]:
    for event in case.events:
        if event.ends is not None:
            name = event.ends
            edit = case.edit()
            for step in (Offload(name), Wait(name)):
                edit.insert(step, before=event.index)
            key = edit.after(event.index, Prefetch(name))
            last = key
            for ending in (Wait(name), HostFree(name), Free(name)):
                last = edit.after(last, ending)
            yield case.mutant(kind, edit, "FB0853", key, words=f"%{name}")


@seeds("sum while a copy of it runs", copies=True)
def sum_during_copy(case: Case, kind: str) -> Iterator[Mutant]:
    for event in case.events:
        if event.ends is not None:
            name = event.ends
            edit = case.edit()
            edit.insert(Offload(name), before=event.index)
            last = edit.after(event.index, Wait(name))
            edit.after(last, HostFree(name))
            yield case.mutant(kind, edit, "FB0861", event.index, words=f"%{name}")


@once_per_trip("two copies of one storage in flight")
def double(edit: Edit, trip: Trip) -> tuple[str, int]:
    second = edit.after(trip.offload, Offload(trip.anode))
    return "FB0851", second


@once_per_trip("offloaded again while the host holds it")
def offloaded_again(edit: Edit, trip: Trip) -> tuple[str, int]:
    second = edit.after(trip.landed, Offload(trip.anode))
    edit.after(second, Wait(trip.anode))
    return "FB0855", second


@once_per_trip("prefetch of what is alive")
def prefetch_alive(edit: Edit, trip: Trip) -> tuple[str, int]:
    edit.drop(trip.freed)
    return "FB0854", trip.prefetch


@once_per_trip("wait for no copy")
def wait_for_nothing(edit: Edit, trip: Trip) -> tuple[str, int]:
    second = edit.after(trip.back, Wait(trip.anode))
    return "FB0856", second


@seeds("copy in flight at the end", copies=True)
def in_flight_at_end(case: Case, kind: str) -> Iterator[Mutant]:
    for name, sort in case.kind.items():
        if sort == "param_grad":
            edit = case.edit()
            edit.insert(Offload(name), before=None)
            words = f"a copy of %{name} is in flight at the end"
            yield case.mutant(kind, edit, "FB0857", words=words)


@seeds("host copy left behind", copies=True)
def host_left(case: Case, kind: str) -> Iterator[Mutant]:
    for trip in trips(case):
        edit = case.edit()
        edit.drop(trip.hostfree)
        words = f"the host copy of %{trip.anode} is left at the end"
        yield case.mutant(kind, edit, "FB0858", words=words)


@seeds("offload of a parameter", copies=True)
def offload_of_parameter(case: Case, kind: str) -> Iterator[Mutant]:
    for name, sort in case.kind.items():
        if sort == "param":
            edit = case.edit()
            key = edit.insert(Offload(name), before=case.loss)
            last = edit.after(key, Wait(name))
            edit.after(last, HostFree(name))
            yield case.mutant(kind, edit, "FB0859", key, words=f"%{name}")


@seeds("computed again while a copy of it runs", copies=True)
def recomputed(case: Case, kind: str) -> Iterator[Mutant]:
    for trip in trips(case):
        writer = next(e for e in case.events if trip.anode in e.makes)
        c = writer.cnode
        assert c is not None
        names = [*writer.reads, *writer.makes]
        if c.token is None and c.replay is None and case.needs_alive(names, trip.offload):
            edit = case.edit()
            key = edit.after(trip.offload, Compute(c.name))
            code = _race(edit, trip.offload, key, "FB0861", "FB0851")
            yield case.mutant(kind, edit, code, key, words=f"%{trip.anode}")


@once_per_trip("offload of what is freed")
def offload_freed(edit: Edit, trip: Trip) -> tuple[str, int]:
    edit.move(trip.freed, before=trip.offload)
    return "FB0804", trip.offload


@seeds("device peak over by one byte, with copies", copies=True)
def peak_with_copies(case: Case, kind: str) -> Iterator[Mutant]:
    from .memory import device_byte

    return device_byte(case, kind)


@seeds("host bytes over by one", copies=True)
def host_byte(case: Case, kind: str) -> Iterator[Mutant]:
    during = case.run.host
    peak = max(during)
    at = [i for i, size in enumerate(during) if size == peak]
    budgets = (Budget(peak - 1, "host"),)
    yield case.mutant(kind, None, "FB0863", *at, words="1 byte", budgets=budgets)


@seeds("host smaller than the plan", "graph", copies=True)
def host_too_small(case: Case, kind: str) -> Iterator[Mutant]:
    during = case.run.host
    peak = max(during)
    at = [i for i, size in enumerate(during) if size == peak]
    target = replace(case.program.target, host_bytes=peak - 1)
    made = replace(case.program, target=target)
    yield case.mutant(kind, None, "FB0863", *at, program=made)
