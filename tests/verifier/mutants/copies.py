"""Copies to the host and back: read too early, given back too early, or never issued."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from remat_compile.ir.program import Budget
from remat_compile.ir.schedule import (
    Compute,
    Free,
    HostFree,
    Offload,
    Prefetch,
    Wait,
)

from .case import Case, Edit, Mutant
from .offloaded import trips
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


@seeds("read before wait", copies=True)
def read_before_wait(case: Case, kind: str) -> Iterator[Mutant]:
    for trip in trips(case):
        edit = case.edit()
        edit.move_after(trip.back, trip.reader)
        code = _race(edit, trip.prefetch, trip.reader, "FB0860", "FB0850")
        words = f"%{trip.anode}"
        yield case.mutant(kind, edit, code, trip.reader, words=words)


@seeds("copy back never waited for", copies=True)
def never_waited(case: Case, kind: str) -> Iterator[Mutant]:
    for trip in trips(case):
        edit = case.edit()
        edit.drop(trip.back)
        code = _race(edit, trip.prefetch, trip.reader, "FB0860", "FB0850")
        words = f"%{trip.anode}"
        yield case.mutant(kind, edit, code, trip.reader, words=words)


@seeds("host buffer reused before the copy back ends", copies=True)
def host_reused(case: Case, kind: str) -> Iterator[Mutant]:
    for trip in trips(case):
        edit = case.edit()
        edit.move_after(trip.hostfree, trip.prefetch)
        code = _race(edit, trip.prefetch, trip.hostfree, "FB0862", "FB0851")
        yield case.mutant(kind, edit, code, trip.hostfree, words=f"%{trip.anode}")


@seeds("host buffer reused before the copy out ends", copies=True)
def host_reused_early(case: Case, kind: str) -> Iterator[Mutant]:
    for trip in trips(case):
        edit = case.edit()
        edit.move_after(trip.hostfree, trip.offload)
        code = _race(edit, trip.offload, trip.hostfree, "FB0862", "FB0851")
        yield case.mutant(kind, edit, code, trip.hostfree, words=f"%{trip.anode}")


@seeds("destination freed while the copy runs", copies=True)
def destination_freed(case: Case, kind: str) -> Iterator[Mutant]:
    for trip in trips(case):
        edit = case.edit()
        freed = edit.after(trip.prefetch, Free(trip.anode))
        code = _race(edit, trip.prefetch, freed, "FB0861", "FB0851")
        yield case.mutant(kind, edit, code, freed, words=f"%{trip.anode}")


@seeds("source freed while the copy runs", copies=True)
def source_freed(case: Case, kind: str) -> Iterator[Mutant]:
    for trip in trips(case):
        edit = case.edit()
        edit.move(trip.freed, before=trip.landed)
        code = _race(edit, trip.offload, trip.freed, "FB0861", "FB0851")
        yield case.mutant(kind, edit, code, trip.freed, words=f"%{trip.anode}")


@seeds("prefetch without offload", copies=True)
def no_offload(case: Case, kind: str) -> Iterator[Mutant]:
    for trip in trips(case):
        edit = case.edit()
        edit.drop(trip.offload)
        edit.drop(trip.landed)
        yield case.mutant(kind, edit, "FB0852", trip.prefetch, words=f"%{trip.anode}")


@seeds("host copy given back too early", copies=True)
def hostfree_early(case: Case, kind: str) -> Iterator[Mutant]:
    for trip in trips(case):
        edit = case.edit()
        edit.move(trip.hostfree, before=trip.prefetch)
        yield case.mutant(kind, edit, "FB0852", trip.prefetch, words=f"%{trip.anode}")


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
            for step in (Wait(name), HostFree(name), Free(name)):
                last = edit.after(last, step)
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


@seeds("two copies of one storage in flight", copies=True)
def double(case: Case, kind: str) -> Iterator[Mutant]:
    for trip in trips(case):
        edit = case.edit()
        second = edit.after(trip.offload, Offload(trip.anode))
        yield case.mutant(kind, edit, "FB0851", second, words=f"%{trip.anode}")


@seeds("offloaded again while the host holds it", copies=True)
def offloaded_again(case: Case, kind: str) -> Iterator[Mutant]:
    for trip in trips(case):
        edit = case.edit()
        second = edit.after(trip.landed, Offload(trip.anode))
        edit.after(second, Wait(trip.anode))
        yield case.mutant(kind, edit, "FB0855", second, words=f"%{trip.anode}")


@seeds("prefetch of what is alive", copies=True)
def prefetch_alive(case: Case, kind: str) -> Iterator[Mutant]:
    for trip in trips(case):
        edit = case.edit()
        edit.drop(trip.freed)
        yield case.mutant(kind, edit, "FB0854", trip.prefetch, words=f"%{trip.anode}")


@seeds("wait for no copy", copies=True)
def wait_for_nothing(case: Case, kind: str) -> Iterator[Mutant]:
    for trip in trips(case):
        edit = case.edit()
        second = edit.after(trip.back, Wait(trip.anode))
        yield case.mutant(kind, edit, "FB0856", second, words=f"%{trip.anode}")


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


@seeds("offload of what is freed", copies=True)
def offload_freed(case: Case, kind: str) -> Iterator[Mutant]:
    for trip in trips(case):
        edit = case.edit()
        edit.move(trip.freed, before=trip.offload)
        yield case.mutant(kind, edit, "FB0804", trip.offload, words=f"%{trip.anode}")


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
