"""What a file holds, to be looked at; nothing is proven or run."""

from __future__ import annotations

from pathlib import Path

from ..ir.schedule import Schedule
from ..report.subject import Subject, store_all
from ..verifier import cost_assumptions
from .files import FileRead
from .make_plan import plan_in_text, read_program_text
from .outputs import files_of_plan
from .plan import Plan

__all__ = ["read_plan", "read_subject"]


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
    assuming = tuple(a.text for a in cost_assumptions(program))
    without: Schedule = store_all(program)
    subject = Subject(program, without, assuming=assuming, planned=False)
    return subject, files_of_plan(path, program.header)
