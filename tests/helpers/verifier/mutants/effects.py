"""Random operators and buffers: drawn twice, drawn elsewhere, updated late or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from .case import Case, Mutant
from .registry import seeds


def _first_runs(case: Case) -> list[int]:
    """Where each random operator and the loss runs first, in the order of the graph."""
    first = {e.cnode.name: e.index for e in case.events if e.cnode is not None and e.execution == 1}
    stream = [c.name for c in case.cnodes.values() if c.token is not None or c.phase == "loss"]
    return [first[name] for name in stream]


def _runs(case: Case, index: int) -> list[int]:
    c = case.events[index].cnode
    return [e.index for e in case.events if e.cnode is c]


@seeds("random state freed before its replay")
def token_freed(case: Case, kind: str) -> Iterator[Mutant]:
    for life in case.lives:
        if case.kind[life.anode] == "rng" and life.freed and life.reads:
            assert life.end is not None
            edit = case.edit()
            edit.move(life.end, before=life.reads[-1])
            words = f"draws again, but its random state %{life.anode}"
            yield case.mutant(kind, edit, "FB0806", life.reads[-1], words=words)


@seeds("redrawn in the backward")
def redrawn(case: Case, kind: str) -> Iterator[Mutant]:
    """The first run is left out, so that the run in the backward draws for the first time."""
    for index in _first_runs(case):
        c = case.events[index].cnode
        assert c is not None
        runs = _runs(case, index)
        if c.phase != "loss" and len(runs) > 1 and runs[1] > case.loss:
            yield _late(case, kind, index)


def _late(case: Case, kind: str, index: int) -> Mutant:
    """Whatever draws next in the order of the graph runs before it."""
    edit = case.edit()
    edit.drop(index)
    stream = _first_runs(case)
    following = stream[stream.index(index) + 1]
    c = case.events[index].cnode
    assert c is not None
    return case.mutant(kind, edit, "FB0815", following, words=f"runs first before {c.name}")


@seeds("first draws reordered")
def reordered(case: Case, kind: str) -> Iterator[Mutant]:
    stream = _first_runs(case)
    for one, two in pairwise(stream):
        first = case.events[one].cnode
        assert first is not None
        if [i for i in _runs(case, one) if one < i < two]:
            continue
        edit = case.edit()
        edit.move_after(one, two)
        words = f"runs first before {first.name}"
        yield case.mutant(kind, edit, "FB0815", two, words=words)


@seeds("random operator never runs")
def never_drawn(case: Case, kind: str) -> Iterator[Mutant]:
    for index in _first_runs(case):
        c = case.events[index].cnode
        assert c is not None
        if c.phase != "loss":
            edit = case.edit()
            for run in _runs(case, index):
                edit.drop(run)
            yield case.mutant(kind, edit, "FB0816", words=f"{c.name} draws random numbers")


@seeds("buffer read after its update")
def stale_buffer(case: Case, kind: str) -> Iterator[Mutant]:
    """A computation that reads old contents runs when the new ones are written back."""
    updated = {case.base[b.name] for b in case.program.binding.buffers if b.update is not None}
    for event in case.events:
        old = [n for n in event.reads if n in updated]
        if old and event.index < case.loss:
            edit = case.edit()
            edit.move_after(event.index, case.loss)
            words = f"reads buffer %{old[0]} after"
            yield case.mutant(kind, edit, "FB0807", event.index, words=words)


@seeds("buffer never updated")
def not_updated(case: Case, kind: str) -> Iterator[Mutant]:
    for life in case.lives:
        if case.kind[life.anode] == "pending" and life.freed:
            assert life.end is not None
            edit = case.edit()
            edit.move(life.end, before=case.loss)
            words = f"the buffer contents %{life.anode} to write back"
            yield case.mutant(kind, edit, "FB0814", case.loss, words=words)
