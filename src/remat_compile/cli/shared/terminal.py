"""The one way to the terminal: whole lines, in which nothing of a file can act, and progress."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from ...ir.diagnostics import Diagnostic, FBError
from ...ir.terminal import printable, printable_lines


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
