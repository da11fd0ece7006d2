"""Contents of a file, to be looked at; nothing is proven or run."""

from __future__ import annotations

from pathlib import Path

from ...ir.diagnostics import Diagnostic, FBError, nearest
from ...ir.program import Program
from ...ir.schedule import Schedule
from ...ir.wording import Worded
from ...report.subject import Subject, store_all
from ..plan import Plan, PlanText
from .files import FileRead, read_text
from .outputs import files_of_plan


def read_program(path: str | Path) -> Program:
    """The program in a `.fbir` file, or on standard input for `-`."""
    return read_program_text(path)[0]


def read_program_text(path: str | Path) -> tuple[Program, str]:
    """The same with its text, which the independent checker reads for itself."""
    from ...ir.text.parser import parse_program

    text = read_text(path)
    return parse_program(text, str(path)), text


def pick_schedule(program: Program, name: str | None = None) -> Schedule:
    """The schedule of that name, or the last. FB0708 where there is none."""
    if not program.schedules:
        message = "this file holds a graph and no schedule"
        hint = Worded(
            'plan it first: plan("FILE", budget="8GiB")',
            "plan it first: remat-compile FILE -o PLAN.fbir --budget 8GiB",
        )
        raise FBError(Diagnostic("FB0708", message, hint=hint))
    if name is None:
        return program.schedules[-1]
    known = {s.name: s for s in program.schedules}
    if name not in known:
        message = f"no schedule @{name} in this file.{nearest(name, known)}"
        raise FBError(Diagnostic("FB0708", message), usage=True)
    return known[name]


def plan_in_text(
    program: Program, text: str, path: str | Path, schedule: str | None = None
) -> Plan:
    """The last schedule of the text, or the one of that name (FB0708), as a plan."""
    chosen = pick_schedule(program, schedule)
    reads = files_of_plan(path, program.header)
    return Plan(program, chosen, _reads=reads, _text=PlanText(program.graph, chosen, text))


def read_plan(path: str | Path, schedule: str | None = None) -> Plan:
    """The plan in a file: its last schedule, or the one of that name (FB0708)."""
    return plan_in_text(*read_program_text(path), path, schedule)


def read_subject(
    path: str | Path, schedule: str | None = None
) -> tuple[Subject, tuple[FileRead, ...]]:
    """The same to report on, and the files that must not be written over. A file without any
    schedule stands for the step with nothing recomputed."""
    program, text = read_program_text(path)
    if program.schedules or schedule is not None:
        plan = plan_in_text(program, text, path, schedule)
        return plan._subject, plan._reads
    from ...verifier import cost_assumptions

    assuming = tuple(a.text for a in cost_assumptions(program))
    without: Schedule = store_all(program)
    subject = Subject(program, without, assuming=assuming, planned=False)
    return subject, files_of_plan(path, program.header)
