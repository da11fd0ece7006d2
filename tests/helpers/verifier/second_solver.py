"""Asks cvc5 everything that z3 was asked, and compares."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from helpers.paths import ROOT
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Program
from remat_compile.ir.text.parser import parse_program
from remat_compile.verifier import Script, scripts
from remat_compile.verifier.smt import Deadline, Model, NoModel, OutOfTime
from remat_compile.verifier.solvers.cvc5 import Cvc5

RIGHT = ("spec/conformance/valid", "tests/ir/golden", "tests/verifier/mutants/plans")
WRONG = ("spec/conformance/invalid",)
BOTH = ("tests/verifier/bugs", "tests/verifier/races")
"""Folders of recorded plans: proven, refuted, and of both kinds."""

FAST = (
    "spec/conformance/valid/mlp.fbir",
    "spec/conformance/valid/offload.fbir",
    "tests/verifier/races/right.fbir",
    "tests/verifier/races/megatron_7398.fbir",
    "tests/verifier/bugs/dropout_redrawn.fbir",
    "tests/verifier/bugs/solver_over_its_limit.fbir",
    "tests/verifier/mutants/plans/mlp.fbir",
)


@dataclass
class Row:
    """One obligation of one plan. `seconds` are cvc5's."""

    plan: str
    obligation: str
    unsat: int = 0
    sat: int = 0
    agreed: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)

    @property
    def scripts(self) -> int:
        return self.unsat + self.sat


def recorded() -> list[Path]:
    """Every recorded plan, right or wrong."""
    folders = (*RIGHT, *BOTH, *WRONG)
    return [path for folder in folders for path in sorted((ROOT / folder).glob("*.fbir"))]


@cache
def read(path: Path) -> Program | None:
    """The program, or None where the text itself is refused."""
    try:
        return parse_program(path.read_text(encoding="utf-8"), path.name)
    except (FBError, UnicodeDecodeError):
        return None


def rows_of(path: Path, limit_s: float = 60.0) -> Iterator[Row]:
    """What cvc5 says of each script of each schedule of a file."""
    program = read(path)
    for schedule in () if program is None else program.schedules:
        assert program is not None
        rows: dict[str, Row] = {}
        for script in scripts(program, schedule):
            name = f"{path.parent.name}/{path.stem}"
            if len(program.schedules) > 1:
                name += f" @{schedule.name}"
            row = rows.setdefault(script.obligation, Row(name, script.obligation))
            compare(script, row, limit_s)
        yield from rows.values()


def compare(script: Script, row: Row, limit_s: float) -> None:
    """Adds one script to its row; what z3 left open counts as wrong too."""
    row.unsat += script.status == "unsat"
    row.sat += script.status == "sat"
    began = time.perf_counter()
    answer = Cvc5().check(script.assertions, Deadline(limit_s))
    row.seconds += time.perf_counter() - began
    match answer:
        case NoModel():
            said = "unsat"
        case Model():
            said = "sat"
        case OutOfTime(why):
            said = why
    if said == script.status:
        row.agreed += 1
    else:
        row.wrong.append(f"{row.plan} {script.name}: z3 {script.status}, cvc5 {said}")
