"""The one way to the terminal: whole lines, in which nothing of a file can act."""

from __future__ import annotations

import sys
from typing import TextIO

from ..ir.terminal import printable_lines

__all__ = ["echo"]


def echo(*lines: str, file: TextIO | None = None) -> None:
    """Prints each of `lines` as one line, to standard output unless `file` is given.

    What the stream cannot encode is escaped as well, so that no name ends in an exception.
    """
    stream = sys.stdout if file is None else file
    text = printable_lines(lines)
    encoding = stream.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
