"""The one way to the terminal: whole lines, in which nothing of a file can act, and progress."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Annotated, Any, Literal, TextIO

import typer

from ...ir.diagnostics import Diagnostic, FBError, Level, render
from ...ir.terminal import printable, printable_lines
from ...ir.wording import on_command_line
from ...plans.files.files import text_of
from ...plans.messages.table import columns
from ...version import __version__

Format = Literal["text", "json"]
FormatOption = Annotated[Format, typer.Option("--format", help="json: one object, for programs.")]


def echo(*lines: str, file: TextIO | None = None) -> None:
    """Prints each of `lines` as one line, to standard output unless `file` is given.

    What the stream cannot encode is escaped as well, so that no name ends in an exception.
    FB0703 where the stream takes nothing more.
    """
    stream = sys.stdout if file is None else file
    text = printable_lines(lines)
    encoding = stream.encoding or "utf-8"
    shown = text.encode(encoding, "backslashreplace").decode(encoding)
    try:
        print(shown, file=stream, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk: said once, on the other stream
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        message = f"cannot write to a standard stream: {error.strerror or error}"
        raise FBError(Diagnostic("FB0703", message), usage=True) from None


def print_errors(error: FBError) -> None:
    """Every diagnostic with the lines of text it points at, to standard error."""
    _print_diagnostics(error.diagnostics, "error")


def print_warnings(diagnostics: Iterable[Diagnostic]) -> None:
    _print_diagnostics(diagnostics, "warning")


def _print_diagnostics(diagnostics: Iterable[Diagnostic], level: Level) -> None:
    for d in diagnostics:
        text = None if d.span is None else text_of(d.span.file)
        echo(*render(on_command_line(d), text, level).split("\n"), file=sys.stderr)


def print_object(command: str, **values: object) -> None:
    """The object of a command for programs, as `docs/reference/cli.md` has it: `command` and
    `version` first, then `values`."""
    print_json({"command": command, "version": __version__} | values)


def print_json(values: object) -> None:
    echo(*json.dumps(_plain(values), indent=1, allow_nan=False).split("\n"))


def _plain(value: object) -> Any:
    """Data classes as objects of their fields, other sequences as lists, numbers that are not
    finite as texts (JSON has none); the rest as it is."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return value


def listed(
    head: tuple[str, ...], rows: Sequence[tuple[str, ...]], align: str, most: int | None
) -> list[str]:
    """A table of at most `most` rows (None: all), with the number of those that are left out."""
    left = 0 if most is None else max(0, len(rows) - most)
    lines = columns([head, *rows[: len(rows) - left]], align)
    return [*lines, f"and {left} more (--all)"] if left else lines


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A function that takes one line on what is being done now: a bar on a terminal, lines on
    standard error elsewhere."""
    if quiet:
        yield lambda message: None
    elif sys.stderr.isatty():
        with _bar() as say:
            yield say
    else:
        start = time.perf_counter()
        yield lambda message: echo(
            f"[{time.perf_counter() - start:6.1f} s] {message}", file=sys.stderr
        )


@contextmanager
def _bar() -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(bar_width=20),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        # How long a search takes is not known before: the bar moves, it does not fill.
        task = bar.add_task("starting", total=None)
        yield lambda message: bar.update(task, description=printable(message))
