"""Steps that are missing, too many, or in the wrong place."""

from __future__ import annotations

from collections.abc import Iterator

from remat_compile.ir.schedule import Compute

from .case import Case, Mutant, cases
from .registry import seeds


def _plain(case: Case, index: int) -> bool:
    """Whether a step computes, and is neither the loss, nor an accumulation, nor random."""
    c = case.events[index].cnode
    return c is not None and c.phase != "loss" and c.call.op != "accumulate" and c.token is None


@seeds("step dropped")
def step_dropped(case: Case, kind: str) -> Iterator[Mutant]:
    for life in case.lives:
        c = case.events[life.born].cnode
        assert c is not None
        plain = _plain(case, life.born) and case.total[c.name] == 1
        if plain and life.reads and case.kind[life.anode] != "pending":
            edit = case.edit()
            edit.drop(life.born)
            words = f"reads %{life.anode}"
            yield case.mutant(kind, edit, "FB0803", life.reads[0], words=words)


@seeds("recomputation dropped")
def recomputation_dropped(case: Case, kind: str) -> Iterator[Mutant]:
    for life in case.lives:
        if case.events[life.born].again and life.reads and not life.first:
            edit = case.edit()
            edit.drop(life.born)
            words = f"reads %{life.anode}"
            yield case.mutant(kind, edit, "FB0804", life.reads[0], words=words)


@seeds("step run again when its inputs are gone")
def step_duplicated(case: Case, kind: str) -> Iterator[Mutant]:
    end = len(case.steps)
    for event in case.events:
        c = event.cnode
        if c is None or event.again or not _plain(case, event.index):
            continue
        gone = [n for n in event.reads if n in case.last and n not in case.alive[end]]
        freed = [n for n in gone if case.last[n].freed]
        if freed and c.replay is None:
            edit = case.edit()
            second = edit.insert(Compute(c.name), before=None)
            yield case.mutant(kind, edit, "FB0804", second, words=f"reads %{freed[0]}")


@seeds("step run again and its result kept")
def step_repeated(case: Case, kind: str) -> Iterator[Mutant]:
    """All it reads is there: the values are right, and a storage is left behind."""
    end = len(case.steps)
    for event in case.events:
        c = event.cnode
        if c is None or not _plain(case, event.index) or c.replay is not None:
            continue
        made = [n for n in event.makes if case.last[n].freed]
        if made and case.needs_alive(list(event.reads), end):
            edit = case.edit()
            second = edit.insert(Compute(c.name), before=None)
            words = f"%{made[0]} is left behind"
            yield case.mutant(kind, edit, "FB0813", second, words=words)


@seeds("steps swapped across a dependency")
def steps_swapped(case: Case, kind: str) -> Iterator[Mutant]:
    for life in case.lives:
        if not life.reads or case.kind[life.anode] == "pending":
            continue
        reader = case.events[life.reads[0]]
        if reader.index == case.loss or case.kind[life.anode] == "rng":
            continue
        edit = case.edit()
        edit.move(reader.index, before=life.born)
        code = "FB0803" if life.first else "FB0804"
        before = [x for x in case.lives if x.anode == life.anode and x.born < life.born]
        if before and not (before[-1].freed or case.kind[life.anode] == "phantom"):
            code = "FB0805"
        words = f"reads %{life.anode}"
        yield case.mutant(kind, edit, code, reader.index, words=words)


@seeds("backward before the loss")
def backward_before_loss(case: Case, kind: str) -> Iterator[Mutant]:
    for life in case.lives:
        if life.born == case.loss and life.reads:
            edit = case.edit()
            edit.move(life.reads[0], before=case.loss)
            words = f"reads %{life.anode}"
            yield case.mutant(kind, edit, "FB0803", life.reads[0], words=words)


@seeds("loss twice")
def loss_twice(case: Case, kind: str) -> Iterator[Mutant]:
    edit = case.edit()
    second = edit.after(case.loss, case.steps[case.loss])
    yield case.mutant(kind, edit, "FB0811", second, words="runs more than once")


@seeds("loss never")
def loss_never(case: Case, kind: str) -> Iterator[Mutant]:
    edit = case.edit()
    edit.drop(case.loss)
    yield case.mutant(kind, edit, "FB0811", words="never runs the loss")


@seeds("computation of no graph")
def unknown(case: Case, kind: str) -> Iterator[Mutant]:
    for event in case.events:
        if event.cnode is not None:
            edit = case.edit()
            edit.change(event.index, Compute(f"{event.cnode.name}x"))
            yield case.mutant(
                kind, edit, "FB0801", event.index, words=f"no cNode {event.cnode.name}x"
            )


@seeds("plan of another graph")
def another_plan(case: Case, kind: str) -> Iterator[Mutant]:
    for other in cases():
        if other.has_copies or other.program.graph.name == case.program.graph.name:
            continue
        first = next(
            e.index
            for e in other.events
            if (e.cnode.name not in case.cnodes if e.cnode else e.frees[0] not in case.kind)
        )
        yield other.mutant(kind, None, "FB0801", first, program=case.program)
