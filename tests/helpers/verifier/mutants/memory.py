"""Claims about bytes that leave something out. The values of these plans are right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from helpers.verifier.reference import interpret
from remat_compile.ir.program import Budget
from remat_compile.ir.schedule import Compute

from .case import Case, Edit, Mutant
from .registry import seeds


def _tight(case: Case, kind: str, what: Literal["device", "activation"]) -> Iterator[Mutant]:
    during = case.run.device if what == "device" else case.run.activation
    peak = max(during)
    at = [i for i, size in enumerate(during) if size == peak and case.events[i].cnode is not None]
    budgets = (Budget(peak - 1, what),)
    code = "FB0820" if what == "device" else "FB0821"
    yield case.mutant(kind, None, code, *at, words=" 1 bytes more", budgets=budgets)


@seeds("device peak over by one byte")
def device_byte(case: Case, kind: str) -> Iterator[Mutant]:
    return _tight(case, kind, "device")


@seeds("activation peak over by one byte")
def activation_byte(case: Case, kind: str) -> Iterator[Mutant]:
    return _tight(case, kind, "activation")


def _above(case: Case, edit: Edit, limit: int) -> list[int]:
    """Keys of the steps that take more than `limit` bytes."""
    steps = tuple(step for _, step in edit.items)
    during = interpret(case.program, replace(case.schedule, steps=steps)).device
    return [key for (key, _), size in zip(edit.items, during, strict=True) if size > limit]


@seeds("transients ignored")
def transients_ignored(case: Case, kind: str) -> Iterator[Mutant]:
    """The claimed peak is what is alive between the steps: no workspace, nothing dropped."""
    held = [size for e, size in zip(case.events, case.run.device, strict=True) if e.cnode is None]
    claimed = max(held)
    edit = case.edit()
    if above := _above(case, edit, claimed):
        budgets = (Budget(claimed),)
        yield case.mutant(kind, edit, "FB0820", *above, budgets=budgets)


@seeds("recompute transient ignored")
def recompute_ignored(case: Case, kind: str) -> Iterator[Mutant]:
    """One more recomputation, of what is alive, where memory is full: only the bytes differ."""
    peak = case.run.peak()
    where = case.run.device.index(peak)
    budgets = (Budget(peak),)
    for event in case.events[:where]:
        c = event.cnode
        if c is None or c.phase == "loss" or event.ends is not None or c.token is not None:
            continue
        if c.replay is not None or not case.needs_alive([*event.reads, *event.makes], where):
            continue
        edit = case.edit()
        again = edit.insert(Compute(c.name), before=where)
        if again in _above(case, edit, peak):
            yield case.mutant(kind, edit, "FB0820", again, words=c.name, budgets=budgets)


@seeds("freed after the peak")
def freed_late(case: Case, kind: str) -> Iterator[Mutant]:
    """A free that the plan counts on comes one step after the peak."""
    peak = case.run.peak()
    where = case.run.device.index(peak)
    budgets = (Budget(peak),)
    for life in case.lives:
        if life.freed and life.end is not None and life.end < where:
            if any(x.anode == life.anode and life.end < x.born <= where for x in case.lives):
                continue
            edit = case.edit()
            edit.move_after(life.end, where)
            size = case.size[life.anode]
            above = [i for i in range(life.end, where + 1) if case.run.device[i] + size > peak]
            if size:
                yield case.mutant(kind, edit, "FB0820", *above, budgets=budgets)
