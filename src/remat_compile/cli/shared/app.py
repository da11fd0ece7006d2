"""Runs one command and turns every refusal into a message and an exit code."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import typer

from ...ir.diagnostics import Diagnostic, FBError, Note
from .defaults import Defaults, read_defaults
from .options import with_all_options
from .terminal import echo, print_errors

TRACEBACK = "REMAT_COMPILE_TRACEBACK"
"""The environment variable that asks for the traceback of a mistake of ours."""
EXTRAS = {
    "torch": "torch",
    "onnx": "onnx",
    "jax": "jax",
    "ortools": "cpsat",
    "cvc5": "cvc5",
    "vl_convert": "report",
}
"""Which extra brings an optional package."""
DONE, REFUSED, USAGE, INTERRUPTED = 0, 1, 2, 130


def run(
    name: str,
    command: Callable[..., Any],
    words: Sequence[str],
    program: str,
    epilog: str | None = None,
) -> int:
    """Parses `words` and calls `command`; its exit code (an `int` it returns counts). `epilog`
    ends the help. Options that `words` leave open may have defaults in a file."""
    start = time.perf_counter()
    defaults, is_verbose, from_file = Defaults(), False, list[str]()

    def begin(context: typer.Context, verbose: bool) -> None:
        nonlocal is_verbose, from_file
        is_verbose, from_file = verbose, defaults.used(context)
        if verbose and from_file:
            echo(*from_file, file=sys.stderr)

    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(epilog=epilog)(with_all_options(command, begin))
    try:
        defaults = read_defaults(name, words)
        line = list(words)
        code = app(line, prog_name=program, standalone_mode=False, default_map=defaults.values)
    except FBError as error:
        print_errors(_with_origin(error, from_file))
        return USAGE if error.usage else REFUSED
    except typer.TyperException as error:
        print_errors(_usage_error(error, program))
        return USAGE
    except (typer.Abort, KeyboardInterrupt):
        echo("interrupted; nothing was written", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:  # a mistake of ours: still one message, and a way to report it
        if is_verbose or os.environ.get(TRACEBACK):
            raise
        print_errors(_missing_extra(error) or _internal_error(error))
        return REFUSED
    if is_verbose:
        echo(f"took {time.perf_counter() - start:.1f} s", file=sys.stderr)
    return code if isinstance(code, int) else DONE


def _with_origin(error: FBError, from_file: Sequence[str]) -> FBError:
    """Wrong usage with what was not said on the command line."""
    if not error.usage or not from_file or any(d.code == "FB0726" for d in error.diagnostics):
        return error
    *others, last = error.diagnostics
    notes = tuple(Note(line) for line in from_file)
    return FBError((*others, replace(last, notes=(*last.notes, *notes))), usage=True)


def _missing_extra(error: Exception) -> FBError | None:
    """FB0712 where an optional package is what cannot be imported."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ImportError) else ""
    if (extra := EXTRAS.get(package)) is None:
        return None
    message = f"this needs {package}, which cannot be imported ({error})"
    hint = f'pip install "remat-compile[{extra}]"'
    return FBError(Diagnostic("FB0712", message, hint=hint))


def _internal_error(error: Exception) -> FBError:
    """FB0722 with the last place in this package."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "remat_compile" in f.filename]
    notes = tuple(Note(f"{f.filename}:{f.lineno}: {f.line}") for f in ours[-1:])
    message = f"remat-compile itself fails: {type(error).__name__}: {error}"
    hint = f"please report it with the input; {TRACEBACK}=1 in the environment shows where"
    return FBError(Diagnostic("FB0722", message, notes=notes, hint=hint))


def _usage_error(error: typer.TyperException, program: str) -> FBError:
    message = " ".join(error.format_message().split())
    message = message[:1].lower() + message[1:].rstrip(".")
    return FBError(Diagnostic("FB0707", message, hint=f"see {program} --help"), usage=True)
