"""The one way to the terminal: whole lines, in which nothing of a file can act."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from ..ir.diagnostics import Diagnostic, FBError
from ..ir.terminal import printable_lines

__all__ = ["echo"]


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
