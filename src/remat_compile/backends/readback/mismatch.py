"""Reports of generated code that differs from the schedule."""

from __future__ import annotations

import ast
from typing import NoReturn

from ...ir.diagnostics import fail
from ...ir.span import Span

_HINT = "this is an error of remat-compile: please report it with the plan; nothing was run"


def differs(where: ast.AST, file: str, step: str, what: str) -> NoReturn:
    """FB0945 at a place in the generated text, naming the step of the schedule."""
    message = f"the generated code is not what the schedule says at {step}: {what}"
    fail("FB0945", message, _span(where, file), hint=_HINT)


def unreadable(where: ast.AST, file: str, what: str) -> NoReturn:
    """FB0946 for generated code that the read-back has no meaning for."""
    message = f"the generated code holds what cannot be read back: {what}"
    fail("FB0946", message, _span(where, file), hint=_HINT)


def _span(where: ast.AST, file: str) -> Span:
    line, column = getattr(where, "lineno", 1), getattr(where, "col_offset", 0) + 1
    one_line = getattr(where, "end_lineno", line) == line
    end = getattr(where, "end_col_offset", column) + 1 if one_line else column + 1
    return Span(line, column, end, file)
