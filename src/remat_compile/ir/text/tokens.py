"""The value and place of a token of the text form.

A token is a `str` with a `type` and a place. Whatever is wrong with one is raised as `FBError`
at once; its span names no file yet, since a rule does not know which one is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ..diagnostics import Note, fail
from ..span import Span
from .syntax import MAX_NUMBER, NoText, amount, duration_ns, rate, unquote

if TYPE_CHECKING:
    from lark import Token


class Entry(NamedTuple):
    """One `field` of the data model in a statement, introduced by `word`."""

    word: str
    token: Token
    field: str
    value: Any


def span_of(token: Token, last: Token | None = None, file: str = "<text>") -> Span:
    """The place from a token to the `last` one. (Only tokens that no text holds have none.)"""
    end = token if last is None else last
    return Span(token.line or 0, token.column or 0, end.end_column or 0, file)


def refuse(
    code: str, message: str, token: Token, *notes: Note, hint: str | None = None
) -> NoReturn:
    fail(code, message, span_of(token), *notes, hint=hint)


def string(token: Token) -> str:
    return _unquoted(token, token, "string")


def _unquoted(token: Token, quoted: str, what: str) -> str:
    try:
        return unquote(quoted)
    except NoText as error:
        character = f"U+{ord(error.args[0]):04X}"
        hint = "write a character beyond U+FFFF as itself, or as both halves of its pair"
        refuse("FB0112", f"this {what} has an escape for {character}, which no text holds", token,
               hint=hint)  # fmt: skip
    except ValueError:
        refuse("FB0105", f"this {what} has an escape that JSON does not know", token)


def short(number: str, token: Token) -> str:
    """The text of a number, refused (at `token`) when it has more characters than any may have."""
    if len(number) > MAX_NUMBER:
        refuse("FB0111", f"this number has more than {MAX_NUMBER} characters", token)
    return str(number)


def integer(token: Token) -> int:
    return int(short(token, token))


def double(token: Token) -> float:
    value = float(short(token, token))
    if math.isinf(value):
        hint = "write inf or -inf where infinity is meant"
        refuse("FB0111", "this number is beyond all doubles", token, hint=hint)
    return value


def word(token: Token) -> str:
    return string(token) if token.type == "STRING" else str(token)


def title(token: Token) -> str:
    """The name in `@name` or `@"any text"`."""
    if token[1] != '"':
        return token[1:]
    return _unquoted(token, token[1:], "name")


def once(entries: Iterable[Entry], where: str) -> dict[str, Any]:
    """The fields and their values; one that is given twice is refused."""
    values: dict[str, Any] = {}
    first: dict[str, Token] = {}
    for word, token, field, value in entries:
        if field in values:
            note = Note("given here first", span_of(first[field]))
            refuse("FB0106", f"`{word}` is given twice {where}", token, note)
        values[field] = value
        first[field] = token
    return values


def name_of(token: Token | None) -> str | None:
    """The name in an optional `%name`."""
    return None if token is None else token[1:]


def amount_of(token: Token) -> int:
    try:
        number = short(token, token)
        return rate(number) if number.endswith("/s") else amount(number)
    except ValueError:
        refuse("FB0105", "this is no whole number of bytes", token)


def duration_of(token: Token) -> int:
    try:
        return duration_ns(short(token, token))
    except ValueError:
        refuse("FB0105", "this time is no whole number of nanoseconds", token)
