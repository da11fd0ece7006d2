"""The subject of a proof, and the test whether a recorded proof may replace a new one.

A certificate is a cache: it saves proving again what was proven of the same graph and
steps. It is no signature, since whoever can write the file can write a certificate.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

from ..ir.diagnostics import Diagnostic
from ..ir.program import Budget, Certificate, Program, Proven
from ..ir.schedule import Compute, Schedule
from .assumptions import assumptions
from .obligation import FULL_PROOF, obligation_of
from .solvers.solver import installed

AGAIN = "the file was edited since; verify the plan again"


def certificate_sha256(program: Program, schedule: Schedule) -> str:
    """SHA-256 (hex) of the graph (as `ir.printer.graph_sha256` has it), of what the header says
    of its capture, and of the steps.

    It changes with anything that the proof rests on, and not with the name of the
    schedule or of its planner.
    """
    from ..ir.text.printer import graph_sha256

    h = program.header
    lines = [
        graph_sha256(program),
        f"captured {h.device!r} threads {h.threads} torch {h.torch_version!r}",
        f"costs {h.costs!r} replays {h.replays!r}",
        f"source {h.source!r} sha256 {h.sha256!r}",
    ]
    if h.layouts is not None:  # what was proven before they were written down stays so
        lines += [f"layout {a.name} {a.form} {a.numbers!r}" for a in h.layouts] or ["layouts {}"]
    digest = hashlib.sha256("\n".join(lines).encode())
    for step in schedule.steps:  # one after the other: a plan may have millions
        if isinstance(step, Compute):
            line = f"\ncompute {step.cnode}{' nosave' * step.nosave}{' on host' * step.on_host}"
        else:
            line = f"\n{step.word} {step.anode}"
        digest.update(line.encode())
    return digest.hexdigest()


def own_version() -> str:
    """The version of remat-compile that proves; `unknown` where it is not installed."""
    try:
        return version("remat-compile")
    except PackageNotFoundError:
        return "unknown"


def seal(proven: Proven, certificate: Certificate) -> str:
    """SHA-256 (hex) of everything else that a proof says."""
    return hashlib.sha256("\n".join(_lines(proven, certificate)).encode()).hexdigest()


def _lines(proven: Proven, c: Certificate) -> Iterator[str]:
    yield f"graph {proven.graph_sha256}"
    yield from (f"obligation {name}" for name in proven.obligations)
    yield f"device {proven.device_bytes} activation {proven.activation_bytes}"
    yield f"host {proven.host_bytes}"
    yield f"time {c.time_ns} of {c.least_time_ns} floor {c.least_bytes}"
    yield from (f"budget {budget.kind} {budget.bytes}" for budget in c.budgets)
    yield from (f"range {name} {low} {high}" for name, low, high in c.ranges)
    yield from (f"assuming {key!r}" for key in c.assuming)
    yield f"by {proven.prover}"
    yield f"version {c.version}"


def check_certificate(program: Program, proven: Proven) -> Diagnostic | None:
    """FB0830 where `proven` is about another graph, header or steps than `program` holds;
    FB0831 where what it says was edited."""
    schedule = next((s for s in program.schedules if s.name == proven.schedule), None)
    if schedule is None:
        message = f"a proof is recorded for schedule @{proven.schedule}, which is not there"
        return Diagnostic("FB0830", message, proven.span, hint=AGAIN)
    if proven.graph_sha256 != certificate_sha256(program, schedule):
        message = f"the proof recorded for @{proven.schedule} is of another graph, header or steps"
        return Diagnostic("FB0830", message, proven.span, hint=AGAIN)
    c = proven.certificate
    if c is not None and c.seal_sha256 != seal(proven, c):
        message = f"the certificate of @{proven.schedule} does not match its seal"
        return Diagnostic("FB0831", message, proven.span, hint=AGAIN)
    return None


def accept_certificate(
    program: Program,
    schedule: Schedule,
    proven: Proven | None,
    budgets: Iterable[Budget] = (),
    provers: Iterable[str] = (),
) -> tuple[Diagnostic, ...]:
    """Why the recorded proof may not stand for one within `budgets`; nothing where it may.

    FB0830 and FB0831 as `check_certificate`, FB0832 where there is none, FB0833 where
    another version of a solver or of this package made it, or of a solver that is not
    installed, FB0834 where it covers less than is asked, or is not by all of `provers`.
    """
    if proven is None or proven.certificate is None:
        message = f"no certificate is recorded for schedule @{schedule.name}"
        hint = "verify the plan without --require-certificate, or save it again"
        return (Diagnostic("FB0832", message, schedule.span, hint=hint),)
    if (stale := check_certificate(program, proven)) is not None:
        return (stale,)
    gaps: list[str] = []
    by = proven.prover.split(", ")
    names_by = [prover.split(" ")[0] for prover in by]
    known = installed({"z3", *names_by})
    if not set(by) <= set(known) or proven.certificate.version != own_version():
        made = f"{proven.prover}, remat-compile {proven.certificate.version}"
        here = f"{', '.join(known)}, remat-compile {own_version()}"
        message = f"the certificate of @{schedule.name} is by {made}; this is {here}"
        return (Diagnostic("FB0833", message, proven.span, hint="verify the plan again"),)
    named = {obligation_of(entry) for entry in proven.obligations}
    if missing := [one for one in FULL_PROOF if one not in named]:
        gaps.append(f"it does not say {', '.join(missing)}")
    gaps += [f"it is not by {name}" for name in provers if name not in names_by]
    ranges = (name for name, _, _ in proven.certificate.ranges)
    keys = [a.key for a in assumptions(program, schedule, ranges)]
    if unsaid := [key for key in keys if key not in proven.certificate.assuming]:
        gaps.append(f"it does not say that it assumes {', '.join(unsaid)}")
    gaps += _above(proven, tuple(budgets))
    if not gaps:
        return ()
    message = f"the certificate of @{schedule.name} covers less than is asked: {'; '.join(gaps)}"
    return (Diagnostic("FB0834", message, proven.span, hint="verify the plan again"),)


def _above(proven: Proven, budgets: Sequence[Budget]) -> Iterator[str]:
    """Budgets that the recorded bounds do not keep."""
    bounds = {
        "device": proven.device_bytes,
        "activation": proven.activation_bytes,
        "host": proven.host_bytes,
    }
    for budget in budgets:
        bound = bounds[budget.kind]
        if bound > budget.bytes:
            yield f"its {budget.kind} bound of {bound} bytes is above {budget.bytes} bytes"
