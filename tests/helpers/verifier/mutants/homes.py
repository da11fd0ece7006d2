"""Lines `on host` about storage that a plan uses otherwise."""

from __future__ import annotations

from collections.abc import Iterator

from remat_compile.ir.schedule import Home, Offload, Prefetch, Wait

from .case import Case, Mutant
from .registry import seeds

FIXED = ("input", "const", "act", "grad", "output")


@seeds("on host, of what no step brings")
def never_brought(case: Case, kind: str) -> Iterator[Mutant]:
    for name, sort in case.kind.items():
        readers = [event.index for event in case.events if name in event.reads]
        if sort == "param" and readers:
            edit = case.edit()
            edit.insert(Home(name), before=0)
            yield case.mutant(kind, edit, "FB0803", readers[0], words=f"%{name}")


@seeds("on host, of a gradient that stays")
def gradient_stays(case: Case, kind: str) -> Iterator[Mutant]:
    for name, sort in case.kind.items():
        if sort == "param_grad":
            edit = case.edit()
            edit.insert(Home(name), before=0)
            yield case.mutant(kind, edit, "FB0819", words=f"%{name}")


@seeds("on host, brought and left there")
def left_alive(case: Case, kind: str) -> Iterator[Mutant]:
    for name, sort in case.kind.items():
        if sort == "param":
            edit = case.edit()
            for step in (Home(name), Prefetch(name), Wait(name)):
                edit.insert(step, before=0)
            key = next(key for key, step in edit.items if step == Prefetch(name))
            yield case.mutant(kind, edit, "FB0813", key, words=f"%{name}")


@seeds("on host, of a gradient whose copy is not waited for")
def never_landed(case: Case, kind: str) -> Iterator[Mutant]:
    for name, sort in case.kind.items():
        if sort == "param_grad":
            edit = case.edit()
            edit.insert(Home(name), before=0)
            key = edit.insert(Offload(name), before=None)
            words = f"the caller may read the host copy of %{name}"
            yield case.mutant(kind, edit, "FB0862", key, words=words)


@seeds("on host, of what cannot be there")
def not_to_be_away(case: Case, kind: str) -> Iterator[Mutant]:
    for name, sort in case.kind.items():
        if sort in FIXED:
            edit = case.edit()
            key = edit.insert(Home(name), before=0)
            yield case.mutant(kind, edit, "FB0818", key, words=f"%{name}")


@seeds("on host, after another step")
def said_late(case: Case, kind: str) -> Iterator[Mutant]:
    for name, sort in case.kind.items():
        if sort == "param":
            edit = case.edit()
            key = edit.after(0, Home(name))
            yield case.mutant(kind, edit, "FB0818", key, words=f"%{name}")
