"""Ways to damage a text: by structure (lines, braces, sections, strings) and by token.

What comes out is often still a program, and another one: that is the point. Both functions are
pure in their `Random`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

SECTION_LIKE = (
    "schedule @z {", "  schedule @z {", 'schedule @z by "x" {', "graph @g {", "bind {",
    "proven @z {", "certificate {", "}", " }", "  }", "} }", "{", "fbir 1", "schedule",
    'target "t" { memory 1 }', "sym q in [1, 2] = 1 of arg 0 dim 0",
    "schedule nosave", "  schedule nosave", "  graph",
)  # fmt: skip
STEP_LIKE = ("  F1", "  free %h1", "F1", "free %a1", "  offload %x", "  wait %x", "  F1 nosave",
             "  nosave", "  hostfree %x ", "  free  %h1", "  free\t%h1", "  free %h1;", "  F1 F2",
             "  %zz : act f32[8, 8] bytes 256", "  F9: fwd %zz = aten.gelu.default(%h1)",
             "  %v9 = view of %x aten.t.default(%x)", "F9 : fwd ns.f()", "  _: fwd _ = _(_)",
             "  F9: fwd _( )", "  F9: fwd ns.f(nan =3)", "  F9: fwd ns.f(1, k=2, 3)")  # fmt: skip
WORDS = (
    *("schedule", "graph", "bind", "proven", "free", "offload", "nosave", "wait", "fwd", "bwd"),
    *("loss", "time", "of", "at", "token", "workspace", "replay", "view", "bytes", "act", "input"),
    *("true", "nan", "inf", "_", "fbir", "x", "arg", "max", "F1", "compute", "1", "0.5"),
)
STRINGS = (
    "}", "{", "//", ";", "schedule @x {", "  free %a", "\\n", "\\u000a}", '\\"', "\\\\", "a // b",
    "graph @g { } bind {", "", "\\ud800", "\\u0000", "%x", "é…", "\\/", "\t",
)  # fmt: skip
NUMBERS = (
    "0", "-0", "-1", "007", "+1", "1_000", "0x10", "1e5", "1.0", "00", "9" * 18, "9" * 19,
    "9" * 120, "9" * 121, "1e999", "0.1", "1.50us", "0.0us", "1000ns", "1us", "1KiB", "1024",
)  # fmt: skip
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_NAME = re.compile(r"(?<![A-Za-z0-9_.%\"])[A-Za-z_][A-Za-z0-9_]*(?![A-Za-z0-9_.\"(\[])")
_NUMBER = re.compile(r"(?<![A-Za-z0-9_.%])-?[0-9][0-9.]*[a-zA-Z]*(?![A-Za-z0-9_.])")
_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|%?[A-Za-z0-9_.]+|\s+|//|.', re.DOTALL)

Lines = list[str]


def by_structure(rng: Random, text: str) -> str:
    """One to four changes of lines, sections, braces, blanks, comments, strings or names."""
    for _ in range(rng.choice((1, 1, 2, 3, 4))):
        if rng.random() < 0.7:
            lines = text.split("\n")
            rng.choice(_OF_LINES)(rng, lines)
            text = "\n".join(lines)
        else:
            text = rng.choice(_OF_TEXTS)(rng, text)
    return text


def by_token(rng: Random, text: str, pool: Sequence[str]) -> str:
    """One to six tokens deleted, doubled, swapped or replaced by others out of `pool`."""
    words = tokens(text)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        if not words:
            break
        at = rng.randrange(len(words))
        match rng.randrange(6):
            case 0:
                del words[at]
            case 1:
                words.insert(at, words[at])
            case 2:
                other = rng.randrange(len(words))
                words[at], words[other] = words[other], words[at]
            case 3:
                words[at] = rng.choice(pool)
            case 4:
                words.insert(
                    at, rng.choice((*SECTION_LIKE, *WORDS, "\r", "\ufeff", "\\", '"', "max(", "["))
                )
            case _:
                numbers = [i for i, word in enumerate(words) if word.isdigit()] or [at]
                words[rng.choice(numbers)] = rng.choice(NUMBERS)
    return "".join(words)


def tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


def _at(rng: Random, lines: Lines) -> int:
    return rng.randrange(len(lines))


def _move(rng: Random, lines: Lines) -> None:
    line = lines.pop(_at(rng, lines))
    lines.insert(rng.randrange(len(lines) + 1), line)


def _repeat(rng: Random, lines: Lines) -> None:
    lines.insert(rng.randrange(len(lines) + 1), lines[_at(rng, lines)])


def _delete(rng: Random, lines: Lines) -> None:
    if len(lines) > 1:
        del lines[_at(rng, lines)]


def _indent(rng: Random, lines: Lines) -> None:
    at = _at(rng, lines)
    lines[at] = rng.choice((" ", "  ", "\t", "\r", " \t ")) + lines[at]


def _dedent(rng: Random, lines: Lines) -> None:
    at = _at(rng, lines)
    lines[at] = lines[at].lstrip()


def _end(rng: Random, lines: Lines) -> None:
    at = _at(rng, lines)
    lines[at] += rng.choice((" ", "\t", "\r", ";", " ;; ", "// x", " // }", "//{", " x", "}", " }"))


def _join(rng: Random, lines: Lines) -> None:
    at = _at(rng, lines)
    lines[at : at + 2] = [rng.choice((";", "; ", " ", "", " // ")).join(lines[at : at + 2])]


def _split(rng: Random, lines: Lines) -> None:
    at = _at(rng, lines)
    blanks = [i for i, character in enumerate(lines[at]) if character == " "]
    if blanks:
        cut = rng.choice(blanks)
        lines[at : at + 1] = [lines[at][:cut], lines[at][cut:]]


def _insert(rng: Random, lines: Lines) -> None:
    between = ("", "  ", "// note", "  // }", "\r", ";", "\t;", " ;// {", "//")
    kind = rng.choice((SECTION_LIKE, STEP_LIKE, between))
    lines.insert(rng.randrange(len(lines) + 1), rng.choice(kind))


def _comment_out(rng: Random, lines: Lines) -> None:
    at = _at(rng, lines)
    lines[at] = "//" + lines[at]


def _brace(rng: Random, lines: Lines) -> None:
    """A brace of a section goes to another line."""
    braces = [i for i, line in enumerate(lines) if line.rstrip().endswith(("{", "}"))]
    if not braces:
        return
    at = rng.choice(braces)
    brace = lines[at].rstrip()[-1]
    lines[at] = lines[at].rstrip()[:-1]
    other = rng.choice((at + 1, at - 1, rng.randrange(len(lines)))) % len(lines)
    lines[other] = rng.choice(
        (f"{brace}{lines[other]}", f"{lines[other]} {brace}", f"{brace};{lines[other]}")
    )


def _sections(rng: Random, lines: Lines) -> None:
    """Whole sections change places, come twice, or one stands inside another."""
    starts = [i for i, line in enumerate(lines) if line and not line[0].isspace() and line != "}"]
    if len(starts) < 2:
        return
    one, two = sorted(rng.sample(range(len(starts)), 2))
    ends = [*starts[1:], len(lines)]
    first, second = lines[starts[one] : ends[one]], lines[starts[two] : ends[two]]
    match rng.randrange(3):
        case 0:
            lines[starts[two] : ends[two]] = first
            lines[starts[one] : ends[one]] = second
        case 1:
            lines[starts[two] : starts[two]] = first
        case _:
            lines[starts[two] + 1 : starts[two] + 1] = first


_OF_LINES: tuple[Callable[[Random, Lines], None], ...] = (
    _move, _repeat, _delete, _indent, _dedent, _end, _join, _split, _insert, _insert, _comment_out,
    _brace, _sections,
)  # fmt: skip


def _somewhere(rng: Random, pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    matches = list(pattern.finditer(text))
    return rng.choice(matches) if matches else None


def _line_ends(rng: Random, text: str) -> str:
    return text.replace("\n", rng.choice(("\r\n", "\n\n", " \n", ";\n", "\n\t", " // c\n")))


def _mark(rng: Random, text: str) -> str:
    return rng.choice(("\ufeff", "\n\n", "// c\n", "\ufeff\ufeff", ";\n")) + text


def _string(rng: Random, text: str) -> str:
    if (match := _somewhere(rng, _STRING, text)) is None:
        return text
    return f'{text[: match.start()]}"{rng.choice(STRINGS)}"{text[match.end() :]}'


def _rename(rng: Random, text: str) -> str:
    """One name becomes a word of the language, everywhere or at one place."""
    if (match := _somewhere(rng, _NAME, text)) is None:
        return text
    word = rng.choice(WORDS)
    if rng.random() < 0.5:
        return text[: match.start()] + word + text[match.end() :]
    return re.sub(rf"(?<![A-Za-z0-9_.]){re.escape(match[0])}(?![A-Za-z0-9_.])", word, text)


def _number(rng: Random, text: str) -> str:
    if (match := _somewhere(rng, _NUMBER, text)) is None:
        return text
    return text[: match.start()] + rng.choice(NUMBERS) + text[match.end() :]


def _blank(rng: Random, text: str) -> str:
    at = rng.choice([i for i, character in enumerate(text) if character in " ,=:"] or [0])
    return text[:at] + rng.choice(("", "  ", "\t", "\r", " ,", " = ", ": ")) + text[at + 1 :]


_OF_TEXTS: tuple[Callable[[Random, str], str], ...] = (
    _line_ends, _mark, _string, _string, _rename, _rename, _number, _blank, _blank,
)  # fmt: skip
