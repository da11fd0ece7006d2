"""Says on standard error what is being done: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..ir.terminal import printable
from ._terminal import echo

__all__ = ["progress"]


@contextmanager
def progress(*, quiet: bool = False) -> Iterator[Callable[[str], None]]:
    """A function that takes one line on what is being done now."""
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
