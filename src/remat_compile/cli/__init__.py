"""The `remat-compile` command.

The first word picks the subcommand; without one, the default command plans a model.
Each subcommand is a function, whose module is imported when it is asked for, and imports what
it needs when it runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from .shared.commands import ASKED, COMMANDS, function_of

__all__ = ["COMMANDS", "main"]


def _meant(words: Sequence[str]) -> str:
    """` Did you mean "verify"?` for a first word that is neither a file nor a command."""
    from ..ir.diagnostics import nearest

    if not words or words[0].startswith("-") or "." in words[0] or os.path.exists(words[0]):
        return ""
    return nearest(words[0], COMMANDS)


def _epilog() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name.ljust(width)}  {what}" for name, what in COMMANDS.items()]
    return "\b\nOther commands (remat-compile COMMAND --help):\n" + "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code.

    0: done. 1: the model or plan is refused, or nobody read what was said. 2: wrong usage.
    130: interrupted.
    """
    from ..plans.files.files import fill_closed_streams

    fill_closed_streams()
    if ASKED in os.environ and argv is None:
        from .shared.completion import complete

        return complete()
    words = list(sys.argv[1:] if argv is None else argv)
    from .shared.app import run
    from .shared.terminal import echo

    if words and words[0] in COMMANDS:
        name, rest, program, epilog = words[0], words[1:], f"remat-compile {words[0]}", None
    else:
        name, rest, program, epilog = "plan", words or ["--help"], "remat-compile", _epilog()
        if meant := _meant(words[:1]):
            echo(f"error[FB0707]: no file or command {words[0]}.{meant}", file=sys.stderr)
            return 2
    try:
        code = run(name, function_of(name), rest, program, epilog)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has gone; keep the interpreter from complaining about it at exit.
        for stream in (sys.stdout, sys.stderr):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return 1
    return code if words else 2
