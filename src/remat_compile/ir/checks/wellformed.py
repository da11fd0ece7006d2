"""Well-formedness: what must hold of a program before anything may use it.

`spec/grammar.md` lists the rules; each has a code in `spec/diagnostics.md`.
"""

from __future__ import annotations

from ..diagnostics import Diagnostic
from ..program import Program
from .binding import check_binding, check_frame, check_schedules
from .findings import Findings
from .forms import Points, check_forms, check_sizes
from .graph import check_graph
from .layouts import check_layouts
from .numbers import check_numbers
from .operators import check_operators
from .packs import check_packs
from .regions import check_regions
from .text import check_text


def check_program(
    program: Program, text: str | None = None, file: str = "<text>"
) -> tuple[Diagnostic, ...]:
    """All violations, in the order of the text where there is one; none if well-formed.

    With `text`, from which the program was read (out of `file`), places are those of the
    words at fault instead of those of their statements. Linear in the size of the program.
    """
    findings = Findings(text, file)
    check_text(program, findings)
    names = check_graph(program.graph, findings)
    points = Points(program.symbols)
    check_forms(program.graph, names, points, findings)
    check_regions(program.graph, findings)
    check_packs(program.graph, names, findings)
    check_sizes(program, points, findings)
    check_numbers(program, points, findings)
    check_operators(program, findings)
    check_frame(program, names, findings)
    check_layouts(program, findings)
    check_binding(program, names, findings)
    check_schedules(program, findings)
    return tuple(sorted(findings.diagnostics, key=_place))


def _place(diagnostic: Diagnostic) -> tuple[int, int]:
    span = diagnostic.span
    return (0, 0) if span is None else (span.line, span.column)
