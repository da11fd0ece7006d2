"""Generated statements on lines that a person can read."""

from __future__ import annotations

import tokenize
from collections.abc import Iterable
from io import StringIO
from itertools import pairwise

WIDTH = 120
"""Columns of generated code; only what cannot be broken (one long name or text) is longer."""

_OPEN, _CLOSE = "([{", ")]}"


def fitted(statement: str, indent: str = "") -> list[str]:
    """The lines of a statement that stands on one: broken inside its last brackets that are
    not empty, then inside those before, where it is longer than `WIDTH`.

        y = f(a, b)   ->   y = f(
                               a, b,
                           )
    """
    lines = [indent + statement]
    for opening, closing, commas in reversed(_groups(statement)):
        if len(lines[0]) <= WIDTH:
            break
        # What follows the brackets stands in lines that are there already.
        behind = statement[closing:] if len(lines) == 1 else lines[0][len(indent) + closing :]
        if closing == opening + 1:
            continue
        edges = (opening + 1, *(comma + 1 for comma in commas), closing)
        parts = [text for a, b in pairwise(edges) if (text := statement[a:b].strip())]
        inner = _filled([f"{part.removesuffix(',')}," for part in parts], f"{indent}    ")
        lines = [f"{indent}{statement[: opening + 1]}", *inner, f"{indent}{behind}", *lines[1:]]
    left, equals, right = statement.partition(" = ")
    if len(lines) == 1 and len(lines[0]) > WIDTH and equals:
        return [f"{indent}{left} = (", f"{indent}    {right}", f"{indent})"]
    return lines


def one_a_line(before: str, parts: list[str], after: str, indent: str = "") -> list[str]:
    """Lines of a list of `parts`, each with a comma; where there are none, one line."""
    if not parts:
        return [f"{indent}{before}{after}"]
    return [f"{indent}{before}", *(f"{indent}    {part}" for part in parts), f"{indent}{after}"]


def wrapped(start: str, names: Iterable[str]) -> list[str]:
    """As many lines as it takes to say `start` and names between commas."""
    lines: list[str] = []
    for name in names:
        if lines and len(lines[-1]) + 2 + len(name) <= WIDTH:
            lines[-1] += f", {name}"
        else:
            lines.append(start + name)
    return lines


def clipped(line: str) -> str:
    """The line of a comment, cut where it is longer than `WIDTH`."""
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


def _filled(parts: list[str], indent: str) -> list[str]:
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 1 + len(part) <= WIDTH:
            lines[-1] += f" {part}"
        else:
            lines.append(indent + part)
    return lines


def _groups(statement: str) -> list[tuple[int, int, list[int]]]:
    """The outermost tuples and calls of a line: where they open and close, and the commas
    directly in them. A comma more would make a tuple of other brackets."""
    groups: list[tuple[int, int, list[int]]] = []
    depth = opening = 0
    commas: list[int] = []
    for token in tokenize.generate_tokens(StringIO(statement).readline):
        column = token.start[1]
        if token.type != tokenize.OP:
            continue
        if token.string in _OPEN:
            if depth == 0:
                opening, commas = column, []
            depth += 1
        elif token.string in _CLOSE:
            depth -= 1
            is_call = statement[opening - 1 : opening].isidentifier()
            if depth == 0 and statement[opening] == "(" and (commas or is_call):
                groups.append((opening, column, commas))
        elif token.string == "," and depth == 1:
            commas.append(column)
    return groups
