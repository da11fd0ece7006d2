"""A correct plan with fused cNodes: what a plan's computations give when all runs are fused."""

from __future__ import annotations

from dataclasses import replace

from remat_compile.fusion import Fusing, Priced
from remat_compile.ir.graph import CNode
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.text.parser import parse_program
from remat_compile.ir.text.printer import format_program

FUSED = ("mlp", "two")
"""Models whose plans are there fused too."""


def by_its_calls(c: CNode) -> Priced:
    """What the calls of a region take, one after the other."""
    return Priced(c.time_ns or 0, c.workspace)


def all_runs_fused(program: Program, schedule: Schedule) -> tuple[Program, Schedule]:
    """The plan with every run fused that can be, read back from its text."""
    made = Fusing(program, schedule, lambda _: True, by_its_calls, always=True).done()
    named = replace(made.schedule, name=f"{schedule.name}-fused")
    text = format_program(replace(made.program, schedules=(named,), proven=()))
    read = parse_program(text, f"{program.graph.name}-fused.fbir")
    return replace(read, schedules=()), read.schedules[0]
