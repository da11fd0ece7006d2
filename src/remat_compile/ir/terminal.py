"""Foreign text on its way to a terminal: control and bidirectional characters are escaped.

Names, paths and messages come from files of other people. A control sequence in them would
move the cursor, retitle the window or draw a link; a format character would turn the
line around (CVE-2021-42574). Nothing of that leaves: all text for people goes through
`printable`, one line at a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from unicodedata import combining, east_asian_width


def printable(text: str) -> str:
    """`text` on one line, with all that is no visible character written as an escape.

    Controls (line ends too), format and bidirectional characters, separators other than the
    space, lone surrogates, private and unassigned characters: `\\x1b`, `\\n`, `\\u202e`.
    A backslash stays one: the form is for reading, not for reading back.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def printable_lines(lines: Iterable[str]) -> str:
    """Lines made printable each, so that no text can end its line and forge the next."""
    return "\n".join(map(printable, lines))


def width(text: str) -> int:
    """The columns that printable text takes on a terminal: 2 for wide East Asian characters,
    0 for marks that combine with the one before."""
    if text.isascii():
        return len(text)
    return sum(_columns(c) for c in text)


def _columns(character: str) -> int:
    if combining(character):
        return 0
    return 2 if east_asian_width(character) in "WF" else 1


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
