"""The text form of planners and their options: `name{option=value, ...}`.

Values are integers, floats, `true`, `false`, `none`, words, "strings", lists in
brackets, and planners. Read by hand and not by lark, which must not be loaded for a planner's
name (it takes longer than all else before planning; a test holds it).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ...ir.diagnostics import Diagnostic, FBError
from ...ir.span import Span

FILE = "<planner>"
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<number>[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?)(?![\w.])
      | (?P<word>[A-Za-z_][\w.]*(?:-[\w.]+)*)
      | (?P<mark>[{}\[\]=,])
    )""",
    re.VERBOSE,
)
_WORD = re.compile(r"[A-Za-z_][\w.]*(?:-[\w.]+)*")
_MOST_DIGITS = 100
_CONSTANTS = {"true": True, "false": False, "none": None}


@dataclass(frozen=True)
class PlannerText:
    """`name{options}` with the column (from 1) where it starts."""

    name: str
    options: tuple[Option, ...]
    column: int
    braces: bool = False


@dataclass(frozen=True)
class Option:
    name: str
    value: Value
    column: int


Value = int | float | bool | str | None | PlannerText | tuple["Value", ...]
"""A bare word is a PlannerText without braces; its type decides what it means."""


def span_of(column: int, length: int = 1) -> Span:
    return Span(1, column, column + max(1, length), FILE)


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    column: int


class _Parser:
    def __init__(self, text: str):
        self.tokens = _tokens(text)
        self.at = 0

    @property
    def now(self) -> _Token:
        return self.tokens[self.at]

    def take(self, text: str) -> bool:
        if self.now.kind == "mark" and self.now.text == text:
            self.at += 1
            return True
        return False

    def refuse(self, wanted: str) -> FBError:
        shown = self.now.text if len(self.now.text) <= 40 else f"{self.now.text[:40]}..."
        here = f'"{shown}"' if shown else "the end"
        return _refusal(self.now.column, len(self.now.text), f"expected {wanted}, found {here}")

    def planner(self) -> PlannerText:
        word = self.now
        if word.kind != "word":
            raise self.refuse("the name of a planner")
        self.at += 1
        if not self.take("{"):
            return PlannerText(word.text, (), word.column)
        options: list[Option] = []
        while not self.take("}"):
            if options and not self.take(","):
                raise self.refuse('"," or "}"')
            options.append(self.option())
        return PlannerText(word.text, tuple(options), word.column, braces=True)

    def option(self) -> Option:
        word = self.now
        if word.kind != "word":
            raise self.refuse("the name of an option")
        self.at += 1
        if not self.take("="):
            raise self.refuse('"="')
        return Option(word.text, self.value(), word.column)

    def value(self) -> Value:
        token = self.now
        if token.kind == "number":
            if len(token.text) > _MOST_DIGITS:
                raise self.refuse(f"a number of at most {_MOST_DIGITS} characters")
            self.at += 1
            return int(token.text) if re.fullmatch(r"[-+]?\d+", token.text) else float(token.text)
        if token.kind == "string":
            self.at += 1
            return _string(token)
        if token.kind == "word" and token.text in _CONSTANTS:
            self.at += 1
            return _CONSTANTS[token.text]
        if token.kind == "word":
            return self.planner()
        if not self.take("["):
            raise self.refuse("a value")
        items: list[Value] = []
        while not self.take("]"):
            if items and not self.take(","):
                raise self.refuse('"," or "]"')
            items.append(self.value())
        return tuple(items)


def _string(token: _Token) -> str:
    try:
        return str(json.loads(token.text))
    except json.JSONDecodeError as error:
        raise _refusal(token.column, len(token.text), f"bad string: {error.msg}") from None


def _tokens(text: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            raise _refusal(at + 1, 1, f'unexpected "{text[at]}"')
        kind = match.lastgroup or ""
        tokens.append(_Token(kind, match[kind], match.start(kind) + 1))
        at = match.end()
    return [*tokens, _Token("end", "", len(text) + 1)]


def _refusal(column: int, length: int, message: str) -> FBError:
    message = f"cannot read the planner: {message}"
    hint = "write for example dtr, or periodic{segments=4}"
    return FBError(Diagnostic("FB0402", message, span_of(column, length), hint=hint), usage=True)


def parse_list(text: str) -> tuple[PlannerText, ...]:
    """Reads planners with commas between them; FB0402 where they are none."""
    parser = _Parser(text)
    planners = [parser.planner()]
    while parser.take(","):
        planners.append(parser.planner())
    if parser.now.kind != "end":
        raise parser.refuse('"," or the end')
    return tuple(planners)


def parse_text(text: str) -> PlannerText:
    """Reads one planner; FB0402 where it is not one."""
    parser = _Parser(text)
    planner = parser.planner()
    if parser.now.kind != "end":
        raise parser.refuse("the end")
    return planner


def option_names(value: Value) -> Iterator[str]:
    """The names of all options in a text, those of planners inside with them."""
    if isinstance(value, tuple):
        for item in value:
            yield from option_names(item)
    elif isinstance(value, PlannerText):
        for option in value.options:
            yield option.name
            yield from option_names(option.value)


def format_value(value: object) -> str:
    """The text form of an option's value that is not a planner."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str() if _WORD.fullmatch(value) and value not in _CONSTANTS:
            return value
        case _:
            return json.dumps(str(value))
