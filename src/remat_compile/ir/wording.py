"""Advice that names an option: a keyword in Python, an `--option` on the command line."""

from __future__ import annotations

from dataclasses import replace
from string import Formatter
from typing import Self

from .diagnostics import Diagnostic

_FLAGS = {"time_limit_s": "time-limit"}
"""Keywords whose option is not simply the same words with dashes."""


class Worded(str):
    """A text for readers of Python, with what the command line says in its place.

    It is the first wherever a text is wanted; only `on_command_line` looks for the second.
    """

    for_command_line: str

    def __new__(cls, for_python: str, for_command_line: str) -> Self:
        made = super().__new__(cls, for_python)
        made.for_command_line = for_command_line
        return made

    def __getnewargs__(self) -> tuple[str, str]:  # type: ignore[override]
        return str(self), self.for_command_line


def worded(template: str, **values: object) -> Worded:
    """`template` with each `{keyword}` spelled as its reader writes it.

    >>> advice = worded("give {budget} or more, or {time_limit_s}", budget="8B")
    >>> str(advice)
    'give budget="8B" or more, or time_limit_s'
    >>> advice.for_command_line
    'give --budget 8B or more, or --time-limit'
    """
    keywords = {name for _, name, _, _ in Formatter().parse(template) if name}
    return Worded(
        template.format_map({k: _as_keyword(k, values.get(k)) for k in keywords}),
        template.format_map({k: _as_flag(k, values.get(k)) for k in keywords}),
    )


def _as_keyword(name: str, value: object) -> str:
    shown = f'"{value}"' if isinstance(value, str) else value
    return name if value is None else f"{name}={shown}"


def _as_flag(name: str, value: object) -> str:
    flag = f"--{_FLAGS.get(name, name.replace('_', '-'))}"
    return flag if value is None or value is True else f"{flag} {value}"


def on_command_line(diagnostic: Diagnostic) -> Diagnostic:
    """The diagnostic as the command line says it."""
    notes = tuple(replace(note, message=_said(note.message)) for note in diagnostic.notes)
    hint = None if diagnostic.hint is None else _said(diagnostic.hint)
    return replace(diagnostic, message=_said(diagnostic.message), notes=notes, hint=hint)


def _said(text: str) -> str:
    return text.for_command_line if isinstance(text, Worded) else text
