"""Half of a long proof in a process of its own: bytes and claims, while the steps are proven here.

Only time is saved by it. The process is given the plan and answers a verdict; where it cannot be
started, dies or answers nothing, the same is proven in this process.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from ...ir.program import Budget, Program
from ...ir.schedule import Schedule
from ..inquiry import Inquiry, Record
from ..plan_proof import (
    PlanProof,
    Scope,
    read_proof,
)
from ..verdict import (
    ProvenPlan,
    Refuted,
    Undecided,
    Verdict,
)

LONG = 20_000
"""Steps from which the half that runs beside takes longer than to start it."""

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.stdin.buffer.readline()); "
    "from remat_compile.verifier.obligations.aside import answer; answer()"
)


@dataclass(frozen=True)
class SizesJob:
    """Arguments of `sizes_of` for a plan."""

    program: Program
    schedule: Schedule
    budgets: tuple[Budget, ...]
    scope: Scope
    inquiry: Inquiry


@contextlib.contextmanager
def sizes_aside(
    program: Program,
    schedule: Schedule,
    budgets: Sequence[Budget],
    scope: Scope,
    inquiry: Inquiry,
) -> Iterator[Callable[[], Verdict] | None]:
    """Gives what waits for the verdict on obligations 2 and 5 of a schedule whose steps are proven.

    A plan of `LONG` steps or more is begun at once in another process, where there is a second
    processor for it; what it asked the solvers is added to the record of `inquiry`. None where
    they are proven here.
    """
    process = _started() if len(schedule.steps) >= LONG and _processors() >= 2 else None
    if process is None:
        yield None
        return
    with process:

        def here() -> Verdict:
            proof = read_proof(program, schedule, budgets, inquiry)
            return proof if isinstance(proof, Refuted) else proof.sizes(scope)

        def sizes() -> Verdict:
            assert process.stdout is not None
            try:
                verdict: Verdict
                verdict, record = pickle.load(process.stdout)
            except (EOFError, OSError, pickle.UnpicklingError):
                return here()
            if isinstance(verdict, ProvenPlan) and not verdict.beyond:
                _add(inquiry.record, record)
                return verdict
            # What is told has places, and none were sent; solvers that differed have differed.
            inquiry.record.disagreements += record.disagreements
            asked = len(inquiry.record.scripts)
            local_verdict = here()
            if isinstance(local_verdict, Undecided) and isinstance(verdict, ProvenPlan):
                del inquiry.record.scripts[asked:]  # those of the proof there bear the same names
                _add(inquiry.record, replace(record, disagreements=[]))
                return verdict  # there was time for it once
            return local_verdict

        try:
            with contextlib.suppress(OSError):
                _send(process, SizesJob(program, schedule, tuple(budgets), scope, inquiry))
            yield sizes
        finally:
            process.kill()


def _processors() -> int:
    """Return the processors that this process may use, where the system says so."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _started() -> subprocess.Popen[bytes] | None:
    """None where the system starts no process."""
    command = [sys.executable, "-P", "-c", _START]  # -P: no module of the working folder
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
    except OSError:
        return None


def _send(process: subprocess.Popen[bytes], job: SizesJob) -> None:
    assert process.stdin is not None
    with process.stdin as pipe:  # closed also where the process has ended
        pipe.write(json.dumps(sys.path).encode() + b"\n")
        pickler = pickle.Pickler(pipe, pickle.HIGHEST_PROTOCOL)
        pickler.dispatch_table = _ByFields()
        pickler.dump(job)


class _ByFields(dict[type, Callable[[Any], tuple[type, tuple[Any, ...]]]]):
    """The wire form of dataclasses: by their fields alone, which takes a tenth of the time of what
    pickle does with frozen ones, and leaves what they have found out about themselves behind. Their
    places in a text, a third of the memory of a long plan, are of use only where one is refused."""

    def __missing__(self, kind: type) -> Callable[[Any], tuple[type, tuple[Any, ...]]]:
        if not is_dataclass(kind) or not all(f.init for f in fields(kind)):
            raise KeyError(kind)
        names = [f.name for f in fields(kind)]
        places = [i for i, name in enumerate(names) if name == "span"]

        def parts(value: Any) -> tuple[type, tuple[Any, ...]]:
            sent = [getattr(value, name) for name in names]
            for i in places:
                sent[i] = None
            return kind, tuple(sent)

        self[kind] = parts
        return parts


def _add(record: Record, other: Record) -> None:
    record.scripts += other.scripts
    record.disagreements += other.disagreements
    record.unconfirmed += other.unconfirmed
    record.asked += other.asked


def answer() -> None:
    """Runs in the process: one job from the standard input, its verdict to the standard output."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    gc.disable()  # nothing made here lies in cycles, and the process ends with it
    job: SizesJob = pickle.load(sys.stdin.buffer)
    proof = read_proof(job.program, job.schedule, job.budgets, job.inquiry)
    if isinstance(proof, PlanProof):
        with out:
            pickle.dump((proof.sizes(job.scope), job.inquiry.record), out)
