"""What a token of the text form stands for, and where it stands.

A token is a `str` with `type`, `line`, `column` and `end_column`. Whatever is wrong with
one is raised as `FBError` at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, NoReturn

from ._syntax import amount, duration_ns, rate, unquote
from .diagnostics import Diagnostic, FBError, Note
from .span import Span

__all__ = [
    "FILE",
    "amount_of",
    "duration_of",
    "integer",
    "name_of",
    "once",
    "refuse",
    "span_of",
    "string",
    "title",
    "word",
]

FILE: ContextVar[str] = ContextVar("FILE", default="<text>")
"""The name of the file that is being parsed."""


def span_of(token: Any, last: Any = None) -> Span:
    end = token if last is None else last
    return Span(token.line, token.column, end.end_column, FILE.get())


def refuse(code: str, message: str, token: Any, *notes: Note, hint: str | None = None) -> NoReturn:
    raise FBError(Diagnostic(code, message, span_of(token), notes, hint))


def string(token: Any) -> str:
    try:
        return unquote(token)
    except ValueError:
        refuse("FB0105", "this string has an escape that JSON does not know", token)


def integer(token: Any) -> int:
    try:
        return int(token)
    except ValueError:
        refuse("FB0105", "this number has too many digits", token)


def word(token: Any) -> str:
    return string(token) if token.type == "STRING" else str(token)


def title(token: Any) -> str:
    """The name in `@name` or `@"any text"`."""
    if token[1] != '"':
        return str(token[1:])
    try:
        return unquote(token[1:])
    except ValueError:
        refuse("FB0105", "this name has an escape that JSON does not know", token)


def once(parts: Sequence[tuple[str, Any, Any]], where: str) -> dict[str, Any]:
    """(key, token, value) triples as a dictionary; a key given twice is refused."""
    found: dict[str, Any] = {}
    first: dict[str, Any] = {}
    for key, token, value in parts:
        if key in found:
            note = Note("given here first", span_of(first[key]))
            refuse("FB0106", f"`{key}` is given twice {where}", token, note)
        found[key] = value
        first[key] = token
    return found


def name_of(token: Any) -> str | None:
    """The name in an optional `%name`."""
    return None if token is None else str(token[1:])


def amount_of(token: Any) -> int:
    try:
        return rate(token) if token.endswith("/s") else amount(token)
    except ValueError:
        refuse("FB0105", "this is no whole number of bytes", token)


def duration_of(token: Any) -> int:
    try:
        return duration_ns(token)
    except ValueError:
        refuse("FB0105", "this time is no whole number of nanoseconds", token)
