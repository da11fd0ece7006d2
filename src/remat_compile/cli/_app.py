"""Runs one command and turns every refusal into a message and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import typer

from .._files import text_of
from ..ir.diagnostics import Diagnostic, FBError, Level, render
from . import COMMANDS

__all__ = ["print_errors", "print_warnings", "run"]

DONE, REFUSED, USAGE, INTERRUPTED = 0, 1, 2, 130


def run(command: Callable[..., Any], words: Sequence[str], program: str) -> int:
    """Parses `words` and calls `command`; its exit code (an `int` it returns counts)."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(epilog=_epilog() if program == "remat-compile" else None)(command)
    try:
        code = app(list(words), prog_name=program, standalone_mode=False)
    except FBError as error:
        print_errors(error)
        return USAGE if error.usage else REFUSED
    except typer.TyperException as error:
        print_errors(_usage_error(error, program))
        return USAGE
    except (typer.Abort, KeyboardInterrupt):
        print("interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    return code if isinstance(code, int) else DONE


def _epilog() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name.ljust(width)}  {what}" for name, what in COMMANDS.items()]
    return "\b\nOther commands (remat-compile COMMAND --help):\n" + "\n".join(lines)


def _usage_error(error: typer.TyperException, program: str) -> FBError:
    message = " ".join(error.format_message().split())
    message = message[:1].lower() + message[1:].rstrip(".")
    return FBError(Diagnostic("FB0707", message, hint=f"see {program} --help"), usage=True)


def print_errors(error: FBError) -> None:
    """Every diagnostic with the lines of text it points at, to standard error."""
    for diagnostic in error.diagnostics:
        print(_rendered(diagnostic), file=sys.stderr)


def print_warnings(found: Iterable[Diagnostic]) -> None:
    for diagnostic in found:
        print(_rendered(diagnostic, "warning"), file=sys.stderr)


def _rendered(diagnostic: Diagnostic, level: Level = "error") -> str:
    text = None if diagnostic.span is None else text_of(diagnostic.span.file)
    return render(diagnostic, text, level)
