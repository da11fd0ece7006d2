"""Foreign text in generated code: every string of a program enters it through here.

A planner's text, the names of graphs and schedules, places in the model, names of parameters
and string arguments may come from a file that anyone wrote. Three places can hold them:

    comment('net.py:3 "a\\nb"')  ->  net.py:3 "a\\x0ab"      stays on its line
    docstring('x\"""')          ->  x\\"\\"\\"               stays in its docstring
    literal('x"')              ->  'x"'                   is the text again when it runs
"""

from __future__ import annotations

LONGEST = 400
"""Characters of a foreign text that a comment or docstring shows; the rest is left out."""


def comment(text: str) -> str:
    """The text for a comment, or for the name of generated code in a traceback: one line of
    printable characters."""
    return _escaped(_shortened(text), "")


def docstring(text: str) -> str:
    """The text inside a docstring: it neither ends it nor reads as an escape of its own."""
    return _escaped(_shortened(text), '\\"')


def literal(text: str) -> str:
    """An expression of Python whose value is the text, in printable characters."""
    return repr(text)


def scope(text: str) -> str:
    """The same between double quotes, as names of computations are written."""
    return '"' + _escaped(text, '\\"') + '"'


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _escaped(text: str, special: str) -> str:
    """`special` behind backslashes, and what cannot be printed as Python's own escapes.

    Line breaks of every kind, control and bidirectional characters and lone surrogates are
    not printable in the sense of `str.isprintable`.
    """
    return "".join(
        f"\\{char}" if char in special else char if char.isprintable() else _escape(char)
        for char in text
    )


def _escape(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
