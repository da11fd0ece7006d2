"""Sums of gradients: contributions that are missing, double, or in another order."""

from __future__ import annotations

from collections.abc import Iterator

from remat_compile.ir.schedule import Compute

from .case import Case, Event, Mutant
from .registry import seeds


def _sums(case: Case) -> Iterator[Event]:
    return (e for e in case.events if e.ends is not None)


@seeds("missing contribution")
def missing(case: Case, kind: str) -> Iterator[Mutant]:
    for event in _sums(case):
        (named,) = event.makes
        life = case.last[named]
        edit = case.edit()
        edit.drop(event.index)
        if life.reads:
            words = f"reads %{named}"
            yield case.mutant(kind, edit, "FB0803", life.reads[0], words=words)
        elif not life.freed:
            yield case.mutant(kind, edit, "FB0812", words=f"%{named} (")


@seeds("contribution left out of the sum")
def left_out(case: Case, kind: str) -> Iterator[Mutant]:
    """In a chain g1 -> g2 -> g3 the first link is dropped: the second finds no g2."""
    for event in _sums(case):
        (named,) = event.makes
        life = case.last[named]
        if life.end is not None and case.events[life.end].ends == named:
            edit = case.edit()
            edit.drop(event.index)
            yield case.mutant(kind, edit, "FB0803", life.end, words=f"reads %{named}")


@seeds("contribution twice")
def twice(case: Case, kind: str) -> Iterator[Mutant]:
    for event in _sums(case):
        edit = case.edit()
        second = edit.after(event.index, event.step)
        words = f"reads %{event.ends}, which has ended"
        yield case.mutant(kind, edit, "FB0805", second, words=words)


@seeds("sum made again beside the first")
def made_again(case: Case, kind: str) -> Iterator[Mutant]:
    """The partial sum is computed again and added to, under a name that is still alive."""
    for event in _sums(case):
        assert event.ends is not None
        (named,) = event.makes
        partial = next(e for e in reversed(case.events[: event.index]) if event.ends in e.makes)
        c = partial.cnode
        assert c is not None
        if partial.ends is not None or c.token is not None or c.replay is not None:
            continue
        edit = case.edit()
        key = edit.after(event.index, Compute(c.name))
        second = edit.after(key, event.step)
        # What both of them read is kept until then.
        wanted = {*partial.reads, *event.reads} - {event.ends}
        ends = {life.end: life for life in case.lives if life.anode in wanted}
        between = [e for e in case.events[partial.index : event.index + 1] if e.index in ends]
        if all(e.cnode is None for e in between):
            for e in between:
                edit.move_after(e.index, second)
            words = f"names a storage %{named}, but another %{named} is alive"
            yield case.mutant(kind, edit, "FB0810", second, words=words)


@seeds("order of a sum swapped")
def swapped(case: Case, kind: str) -> Iterator[Mutant]:
    for event in _sums(case):
        (named,) = event.makes
        life = case.last[named]
        if life.end is not None and case.events[life.end].ends == named:
            edit = case.edit()
            edit.move(life.end, before=event.index)
            yield case.mutant(kind, edit, "FB0803", life.end, words=f"reads %{named}")


@seeds("read of an ended partial sum")
def ended(case: Case, kind: str) -> Iterator[Mutant]:
    for event in _sums(case):
        assert event.ends is not None
        life = case.last[event.ends]
        readers = [i for i in life.reads if i != event.index]
        if readers:
            edit = case.edit()
            edit.move_after(readers[-1], event.index)
            words = f"reads %{event.ends}"
            yield case.mutant(kind, edit, "FB0805", readers[-1], words=words)
