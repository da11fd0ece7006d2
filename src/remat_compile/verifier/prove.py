"""The verifier's front door: read, prove validity, prove memory, sign."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..ir.program import Budget, Program, Proven, Symbol
from ..ir.schedule import Schedule
from .certificate import certificate_sha256
from .events import Event, unfold
from .explain import explain_broken
from .explain_memory import explain_excess
from .memory import Excess, Limits, prove_memory
from .sizes import all_rise, measure
from .smt import Deadline, OutOfTime, prover
from .statements import Statements, read_statements
from .validity import Broken, prove_validity
from .verdict import Bound, ProvenPlan, Refuted, Undecided, Verdict

__all__ = ["verify"]


def verify(
    program: Program,
    schedule: Schedule,
    budgets: Sequence[Budget] = (),
    *,
    time_limit_s: float = 60.0,
) -> Verdict:
    """Proves that `schedule` is valid and within `budgets` at every step, or refutes it.

    Memory is proven at the sample and, where every size rises with every symbol, at the
    upper corner, which decides for the whole ranges; `Proven.obligations` says which.
    A schedule that only fails beyond the sample is proven at the sample. Without
    budgets, the bounds are the plan's own peaks. Never raises on a bad program.
    """
    deadline = Deadline(time_limit_s)
    if schedule.first_copy is not None:
        return Undecided("nothing is proven yet of a plan that copies to the host and back")
    statements = read_statements(program)
    if isinstance(statements, tuple):
        return Refuted(statements)
    events = unfold(statements, schedule)
    if isinstance(events, tuple):
        return Refuted(events)
    valid = prove_validity(statements, events, deadline)
    if isinstance(valid, Broken):
        return Refuted(explain_broken(statements, schedule, events, valid))
    if isinstance(valid, OutOfTime):
        return Undecided(f"validity: {valid.why}")

    def at(env: Mapping[str, int], everywhere: bool) -> Bound | Refuted | Undecided:
        return _memory(program, schedule, statements, events, budgets, env, everywhere, deadline)

    free = tuple(s for s in program.symbols if s.low < s.high)
    sample = {s.name: s.sample for s in program.symbols}
    corner = {s.name: s.high for s in program.symbols}
    first = at(sample, not free)
    if not isinstance(first, Bound):
        return first
    bounds = [first]
    if free and all_rise(program):
        last = at(corner, True)
        if isinstance(last, Bound):
            bounds.append(last)
    return ProvenPlan(_sign(program, schedule, bounds[-1], free), tuple(bounds))


def _memory(
    program: Program,
    schedule: Schedule,
    statements: Statements,
    events: list[Event],
    budgets: Sequence[Budget],
    env: Mapping[str, int],
    everywhere: bool,
    deadline: Deadline,
) -> Bound | Refuted | Undecided:
    sizes = measure(program, statements, env)
    if isinstance(sizes, tuple):
        return Refuted(sizes)
    limits = Limits(_least(budgets, "device"), _least(budgets, "activation"))
    found = prove_memory(statements, events, sizes, limits, deadline)
    if isinstance(found, OutOfTime):
        return Undecided(f"memory: {found.why}")
    if isinstance(found, Excess):
        shown = ", ".join(f"{name} = {number}" for name, number in env.items())
        at = f" at {shown}" if shown else ""
        return Refuted(
            explain_excess(statements, schedule, events, sizes, found, _distinct(budgets), at)
        )
    return Bound(env, found.device, found.activation, everywhere)


def _least(budgets: Sequence[Budget], kind: str) -> int | None:
    return min((b.bytes for b in budgets if b.kind == kind), default=None)


def _distinct(budgets: Sequence[Budget]) -> list[Budget]:
    """The tightest budget of each kind: the others say nothing more."""
    found: dict[str, Budget] = {}
    for budget in sorted(budgets, key=lambda b: b.bytes):
        found.setdefault(budget.kind, budget)
    return list(found.values())


def _sign(program: Program, schedule: Schedule, bound: Bound, free: Sequence[Symbol]) -> Proven:
    memory = "memory"
    if free and bound.everywhere:
        ranges = ", ".join(f"{s.name} in [{s.low}, {s.high}]" for s in free)
        memory = f"memory for {ranges}"
    elif free:
        memory = "memory at sample"
    return Proven(
        schedule.name,
        ("validity", memory),
        bound.device_bytes,
        bound.activation_bytes,
        prover(),
        certificate_sha256(program, schedule),
    )
