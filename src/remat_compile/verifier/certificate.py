"""What a proof is bound to: the graph it is about, and the steps that were proven."""

from __future__ import annotations

import hashlib
from typing import assert_never

from ..ir.diagnostics import Diagnostic
from ..ir.program import Program, Proven
from ..ir.schedule import Compute, Free, HostFree, Offload, Prefetch, Schedule, Wait

__all__ = ["certificate_sha256", "check_certificate"]


def certificate_sha256(program: Program, schedule: Schedule) -> str:
    """SHA-256 (hex) of the graph (as `ir.printer.graph_sha256` has it) and the steps.

    It changes with anything that the proof rests on, and not with the name of the
    schedule or of its planner.
    """
    from ..ir.printer import graph_sha256

    lines = [graph_sha256(program)]
    for step in schedule.steps:
        match step:
            case Compute(cnode, nosave):
                lines.append(f"compute {cnode}{' nosave' if nosave else ''}")
            case Free(anode):
                lines.append(f"free {anode}")
            case Offload(anode):
                lines.append(f"offload {anode}")
            case Prefetch(anode):
                lines.append(f"prefetch {anode}")
            case Wait(anode):
                lines.append(f"wait {anode}")
            case HostFree(anode):
                lines.append(f"hostfree {anode}")
            case _:
                assert_never(step)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def check_certificate(program: Program, proven: Proven) -> Diagnostic | None:
    """FB0830 where `proven` is about another graph, or other steps, than `program` holds."""
    schedule = next((s for s in program.schedules if s.name == proven.schedule), None)
    if schedule is None:
        message = f"a proof is recorded for schedule @{proven.schedule}, which is not there"
    elif proven.graph_sha256 != certificate_sha256(program, schedule):
        message = f"the proof recorded for @{proven.schedule} is of another graph or other steps"
    else:
        return None
    return Diagnostic(
        "FB0830", message, proven.span, hint="the file was edited since; verify the plan again"
    )
