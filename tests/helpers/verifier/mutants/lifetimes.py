"""Frees that come too early, twice, never, or of what is not the plan's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from remat_compile.ir.schedule import Compute, Free

from .case import CALLER, Case, Life, Mutant
from .registry import seeds


def _early(case: Case, kind: str, wanted: str) -> Iterator[Mutant]:
    """A free moved before the last step that reads what it frees."""
    for life in case.lives:
        if not life.freed or not life.reads or case.kind[life.anode] == "rng":
            continue
        assert life.end is not None
        reader = case.events[life.reads[-1]]
        by = reader.reads[life.anode]
        if reader.index == case.loss and case.kind[life.anode] == "pending":
            continue
        through = by != life.anode
        sort = case.kind[life.anode]
        if wanted == "view":
            fits = through
        elif wanted == "again":
            fits = reader.again and not through
        elif wanted == "phantom":
            fits = sort == "phantom" and not through
        else:
            fits = not (through or reader.again or sort == "phantom")
        if fits:
            edit = case.edit()
            edit.move(life.end, before=reader.index)
            words = f"reads %{life.anode}" + (f" (through %{by})" if through else "")
            yield case.mutant(kind, edit, "FB0804", reader.index, words=f"{words}, which was freed")


@seeds("free too early")
def free_too_early(case: Case, kind: str) -> Iterator[Mutant]:
    return _early(case, kind, "plain")


@seeds("free of a view's base too early")
def free_of_base(case: Case, kind: str) -> Iterator[Mutant]:
    return _early(case, kind, "view")


@seeds("free before a recomputation that reads it")
def free_before_recomputation(case: Case, kind: str) -> Iterator[Mutant]:
    return _early(case, kind, "again")


@seeds("phantom freed before its backward")
def free_of_phantom(case: Case, kind: str) -> Iterator[Mutant]:
    return _early(case, kind, "phantom")


@seeds("nosave forward followed by its backward")
def nosave_before_backward(case: Case, kind: str) -> Iterator[Mutant]:
    for life in case.lives:
        step = case.steps[life.born]
        if case.kind[life.anode] != "phantom" or not life.reads:
            continue
        assert isinstance(step, Compute)
        edit = case.edit()
        edit.change(life.born, replace(step, nosave=True))
        yield case.mutant(kind, edit, "FB0804", life.reads[0], words=f"%{life.anode}")


@seeds("aNode left behind")
def leak(case: Case, kind: str) -> Iterator[Mutant]:
    for life in case.last.values():
        if life.freed:
            assert life.end is not None
            edit = case.edit()
            edit.drop(life.end)
            made = max(e.index for e in case.events[: life.end] if life.anode in e.makes)
            yield case.mutant(kind, edit, "FB0813", made, words=f"%{life.anode} is left behind")


@seeds("free twice")
def free_twice(case: Case, kind: str) -> Iterator[Mutant]:
    for event in case.events:
        if event.cnode is None:
            edit = case.edit()
            second = edit.after(event.index, event.step)
            (name,) = event.frees
            words = f"free of %{name}, which was freed already"
            yield case.mutant(kind, edit, "FB0808", second, words=words)


@seeds("free before it is made")
def free_before_made(case: Case, kind: str) -> Iterator[Mutant]:
    for life in case.lives:
        if life.first:
            edit = case.edit()
            early = edit.insert(Free(life.anode), before=life.born)
            words = f"free of %{life.anode}, which was never made"
            yield case.mutant(kind, edit, "FB0808", early, words=words)


@seeds("free of a parameter")
def free_of_parameter(case: Case, kind: str) -> Iterator[Mutant]:
    return _free_of(case, kind, frozenset(("param",)))


@seeds("free of an input or buffer")
def free_of_caller(case: Case, kind: str) -> Iterator[Mutant]:
    return _free_of(case, kind, CALLER - {"param"})


def _free_of(case: Case, kind: str, kinds: frozenset[str]) -> Iterator[Mutant]:
    for name, sort in case.kind.items():
        readers = [e.index for e in case.events if name in e.reads]
        if sort in kinds and readers:
            edit = case.edit()
            freed = edit.after(readers[-1], Free(name))
            yield case.mutant(kind, edit, "FB0809", freed, words=f"free of %{name}, a {sort}")


@seeds("free of a view")
def free_of_view(case: Case, kind: str) -> Iterator[Mutant]:
    for life in case.lives:
        views = [v.name for v in case.program.graph.views if v.base == life.anode]
        if life.freed and views:
            assert life.end is not None
            edit = case.edit()
            edit.change(life.end, Free(views[0]))
            words = f"It is a view of %{life.anode}"
            yield case.mutant(kind, edit, "FB0801", life.end, words=words)


def _freed_at_end(case: Case, kind: str, kinds: tuple[str, ...]) -> Iterator[Mutant]:
    life: Life
    for life in case.last.values():
        if case.kind[life.anode] in kinds:
            edit = case.edit()
            freed = edit.insert(Free(life.anode), before=None)
            words = f"%{life.anode} ("
            yield case.mutant(kind, edit, "FB0812", freed, words=words)


@seeds("result freed")
def result_freed(case: Case, kind: str) -> Iterator[Mutant]:
    return _freed_at_end(case, kind, ("output",))


@seeds("gradient freed")
def gradient_freed(case: Case, kind: str) -> Iterator[Mutant]:
    return _freed_at_end(case, kind, ("param_grad",))
