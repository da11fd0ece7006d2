"""Two opinions on every proof: the solver's, and that of the checker on the text of the plan.

They share nothing but the program's text. Where they differ nothing is proven: one of them is
wrong, and so is this package.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ..ir.codecs import PACKS
from ..ir.diagnostics import Diagnostic, Note
from ..ir.program import Budget, Program
from ..ir.schedule import Schedule
from .answer import Deadline
from .check import Accepted, Bytes, Refused, check
from .read.lossy import read_lossy
from .verdict import Bound, Disagreement, Largest, ProvenPlan, Refuted, Undecided, Verdict

HINT = "this is a fault of remat-compile, not of the plan: report it with the plan's file"


def written(program: Program, schedule: Schedule) -> str:
    """The plan as a writer produces it; what a file would hold."""
    from ..ir.text.printer import format_program

    return format_program(replace(program, schedules=(schedule,), proven=()))


def agree_on_plan(
    verdict: Verdict,
    program: Program,
    schedule: Schedule,
    budgets: Sequence[Budget],
    text: str,
    at_sample: Callable[[], Verdict] | None,
    deadline: Deadline,
) -> Verdict:
    """`verdict`, if it is a proof, only with the checker's yes and equal numbers (else FB0817).

    Where the checker does not decide the ranges of the symbols in half of the time left, the
    verdict is `at_sample`'s, or undecided if that is None.
    """
    if not isinstance(verdict, ProvenPlan):
        return verdict
    bound = verdict.bounds[-1]
    ranges = {s.name: (s.low, s.high) for s in program.symbols} if bound.everywhere else None
    told = _axioms(program)
    opinion = check(text, schedule.name, None, ranges, _bytes(bound), _half_time(deadline), told)
    if isinstance(opinion, Refused):
        return _disagreement(schedule, "proven", _said(opinion), text)
    differences = [
        *_differences(verdict, opinion),
        *_other_errors(program, opinion),
        *_above(bound, budgets),
        *_false_claims(verdict, program, opinion),
    ]
    if differences:
        return _disagreement(schedule, "proven", "; ".join(differences), text)
    if not opinion.undecided:
        return verdict
    if at_sample is None:
        return Undecided(
            f"memory over the ranges of the symbols, by the checker: {opinion.undecided}"
        )
    return agree_on_plan(at_sample(), program, schedule, budgets, text, None, deadline)


def agree_on_largest(
    verdict: Largest | Refuted | Undecided,
    program: Program,
    schedule: Schedule,
    budgets: Sequence[Budget],
    text: str,
    deadline: Deadline,
) -> Largest | Refuted | Undecided:
    """The same for the largest value of a symbol, over the range that it is proven for."""
    if not isinstance(verdict, Largest):
        return verdict
    ranges = {s.name: (s.low, s.high) for s in program.symbols}
    low = verdict.value if verdict.gap else ranges[verdict.symbol][0]
    ranges[verdict.symbol] = (low, verdict.value)
    until = _half_time(deadline)
    told = _axioms(program)
    opinion = check(text, schedule.name, None, ranges, _bytes(verdict.bound), until, told)
    what = f"proven for {verdict.symbol} in [{low}, {verdict.value}]"
    if isinstance(opinion, Refused):
        return _disagreement(schedule, what, _said(opinion), text)
    if above := list(_above(verdict.bound, budgets)):
        return _disagreement(schedule, what, "; ".join(above), text)
    if opinion.undecided:
        return Undecided(f"memory, by the checker: {opinion.undecided}")
    return verdict


def agree_on_refutation(
    verdict: Refuted | Undecided, schedule: Schedule, text: str
) -> Refuted | Undecided:
    """Steps that the solver refutes stay refuted; a note says so if the checker accepts them."""
    if not isinstance(verdict, Refuted) or isinstance(check(text, schedule.name), Refused):
        return verdict
    first, *others = verdict.diagnostics
    note = Note(f"the independent checker finds nothing wrong in these steps; {HINT}")
    return Refuted((replace(first, notes=(*first.notes, note)), *others))


def _half_time(deadline: Deadline) -> float:
    """When (`time.monotonic`) the checker leaves the ranges: time remains to prove the sample."""
    return time.monotonic() + deadline.left_s / 2


def _differences(verdict: ProvenPlan, opinion: Accepted) -> Iterator[str]:
    """Where the numbers are not equal, or a lower bound is above the checker's own."""
    own, certificate = _bytes(verdict.bounds[0]), verdict.proven.certificate
    if own != opinion.peak:
        yield f"it finds {opinion.peak} at the sample, not {own}"
    if _bytes(verdict.bounds[-1]) != _recorded(verdict):
        yield "what is recorded is not what was proven"
    if certificate is None:
        return
    if certificate.time_ns != opinion.time_ns:
        yield f"it finds {opinion.time_ns} ns, not {certificate.time_ns} ns"
    if certificate.least_time_ns > opinion.least_time_ns:
        yield f"no more than {opinion.least_time_ns} ns are needed by all schedules"
    if certificate.least_bytes > opinion.least_bytes:
        yield f"no more than {opinion.least_bytes} bytes are needed by all schedules"


def _axioms(program: Program) -> dict[str, frozenset[tuple[str, int]]]:
    """The exact codecs of the graph, each with the places where alone its values may be read."""
    used = {PACKS[c.call.op] for c in program.graph.cnodes if c.call.op in PACKS}
    return {
        codec.name: frozenset(place for place, _ in codec.places)
        for codec in used
        if not codec.is_lossy
    }


def _other_errors(program: Program, opinion: Accepted) -> Iterator[str]:
    """Where other values than those of the verdict are approximate."""
    lossy = read_lossy(program)
    reached = {*lossy.errors} - {*lossy.codecs}
    if reached != opinion.approximate:
        differ = ", ".join(f"%{name}" for name in sorted(reached ^ opinion.approximate))
        yield f"they do not agree on whether {differ} is approximate"


def _false_claims(verdict: ProvenPlan, program: Program, opinion: Accepted) -> Iterator[str]:
    """The recorded claims about the same graph and steps that are false."""
    for recorded in program.proven:
        certificate = recorded.certificate
        if certificate is None or recorded.graph_sha256 != verdict.proven.graph_sha256:
            continue
        least = (certificate.least_time_ns, certificate.least_bytes)
        if certificate.time_ns != opinion.time_ns:
            yield f"it finds {opinion.time_ns} ns, the file records {certificate.time_ns} ns"
        if least[0] > opinion.least_time_ns or least[1] > opinion.least_bytes:
            yield "the file records lower bounds that are too high"


def _above(bound: Bound, budgets: Sequence[Budget]) -> Iterator[str]:
    peak = _bytes(bound)
    by_kind = {"device": peak.device, "activation": peak.activation, "host": peak.host}
    for budget in budgets:
        if by_kind[budget.kind] > budget.bytes:
            yield f"{by_kind[budget.kind]} bytes are above a budget of {budget.bytes}"


def _bytes(bound: Bound) -> Bytes:
    return Bytes(bound.device_bytes, bound.activation_bytes, bound.host_bytes)


def _recorded(verdict: ProvenPlan) -> Bytes:
    proven = verdict.proven
    return Bytes(proven.device_bytes, proven.activation_bytes, proven.host_bytes)


def _said(refused: Refused) -> str:
    return refused.reason + (f" (line {refused.line} of the text)" if refused.line else "")


def _disagreement(schedule: Schedule, solver: str, checker: str, text: str) -> Disagreement:
    message = f"the solver and the independent checker do not agree on @{schedule.name}"
    notes = (Note(f"the solver: {solver}"), Note(f"the checker: {checker}"))
    diagnostic = Diagnostic("FB0817", message, schedule.span, notes, HINT)
    lines = [message, *(note.message for note in notes), "", text]
    return Disagreement((diagnostic,), "\n".join(lines))
