"""Whether a mutant is one, and whether it is refuted as it must be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from helpers.verifier.reference import harm
from remat_compile.ir.program import Proven
from remat_compile.verifier import ProvenPlan, Refuted, check_certificate, verify

from .case import Case, Mutant
from .registry import KINDS
from .statements import HASH

SEAL = "FB0831"


@dataclass(frozen=True)
class Escape:
    """A mutant that was not refuted as it must be, or that does no harm."""

    mutant: Mutant
    why: str

    def __str__(self) -> str:
        m = self.mutant
        return f"{m.kind}, {m.case}, {m.code} at steps {m.at[:4]} {m.words!r}: {self.why}"


@cache
def prove(case: Case) -> Proven:
    """The proof of the original; AssertionError where it is refused."""
    assert harm(case.program, case.schedule) == []
    answer = verify(case.program, case.schedule)
    assert isinstance(answer, ProvenPlan), answer
    return answer.proven


def escape_of(case: Case, mutant: Mutant) -> Escape | None:
    """None where the mutant does harm and is refuted with its code, place and words."""
    if KINDS[mutant.kind].where == "schedule" and not harm(
        mutant.program, mutant.schedule, *mutant.budgets
    ):
        return Escape(mutant, "does no harm")
    if mutant.code == HASH and KINDS[mutant.kind].where == "graph":
        proven = prove(case)
        held = replace(mutant.program, schedules=(mutant.schedule,), proven=(proven,))
        diagnostic = check_certificate(held, proven)
        return (
            None
            if diagnostic is not None and diagnostic.code == HASH
            else Escape(mutant, "hash holds")
        )
    if mutant.code in (HASH, SEAL):
        (proven,) = mutant.program.proven
        held = replace(mutant.program, schedules=(mutant.schedule,))
        stale = check_certificate(held, proven)
        at = None if stale is None or stale.span is None else (stale.span.file, stale.span.line)
        right = stale is not None and stale.code == mutant.code and at in mutant.places
        return None if right else Escape(mutant, f"the certificate stands: {stale}")
    answer = verify(mutant.program, mutant.schedule, mutant.budgets)
    if not isinstance(answer, Refuted):
        return Escape(mutant, type(answer).__name__)
    for d in answer.diagnostics:
        here = d.span is not None and (d.span.file, d.span.line) in mutant.places
        if d.code == mutant.code and here and mutant.words in d.message:
            return None
    shown = "; ".join(f"{d.code} at {d.span}: {d.message}" for d in answer.diagnostics[:5])
    return Escape(mutant, f"refuted otherwise: {shown}")
