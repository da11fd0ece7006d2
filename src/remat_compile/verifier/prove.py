"""The verifier's front door: read, prove every obligation, sign."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.diagnostics import Diagnostic, nearest
from ..ir.program import Budget, Program
from ..ir.schedule import Schedule
from .agreement import agree_on_largest, agree_on_plan, agree_on_refutation, written
from .events import unfold
from .largest import find_largest
from .sizes import Amounts, read_amounts
from .smt import Deadline, OutOfTime
from .statements import Statements, read_statements
from .symbolic import Somewhere, check_sizes
from .task import Scope, Task
from .verdict import Bound, Largest, Refuted, Undecided, Verdict

__all__ = ["Scope", "prove_largest", "verify"]


def verify(
    program: Program,
    schedule: Schedule,
    budgets: Sequence[Budget] = (),
    *,
    time_limit_s: float = 60.0,
    scope: Scope = "widest",
    text: str | None = None,
) -> Verdict:
    """Proves all obligations of `schedule` within `budgets`, or refutes it.

    Memory is proven at the sample and for all values of the symbols in their ranges;
    `Proven.obligations` says which. A schedule that only fails beyond the sample is
    proven at the sample, with what fails in `ProvenPlan.beyond`; with `scope="range"` it is
    refuted. Without budgets, the bounds are the plan's own peaks. What a certificate in
    `program` claims of the very same steps is checked too. Never raises on a bad program.

    `text` is the file that `program` was read from (left out: as a writer produces it). The
    independent checker reads it, and nothing is proven without its yes (FB0817).
    """
    task = _read(program, schedule, budgets, Deadline(time_limit_s))
    if isinstance(task, Refuted):
        return task
    text = written(program, schedule) if text is None else text
    if (wrong := task.steps()) is not None:
        return agree_on_refutation(wrong, schedule, text)
    at_sample = None if scope == "range" else lambda: task.sizes("sample")
    budgets = (*budgets, *task.bounds)
    return agree_on_plan(task.sizes(scope), program, schedule, budgets, text, at_sample)


def prove_largest(
    program: Program,
    schedule: Schedule,
    budgets: Sequence[Budget],
    symbol: str,
    *,
    time_limit_s: float = 60.0,
    text: str | None = None,
) -> Largest | Refuted | Undecided:
    """The largest value of `symbol` for which `budgets` hold, for all values of the others.

    Refuted where no value does, where the schedule is wrong, or where there is no such
    symbol (FB0823). Never raises on a bad program. `text` is as in `verify`.
    """
    known = {s.name: (s.low, s.high) for s in program.symbols}
    if symbol not in known:
        message = f"the graph has no symbol {symbol}.{nearest(symbol, known)}"
        hint = f"symbols with a range: {', '.join(known) or 'none'}"
        return Refuted((Diagnostic("FB0823", message, hint=hint),))
    task = _read(program, schedule, budgets, Deadline(time_limit_s))
    if isinstance(task, Refuted):
        return task
    text = written(program, schedule) if text is None else text
    if (wrong := task.steps()) is not None:
        return agree_on_refutation(wrong, schedule, text)
    negative = check_sizes(task.statements, task.amounts, known, task.deadline)
    if isinstance(negative, OutOfTime):
        return Undecided(f"sizes: {negative.why}")
    if negative:
        return Refuted(negative)
    found = find_largest(
        task.statements, task.events, task.amounts, known, symbol, task.limits, task.deadline
    )
    if isinstance(found, OutOfTime):
        return Undecided(f"memory: {found.why}")

    def told(somewhere: Somewhere | None) -> tuple[Diagnostic, ...]:
        return () if somewhere is None else task.explain(somewhere.excess, somewhere.env)

    if found.value is None or found.bound is None:
        return Refuted(told(found.blocked))
    b = found.bound
    bound = Bound(found.env, b.device, b.activation, found.gap is None, b.host)
    largest = Largest(symbol, found.value, bound, told(found.gap), told(found.blocked))
    return agree_on_largest(largest, program, schedule, budgets, text)


def _read(
    program: Program, schedule: Schedule, budgets: Sequence[Budget], deadline: Deadline
) -> Task | Refuted:
    statements = read_statements(program)
    if not isinstance(statements, Statements):
        return Refuted(statements)
    events = unfold(statements, schedule)
    if isinstance(events, tuple):
        return Refuted(events)
    amounts = read_amounts(program, statements)
    if not isinstance(amounts, Amounts):
        return Refuted(amounts)
    return Task(program, schedule, statements, events, amounts, tuple(budgets), deadline)
