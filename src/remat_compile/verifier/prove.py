"""The verifier's front door: read, prove every obligation, sign."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..ir.diagnostics import Diagnostic, nearest
from ..ir.program import Budget, Program
from ..ir.schedule import Schedule
from ..ir.wording import Worded, worded
from .agreement import agree_on_largest, agree_on_plan, agree_on_refutation, written
from .assumptions import assumptions
from .certificate import certificate_sha256
from .inquiry import Inquiry, Record, Script
from .obligation import Obligation
from .obligations.largest import find_largest
from .obligations.memory_ranges import Somewhere, check_sizes
from .plan_proof import Scope, read_proof
from .smt import OutOfTime
from .solvers.solver import Choice, solvers_of
from .verdict import Bound, Largest, ProvenPlan, Refuted, Undecided, Verdict

__all__ = ["Scope", "prove_largest", "scripts", "verify", "verify_with_scripts"]


def verify(
    program: Program,
    schedule: Schedule,
    budgets: Sequence[Budget] = (),
    *,
    time_limit_s: float = 60.0,
    scope: Scope = "widest",
    solver: Choice = "z3",
    text: str | None = None,
    allow_lossy: bool = False,
) -> Verdict:
    """Proves all obligations of `schedule` within `budgets`, or refutes it.

    Memory is proven at the sample and for all values of the symbols in their ranges;
    `Proven.obligations` says which. A schedule that only fails beyond the sample is
    proven at the sample, with what fails in `ProvenPlan.beyond`; with `scope="range"` it is
    refuted. Without budgets, the bounds are the plan's own peaks. What a certificate in
    `program` claims of the very same steps is checked too. With `solver="both"` nothing is
    proven that cvc5 does not confirm (FB0872, FB0873). Never raises on a bad program; FB0712
    where the package of a solver is missing.

    `text` is the file that `program` was read from (left out: as a writer produces it). The
    independent checker reads it, and nothing is proven without its yes (FB0817).

    Refuted too (FB0878) where lossy codecs make gradients approximate, unless `allow_lossy`;
    then values are proven up to these codecs, and `ProvenPlan.assuming` names what they change.
    """
    inquiry = Inquiry(time_limit_s, solvers=solvers_of(solver), allow_lossy=allow_lossy)
    return _verify(program, schedule, budgets, scope, inquiry, text)


def verify_with_scripts(
    program: Program,
    schedule: Schedule,
    budgets: Sequence[Budget] = (),
    *,
    time_limit_s: float = 60.0,
    scope: Scope = "widest",
    solver: Choice = "z3",
    text: str | None = None,
    allow_lossy: bool = False,
) -> tuple[Verdict, tuple[Script, ...]]:
    """`verify`, with every script that was asked on the way, in order."""
    inquiry = Inquiry(time_limit_s, solvers=solvers_of(solver), allow_lossy=allow_lossy)
    inquiry = replace(inquiry, subject=_subject(program, schedule))
    verdict = _verify(program, schedule, budgets, scope, inquiry, text)
    return verdict, tuple(inquiry.record.scripts)


def scripts(
    program: Program,
    schedule: Schedule,
    budgets: Sequence[Budget] = (),
    *,
    time_limit_s: float = 60.0,
    scope: Scope = "widest",
) -> Iterator[Script]:
    """The scripts that `verify` asks z3, one per part of an obligation."""
    _, recorded = verify_with_scripts(
        program, schedule, budgets, time_limit_s=time_limit_s, scope=scope
    )
    yield from recorded


def _verify(
    program: Program,
    schedule: Schedule,
    budgets: Sequence[Budget],
    scope: Scope,
    inquiry: Inquiry,
    text: str | None,
) -> Verdict:
    verdict, bounds = _by_solvers(program, schedule, budgets, scope, inquiry, text)
    if isinstance(verdict, ProvenPlan):
        text = text or written(program, schedule)

        def at_sample() -> Verdict:
            proof = read_proof(program, schedule, budgets, inquiry)
            return proof if isinstance(proof, Refuted) else proof.sizes("sample")

        second = None if scope == "range" else at_sample
        every = (*budgets, *bounds)
        verdict = agree_on_plan(verdict, program, schedule, every, text, second, inquiry)
    return _objection(inquiry.record, schedule, refuted=isinstance(verdict, Refuted)) or verdict


def _by_solvers(
    program: Program,
    schedule: Schedule,
    budgets: Sequence[Budget],
    scope: Scope,
    inquiry: Inquiry,
    text: str | None,
) -> tuple[Verdict, Sequence[Budget]]:
    """The verdict of the solvers, and the tightest bounds.

    The steps as the proof sees them take several times the memory of the plan: they are gone
    before the checker begins.
    """
    proof = read_proof(program, schedule, budgets, inquiry)
    if isinstance(proof, Refuted):
        return proof, ()
    if (wrong := proof.steps()) is not None:
        if proof.unreadable is not None:
            return proof.unreadable, ()
        return agree_on_refutation(wrong, schedule, text or written(program, schedule)), ()
    return proof.sizes(scope), proof.bounds


def _objection(record: Record, schedule: Schedule, *, refuted: bool) -> Undecided | None:
    """Why a verdict does not stand: solvers that do not agree, or one that did not confirm."""
    if record.disagreements:
        why = record.disagreements[0]
        message = f"the solvers do not agree on @{schedule.name}: {why}"
        hint = Worded(
            "a mistake in a solver or in the encoding: please report it with verify_with_scripts()",
            "a mistake in a solver or in the encoding: please report it with --smt-lib",
        )
        return Undecided(why, (Diagnostic("FB0872", message, schedule.span, hint=hint),))
    if record.unconfirmed and not refuted:
        why = record.unconfirmed[0]
        message = f"plan @{schedule.name} is {why}"
        hint = worded(
            "give more time with {time_limit_s}, or take the word of z3 with {solver}", solver="z3"
        )
        return Undecided(why, (Diagnostic("FB0873", message, schedule.span, hint=hint),))
    return None


def _subject(program: Program, schedule: Schedule) -> tuple[str, ...]:
    """The heading of scripts, with names quoted so that none can end a comment."""
    names = f"schedule {json.dumps(schedule.name)} of graph {json.dumps(program.graph.name)}"
    return names, f"graph and steps sha256 {certificate_sha256(program, schedule)}"


def prove_largest(
    program: Program,
    schedule: Schedule,
    budgets: Sequence[Budget],
    symbol: str,
    *,
    time_limit_s: float = 60.0,
    solver: Choice = "z3",
    text: str | None = None,
    allow_lossy: bool = False,
) -> Largest | Refuted | Undecided:
    """The largest value of `symbol` for which `budgets` hold, for all values of the others.

    Refuted where no value does, where the schedule is wrong, or where there is no such
    symbol (FB0823). Never raises on a bad program; FB0712 as `verify`. `text` is as there.
    """
    inquiry = Inquiry(time_limit_s, solvers=solvers_of(solver), allow_lossy=allow_lossy)
    outcome = _largest(program, schedule, budgets, symbol, inquiry, text)
    refuted = isinstance(outcome, Refuted)
    return _objection(inquiry.record, schedule, refuted=refuted) or outcome


def _largest(
    program: Program,
    schedule: Schedule,
    budgets: Sequence[Budget],
    symbol: str,
    inquiry: Inquiry,
    text: str | None,
) -> Largest | Refuted | Undecided:
    known = {s.name: (s.low, s.high) for s in program.symbols}
    if symbol not in known:
        message = f"the graph has no symbol {symbol}.{nearest(symbol, known)}"
        hint = f"symbols with a range: {', '.join(known) or 'none'}"
        return Refuted((Diagnostic("FB0823", message, hint=hint),))
    proof = read_proof(program, schedule, budgets, inquiry)
    if isinstance(proof, Refuted):
        return proof
    wrong, unreadable = proof.steps(), proof.unreadable
    if unreadable is not None:
        return unreadable
    text = text or written(program, schedule)
    if wrong is not None:
        return agree_on_refutation(wrong, schedule, text)
    negative = check_sizes(proof.statements, proof.amounts, known, inquiry.about(Obligation.SIZES))
    if isinstance(negative, OutOfTime):
        return Undecided(f"sizes: {negative.why}")
    if negative:
        return Refuted(negative)
    asked = inquiry.about(Obligation.MEMORY_RANGES)
    greatest = find_largest(
        proof.statements, proof.events, proof.amounts, known, symbol, proof.limits, asked
    )
    if isinstance(greatest, OutOfTime):
        return Undecided(f"memory: {greatest.why}")

    def explained(at: Somewhere | None) -> tuple[Diagnostic, ...]:
        return () if at is None else proof.explain(at.excess, at.env)

    if greatest.value is None or greatest.bound is None:
        return Refuted(explained(greatest.blocked))
    b = greatest.bound
    bound = Bound(greatest.env, b.device, b.activation, greatest.gap is None, b.host)
    assuming = assumptions(program, schedule, known)
    largest = Largest(
        symbol,
        greatest.value,
        bound,
        explained(greatest.gap),
        explained(greatest.blocked),
        assuming,
    )
    return agree_on_largest(largest, program, schedule, budgets, text, inquiry)
