"""Words and numbers of the text form: what the parser, the printer and the checks share."""

from __future__ import annotations

import json
import re
from fractions import Fraction

from ..schedule import STORAGE_STEPS

REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.]*")
"""The names of aNodes and views, after `%`."""
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
"""The name of a cNode or a symbol."""
OPERATOR = NAME
KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.:+-]*")
"""A string of the header that needs no quotes."""
TITLE = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
"""The names of graphs and schedules that stand after `@` without quotes."""
PLACE = re.compile(r"[A-Za-z0-9_./\\+@~-]+")
"""A file name that needs no quotes."""
ATOM_VALUE = re.compile(r"[A-Za-z0-9_.:]+")

RESERVED_SYMBOLS = frozenset(("true", "false", "none", "inf", "nan"))
RESERVED_STEPS = frozenset(STORAGE_STEPS) | {
    *("nosave", "compress", "decompress", "update", "send", "recv", "as", "on"),
}
"""Words that begin or end a step, now or in later versions: no cNode has such a name."""

MAX_DEPTH = 64
"""Limit on the depth of brackets in one statement."""

MAX_NUMBER = 120
"""Characters of a number. The largest size that a range may reach has 101 digits, times a unit."""

NO_TEXT = re.compile("[\x00\ud800-\udfff]")
"""The characters that no string may hold: NUL, which no file name can have, and halves of
surrogate pairs."""

_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{letter}i": 1 << (10 * (i + 1)) for i, letter in enumerate("KMGT")}
_BINARY = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_DECIMAL = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3))
_TIMES = (("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1))


class NoText(ValueError):
    """An escape stands for a character that no string holds."""


def quote(text: str) -> str:
    """A JSON string on one line; what is not printable is escaped."""
    plain = json.dumps(text, ensure_ascii=False)
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", plain)


def unquote(token: str) -> str:
    """The string that a token stands for. ValueError for a bad escape, NoText for its character."""
    if "\\" not in token:
        return token[1:-1]
    text = str(json.loads(token, strict=False))
    if match := NO_TEXT.search(text):
        raise NoText(match[0])
    return text


def _exact(number: str, unit: int) -> int:
    if len(number) > MAX_NUMBER:
        raise ValueError
    value = Fraction(number) * unit
    if value.denominator != 1:
        raise ValueError
    return value.numerator


def _split(token: str) -> tuple[str, str]:
    digits = len(token.rstrip("KMGTBinums/"))
    return token[:digits], token[digits:]


def amount(token: str) -> int:
    """Bytes of `512`, `139GiB` or `1.5MB`. ValueError when that is no whole number."""
    number, unit = _split(token)
    return _exact(number, _UNITS[unit.removesuffix("B")])


def rate(token: str) -> int:
    """Bytes per second of `50GB/s`. ValueError when that is no whole number."""
    return amount(token.removesuffix("/s"))


def duration_ns(token: str) -> int:
    """Nanoseconds of `12.4us`. ValueError when that is no whole number."""
    number, unit = _split(token)
    return _exact(number, dict(_TIMES)[unit])


def format_amount(value: int, *, per_second: bool = False) -> str:
    """Bytes with the largest unit that is exact: binary for sizes, decimal for rates."""
    for unit, scale in _DECIMAL if per_second else _BINARY:
        if value and value % scale == 0:
            return f"{value // scale}{unit}" + ("/s" if per_second else "")
    return f"{value}B/s" if per_second else str(value)


def format_duration(time_ns: int) -> str:
    """Nanoseconds with the largest unit that is not above the value, exactly."""
    for unit, scale in _TIMES:
        if time_ns >= scale or scale == 1:
            whole, rest = divmod(time_ns, scale)
            if not rest:
                return f"{whole}{unit}"
            return f"{whole}.{rest:0{len(str(scale)) - 1}d}".rstrip("0") + unit
    return f"{time_ns}ns"
