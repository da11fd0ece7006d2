"""The checker's own reading of the text (`spec/grammar.md`): what a proof rests on, nothing else.

It may read more than the grammar allows (the parser refuses that), never another meaning.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import TypeAlias, TypeVar

WORD = re.compile(
    r"""//.* | [ \t\r]+ | @?"(?:[^"\\]|\\.)*" | [%@][A-Za-z0-9_][A-Za-z0-9_./-]*
    | at[ \t]+[A-Za-z0-9_./\\+@~-]+:[0-9]+ | [A-Za-z_][A-Za-z0-9_.]*
    | [0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?(?:[A-Za-z]+(?:/s)?)? | .""",
    re.VERBOSE,
)
UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "": 1, "B": 1}
UNITS |= {f"{prefix}B": 1000 ** (i + 1) for i, prefix in enumerate("KMGT")}
UNITS |= {f"{prefix}iB": 1024 ** (i + 1) for i, prefix in enumerate("KMGT")}
T = TypeVar("T")
Lines: TypeAlias = "list[tuple[int, list[str]]]"


class Unread(Exception):
    """(what the checker cannot read or what contradicts itself, line)"""


@dataclass(slots=True)
class Call:
    """A cNode's call, or its replay form: tokens of the arguments, results by position."""

    operator: str
    arguments: list[str]
    results: list[str]
    workspace: str = "0"
    time_ns: int | None = None
    token: str = ""
    replay: "Call | None" = None
    phase: str = ""
    line: int = 0

    def same(self, other: "Call") -> bool:
        return (self.operator, self.arguments) == (other.operator, other.arguments)


@dataclass(slots=True)
class Program:
    """What the text says. Names of aNodes and views begin with `%`, those of cNodes do not."""

    symbols: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # low, high, sample
    target: dict[str, int] = field(default_factory=lambda: {"granularity": 1})
    kind: dict[str, str] = field(default_factory=dict)  # of each aNode
    size: dict[str, str] = field(default_factory=dict)  # expressions of bytes
    base: dict[str, str] = field(default_factory=dict)  # the storage of each aNode and view
    nodes: dict[str, Call] = field(default_factory=dict)
    bound: list[tuple[str, str, str]] = field(default_factory=list)  # kind, storage, second or ""
    accumulate: bool = False
    steps: list[tuple[str, str, int]] = field(default_factory=list)  # what, name, line

    def expressions(self) -> set[str]:
        """Of sizes and workspaces; 0 is what a step without one takes."""
        calls = [call for own in self.nodes.values() for call in (own, own.replay or own)]
        return {"0", *self.size.values(), *(call.workspace for call in calls)}

    def reads(self, call: Call) -> list[str]:
        """Storages of the names in a call, in order."""
        return [self.base[word] for word in call.arguments if word[0] == "%"]


def sections(text: str) -> list[tuple[int, list[str], Lines]]:
    """(line, words of the head, statements between the braces) of each section."""
    found: list[tuple[int, list[str], Lines]] = []
    depth, words = 0, list[str]()
    for line, row in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        for word in [*WORD.findall(row), ";"]:
            depth += (word == "{") - (word == "}")
            if word[0] in " \t\r" or word[:2] == "//":
                continue
            if word != ";" and (word, depth) not in (("{", 1), ("}", 0)):
                words.append(word)
            elif words:
                inside = (depth > 0 and word != "{") or word == "}"
                found[-1][2].append((line, words)) if inside else found.append((line, words, []))
                words = []
    if depth or words:
        raise Unread("a bracket is left open", line)
    return found


def read(text: str, schedule: str) -> Program:
    """The graph, its binding and one schedule."""
    p, seen = Program(), list[str]()
    for line, head, body in sections(text):
        try:
            seen.append(read_section(p, head, body, schedule))
        except (ValueError, IndexError, KeyError) as error:
            raise Unread(f"cannot read {' '.join(head[:2])}: {error}", line) from None
    once = [name for name in seen if name]
    if seen[:1] != ["fbir 1"] or len({*once}) < len(once):
        raise Unread("something is given twice, or this is not fbir 1", 1)
    if any(not low <= n <= high for low, high, n in p.symbols.values()):
        raise Unread("a sample stands outside its range", 1)
    if p.target["granularity"] < 1 or "graph" not in seen or f"@{schedule}" not in seen:
        raise Unread(f"not one graph and one schedule {schedule!r}", 1)
    return p


def read_section(p: Program, head: list[str], body: Lines, schedule: str) -> str:
    match head:
        case ["fbir", "1"]:
            return "fbir 1"
        case ["sym", name, "in", "[", low, ",", high, "]", "=", sample, *_]:
            p.symbols |= inner({name: (int(low), int(high), int(sample))})
            return f"sym {name}"
        case ["target", _]:
            words = [word for _, statement in body for word in statement]
            p.target |= dict(zip(words[::2], map(amount, words[1::2]), strict=True))
            return "target"
        case ["graph", _] | ["bind"]:
            for line, words in sorted(body, key=lambda entry: rank(entry[1])):
                try:
                    (read_bound if head[0] == "bind" else read_node)(p, line, words)
                except (ValueError, IndexError, KeyError) as error:
                    raise Unread(f"cannot read {' '.join(words)[:60]!r}: {error}", line) from None
            return head[0]
        case ["schedule", name, *_]:
            name = json.loads(name[1:]) if name[1] == '"' else name[1:]
            p.steps += [step(line, words) for line, words in body if name == schedule]
            return f"@{name}"
        case ["captured" | "source" | "sha256" | "proven", *_]:
            pass
        case _:
            raise ValueError("no such section")
    return ""


def step(line: int, words: list[str]) -> tuple[str, str, int]:
    match words:
        case [("free" | "offload" | "prefetch" | "wait" | "hostfree") as what, name]:
            return what, name, line
        case [name] | [name, "nosave"]:
            return ("nosave" if words[1:] else "compute"), name, line
    raise Unread(f"no step: {' '.join(words)}", line)


def read_bound(p: Program, line: int, words: list[str]) -> None:
    match words:
        case ["grads", how]:
            p.accumulate = how == "accumulate"
        case [("arg" | "param" | "buffer" | "result") as kind, *_]:
            name, *second = (p.base[word] for word in words if word[0] == "%")
            p.bound.append((kind, name, "".join(second)))
        case _:
            raise Unread(f"nothing to bind: {words[0]}", line)


def rank(words: list[str]) -> int:
    """aNodes before views before cNodes: statements stand in any order that keeps each of them."""
    return 2 if words[0][0] != "%" else int(words[1] == "=")


def read_node(p: Program, line: int, words: list[str]) -> None:
    match words:
        case [name, *_] if name in p.base or name in p.nodes:
            raise Unread(f"{name} is declared twice", line)
        case [name, ":", kind, _, "[", *rest] if name[0] == "%":
            stack = rest[: rest.index("]") : -1]
            if stack.pop() != "bytes":
                raise ValueError("no bytes")
            p.kind[name], p.base[name], p.size[name] = kind, name, expression(stack)
        case [name, "=", "view", "of", base, _, "(", *rest] if base in p.kind:
            reads = {p.base[word] for word in rest if word[0] == "%"}
            if reads != {base}:
                raise Unread(f"view {name} reads not just {base} and its views", line)
            p.base[name] = base
        case [name, ":", phase, *rest]:
            stack = rest[::-1]
            p.nodes[name] = call(stack)
            p.nodes[name].phase, p.nodes[name].line = phase, line
        case _:
            raise ValueError("no aNode, view or cNode")
    if words[1:3] != ["=", "view"] and stack:
        raise ValueError(f"{stack[-1]!r} was not expected")


def call(stack: list[str]) -> Call:
    """A call and its attributes, off the end of `stack`; a replay form ends with its brace."""
    results, equals = list[str](), ","
    while equals == "," and (stack[-1][0] == "%" or (stack[-1] == "_" and stack[-2] != "(")):
        results.append(stack.pop())
        equals = stack.pop()
    made, depth = Call(stack.pop(), [], results), 1
    if stack.pop() != "(":
        raise ValueError("no call")
    while depth:
        made.arguments.append(stack.pop())
        depth += (made.arguments[-1] == "(") - (made.arguments[-1] == ")")
    made.arguments.pop()
    while stack and (word := stack.pop()) != "}":
        match word:
            case "time":
                made.time_ns = amount(stack.pop())
            case "workspace":
                made.workspace = expression(stack)
            case "token":
                made.token = stack.pop()
            case "replay" if stack.pop() == "{":
                made.replay = call(stack)
            case "of":
                stack.pop()
                while stack and stack[-1] == ",":
                    del stack[-2:]
            case _ if word[:2] == "at":
                if word == "at" and stack.pop() and stack[-1:] == [":"]:
                    del stack[-2:]
                if stack and stack[-1][0] == '"':
                    stack.pop()
            case _:
                raise ValueError(f"{word!r} was not expected")
    return made


def expression(stack: list[str]) -> str:
    """An integer expression of the symbols as Python writes it; `b.c` is named `_b·c`."""
    text, depth = "", 0
    while stack and (depth or text[-1:] in ("", *"+-*") or stack[-1] in ("+", "-", "*", "(")):
        word = stack.pop()
        depth += (word == "(") - (word == ")")
        symbol = (word[0].isalpha() and stack[-1:] != ["("]) or word[0] == "_"
        text += next(iter(inner({word: 0}))) if symbol else word
    return text


def inner(values: Mapping[str, T]) -> dict[str, T]:
    """Symbols by their names in expressions."""
    return {"_" + b.replace(".", "·"): value for b, value in values.items()}


@cache
def amount(word: str) -> int:
    """Bytes, bytes per second or nanoseconds: a whole number."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)(?:/s)?", word)
    value = Fraction(match[1]) * UNITS[match[2]] if match else Fraction(1, 2)
    if value.denominator != 1:
        raise ValueError(f"{word!r} is no whole amount")
    return value.numerator
