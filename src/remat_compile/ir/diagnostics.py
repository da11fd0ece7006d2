"""Diagnostics: a stable code, a place, a message, and a way out.

Every refusal in the project is an `FBError` carrying one or more diagnostics. The
codes are listed in `spec/diagnostics.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal, NoReturn

from .span import Span
from .terminal import printable, width

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Note:
    """A second place that explains the first ("freed here")."""

    message: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One problem. `hint` says what to do about it."""

    code: str
    message: str
    span: Span | None = None
    notes: tuple[Note, ...] = ()
    hint: str | None = None


class FBError(Exception):
    """A refusal with all its diagnostics. `usage` is set for wrong usage (exit code 2)."""

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic], *, usage: bool = False):
        if isinstance(diagnostics, Diagnostic):
            diagnostics = (diagnostics,)
        self.diagnostics: tuple[Diagnostic, ...] = tuple(diagnostics)
        self.usage = usage
        super().__init__("\n".join(render(d) for d in self.diagnostics))


def fail(
    code: str,
    message: str,
    span: Span | None = None,
    *notes: Note,
    hint: str | None = None,
    usage: bool = False,
) -> NoReturn:
    """Refuse with one diagnostic. Inside an `except` what is being handled stays the context."""
    raise FBError(Diagnostic(code, message, span, notes, hint), usage=usage)


def render(diagnostic: Diagnostic, text: str | None = None, level: Level = "error") -> str:
    """The diagnostic as lines for people; with `text`, the source line and a caret.

    Whatever of it comes from a file is made printable: it cannot act on a terminal, nor end
    its line and forge another.
    """
    # As the grammar counts lines, which `splitlines` does not.
    lines = text.split("\n") if text is not None else None
    place = f"{diagnostic.span}: " if diagnostic.span else ""
    out = [printable(f"{place}{level}[{diagnostic.code}]: {diagnostic.message}")]
    out += _excerpt(diagnostic.span, lines)
    for note in diagnostic.notes:
        place = f"{note.span}: " if note.span else ""
        out.append(printable(f"  note: {place}{note.message}"))
        out += _excerpt(note.span, lines)
    if diagnostic.hint:
        out.append(printable(f"  help: {diagnostic.hint}"))
    return "\n".join(out)


def _excerpt(span: Span | None, lines: list[str] | None) -> list[str]:
    if span is None or lines is None or not 1 <= span.line <= len(lines):
        return []
    source = lines[span.line - 1].removesuffix("\r")
    start, end = span.column - 1, max(span.column, span.end_column - 1)
    before, marked = (printable(part) for part in (source[:start], source[start:end]))
    missing = max(0, start - len(source))  # a place behind the end of the line
    caret = " " * (width(before) + missing) + "^" * max(1, width(marked))
    gutter = f"{span.line:>5} | "
    return [gutter + printable(source), " " * (len(gutter) - 2) + "| " + caret]


def listed(names: Sequence[str], most: int = 5) -> str:
    """The names with commas between; of more than `most`, the number of the others."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def nearest(word: str, known: Iterable[str]) -> str:
    """` Did you mean "x"?`, or an empty string when nothing is near."""
    matches = get_close_matches(word, list(known), n=1)
    return f' Did you mean "{matches[0]}"?' if matches else ""
