"""What a token of the text form stands for, and where it stands.

A token is a `str` with `type`, `line`, `column` and `end_column`. Whatever is wrong with
one is raised as `FBError` at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, NoReturn

from ..diagnostics import Diagnostic, FBError, Note
from ..span import Span
from .syntax import MAX_NUMBER, NoText, amount, duration_ns, rate, unquote

__all__ = [
    "FILE",
    "amount_of",
    "double",
    "duration_of",
    "integer",
    "name_of",
    "once",
    "refuse",
    "short",
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
    return _unquoted(token, token, "string")


def _unquoted(token: Any, quoted: str, what: str) -> str:
    try:
        return unquote(quoted)
    except NoText as error:
        character = f"U+{ord(error.args[0]):04X}"
        hint = "write a character beyond U+FFFF as itself, or as both halves of its pair"
        refuse("FB0112", f"this {what} has an escape for {character}, which no text holds", token,
               hint=hint)  # fmt: skip
    except ValueError:
        refuse("FB0105", f"this {what} has an escape that JSON does not know", token)


def short(token: Any, where: Any = None) -> str:
    """The text of a number, refused (at `where`) when it has more characters than any may have."""
    if len(token) > MAX_NUMBER:
        message = f"this number has more than {MAX_NUMBER} characters"
        refuse("FB0111", message, token if where is None else where)
    return str(token)


def integer(token: Any, where: Any = None) -> int:
    return int(short(token, where))


def double(token: Any) -> float:
    value = float(short(token))
    if math.isinf(value):
        hint = "write inf or -inf where infinity is meant"
        refuse("FB0111", "this number is beyond all doubles", token, hint=hint)
    return value


def word(token: Any) -> str:
    return string(token) if token.type == "STRING" else str(token)


def title(token: Any) -> str:
    """The name in `@name` or `@"any text"`."""
    if token[1] != '"':
        return str(token[1:])
    return _unquoted(token, token[1:], "name")


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
        number = short(token)
        return rate(number) if number.endswith("/s") else amount(number)
    except ValueError:
        refuse("FB0105", "this is no whole number of bytes", token)


def duration_of(token: Any) -> int:
    try:
        return duration_ns(short(token))
    except ValueError:
        refuse("FB0105", "this time is no whole number of nanoseconds", token)
