"""What checker, simulator and reference say of one schedule."""

from __future__ import annotations

from helpers.verifier.reference import harm, interpret
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.verifier.agreement import written
from remat_compile.verifier.check import Accepted, Bytes, Refused, check


def agrees(program: Program, schedule: Schedule) -> bool:
    """Whether checker, simulator and reference accept; fails where they differ, or by a byte."""
    opinion = check(written(program, schedule), schedule.name)
    try:
        trace = simulate(program, schedule)
    except FBError:
        assert isinstance(opinion, Refused), opinion
        assert harm(program, schedule)
        return False
    assert isinstance(opinion, Accepted), opinion
    peak = Bytes(trace.peak_bytes, trace.activation_peak_bytes, trace.host_peak_bytes)
    assert (opinion.peak, opinion.time_ns) == (peak, trace.time_ns)
    run = interpret(program, schedule)
    assert (run.peak(), run.peak("activation"), run.peak("host")) == peak
    return True
