"""The checker's own reading of the text (`spec/grammar.md`): what a proof rests on, nothing else.

It may read more than the grammar allows (the parser refuses that), never another meaning.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import takewhile
from sys import intern
from typing import TypeAlias

from .operators import codec, draws, gives_view, is_function, may_give_view

WORD = re.compile(  # a group of what is neither a comment nor space
    r"""//.* | [ \t\r]+ | ( @?"(?:[^"\\]|\\.)*" | [%@][A-Za-z0-9_][A-Za-z0-9_./-]*
    | at[ \t]+[A-Za-z0-9_./\\+@~-]+:[0-9]+ | [A-Za-z_][A-Za-z0-9_.]*
    | [0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?(?:[A-Za-z]+(?:/s)?)? | . )""",
    re.VERBOSE,
)
PLAIN = re.compile(r"(?:[ \t]+%?[A-Za-z0-9_.]+)+[ \t\r]*")  # words and nothing else
UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "": 1, "B": 1}
UNITS |= {f"{prefix}B": 1000 ** (i + 1) for i, prefix in enumerate("KMGT")}
UNITS |= {f"{prefix}iB": 1024 ** (i + 1) for i, prefix in enumerate("KMGT")}
LEVELS = (("+", "-"), ("*",))  # operators, from the loosest to the tightest
CALLERS = ("input", "param", "buffer", "const", "opt_state")
FUNCTIONS = ("floordiv", "ceildiv", "roundup", "max")
Words: TypeAlias = list[str]


class Wrong(Exception):
    """A violation in the text, the graph or the schedule."""


def need(holds: object, *words: str) -> None:
    if not holds:
        raise Wrong(" ".join(words))


@dataclass(slots=True)
class Operation:
    """A cNode's call, or its replay form: words of the arguments, results by position."""

    operator: str
    arguments: Words
    results: Words
    workspace: str = "0"
    time_ns: int | None = None
    host_ns: int = 0
    token: str = ""
    replay: "Operation | None" = None
    phase: str = ""
    region: dict[str, str] = field(default_factory=dict)  # the storage of what calls in it make

    def fused(self) -> bool:
        return self.operator == "fused"

    def same(self, other: "Operation") -> bool:
        return (self.operator, self.arguments) == (other.operator, other.arguments)

    def is_function(self) -> bool:
        return is_function(self.operator, self.arguments)

    def draws(self) -> bool:
        return draws(self.operator, self.arguments)

    def takes_over(self, reads: Words) -> dict[str, str]:
        """Storages that go on as results, which take no bytes."""
        ends = self.operator in ("accumulate", "update")
        return dict(zip(reads, self.results, strict=False)) if ends else {}

    def made(self) -> Words:
        return [a for a in self.results if a != "_"]


@dataclass(slots=True)
class Program:
    """The content of the text. Names of aNodes and views begin with `%`; expressions are
    postfix."""

    symbols: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # low, high, sample
    target: dict[str, int] = field(default_factory=lambda: {"granularity": 1})
    kind: dict[str, str] = field(default_factory=dict)  # of each aNode
    type: dict[str, Words] = field(default_factory=dict)  # element type and shape of each aNode
    size: dict[str, str] = field(default_factory=dict)  # bytes of each aNode
    least: Words = field(default_factory=Words)  # expressions that are nowhere above 0
    base: dict[str, str] = field(default_factory=dict)  # the storage of each aNode and view
    view: dict[str, Words] = field(default_factory=dict)  # operator and arguments of each view
    nodes: dict[str, Operation] = field(default_factory=dict)
    bound: list[tuple[str, str, str]] = field(default_factory=list)  # kind, storage, second or ""
    axioms: dict[str, frozenset[tuple[str, int]]] = field(default_factory=dict)  # of codecs
    accumulate: bool = False
    homes: frozenset[str] = frozenset()  # what is on the host between two steps
    steps: list[tuple[int, str, str]] = field(default_factory=list)  # line, what, name
    line: int = 0  # that is looked at

    def expressions(self) -> list[str]:
        """The expressions of sizes and workspaces, each once, in a fixed order."""
        calls = [call for own in self.nodes.values() for call in (own, own.replay or own)]
        return sorted({*self.size.values(), *(call.workspace for call in calls)})

    def held(self) -> Words:
        """The storages that the caller holds before all steps, gradients of the step before among
        them; as `host %a` what is on the host."""
        old = [(a, grad) for kind, a, grad in self.bound if kind == "param" and grad]
        own = [(a, a) for a, kind in self.kind.items() if kind in CALLERS]
        held = [*own, *(old if self.accumulate else [])]
        return [f"host {a}" if by in self.homes else a for a, by in held]

    def reads(self, call: Operation) -> Words:
        """Storages of the names in a call, in order."""
        return [self.base[word] for word in call.arguments if word[0] == "%"]


def sections(text: str) -> Iterator[tuple[int, Words, list[tuple[int, Words]]]]:
    """(line, head, statements between the braces) of each section. A statement is one line, but
    for a region, whose lines end in the word `;`."""
    head, body, start, depth, words = Words(), list[tuple[int, Words]](), 1, 0, Words()
    rows = (row[0] for row in re.finditer("(?m)^.*", text.removeprefix("\ufeff")))
    for line, row in enumerate(rows, 1):
        if depth == 1 and PLAIN.fullmatch(row):
            body.append((line, [*map(intern, row.split())]))
            continue
        for word in [*filter(None, WORD.findall(row)), ";"]:
            depth += (word == "{") - (word == "}")
            if (word != ";" or depth > 1) and (word, depth) not in (("{", 1), ("}", 0)):
                words.append(intern(word))  # equal words are one: a long text has few
                continue
            if word == "{" or (word == ";" and depth == 0):
                head, start = words, line
            elif words:
                body.append((line, words))
            if depth == 0 and head:
                yield start, head, body
                head, body = Words(), []
            words = Words()
    need(depth == 0, "a bracket is left open")


def taken(body: list[tuple[int, Words]]) -> Iterator[tuple[int, Words]]:
    """The statements in order, out of the list: those of a long text take more than is kept."""
    body.reverse()
    while body:
        yield body.pop()


def read(p: Program, text: str, schedule: str) -> None:
    """The graph, its binding and one schedule."""
    seen = Words()
    for p.line, head, body in sections(text):
        match head:
            case ["captured" | "layouts" | "source" | "sha256" | "proven", *_]:
                continue
            case ["sym", name, "in", "[", low, ",", high, "]", "=", sample, *_]:
                need(int(low) <= int(sample) <= int(high), "the sample is not in the range")
                p.symbols[name] = int(low), int(high), int(sample)
            case ["target", _]:
                words = [word for _, statement in body for word in statement]
                p.target |= dict(zip(words[::2], map(amount, words[1::2]), strict=True))
                need(p.target["granularity"] > 0, "no granularity")
            case ["graph", _]:  # aNodes before views before cNodes
                body.sort(key=lambda statement: rank(statement[1]))
                for p.line, words in taken(body):
                    read_node(p, words)
            case ["bind"]:
                for p.line, words in body:
                    p.accumulate |= words == ["grads", "accumulate"]
                    names = [p.base[word] for word in words if word[0] == "%"]
                    if words[0] != "grads":
                        p.bound.append((words[0], names[0], "".join(names[1:])))
            case ["schedule", name, *_]:
                head[1] = json.loads(name[1:]) if name[1] == '"' else name[1:]
                if head[1] == schedule:
                    p.steps = [(line, *step(words)) for line, words in taken(body)]
                    homes = [*takewhile(lambda one: one[1] == "home", p.steps)]
                    p.steps, p.homes = p.steps[len(homes) :], frozenset(a for *_, a in homes)
                    need(len(homes) == len(p.homes), "a home is said twice")
            case _:
                need(head == ["fbir", "1"], "no such section:", *head)
        seen.append(" ".join(head[:2] if head[0] in ("sym", "schedule") else head[:1]))
    p.line = 0
    need(seen[:1] == ["fbir"] and len({*seen}) == len(seen), "not fbir 1, or a section twice")
    need({"graph", f"schedule {schedule}"} <= {*seen}, "not one graph and one such schedule")


def step(words: Words) -> tuple[str, str]:
    """`F` is `compute F`, `F nosave` is `nosave F`, `on host %a` is `home %a`, `U on
    host` is `host U`, and all others stand as they are done."""
    words = ["home", *words[2:]] if words[:2] == ["on", "host"] else words
    words = ["host", *words[:1]] if words[1:] == ["on", "host"] else words
    what, name = ["compute", *words] if len(words) == 1 else words
    return (name, what) if name == "nosave" else (what, name)


def rank(words: Words) -> int:
    """Statements stand in any order that keeps that of aNodes, of views and of cNodes."""
    return 2 if words[0][0] != "%" else int(words[1] == "=")


def read_node(p: Program, words: Words) -> None:
    name = words[0]
    need(name not in p.base and name not in p.nodes, name, "is declared twice")
    match words:
        case [_, ":", kind, element, "[", *rest] if name[0] == "%":
            p.type[name] = [element, "[", *rest[: rest.index("]") + 1]]
            stack = rest[: rest.index("]") : -1]
            need(stack.pop() == "bytes", "no bytes")
            p.kind[name], p.base[name] = kind, name
            p.size[name] = intern(" ".join(expression(stack)))
            need(not stack, "not expected:", *stack)
        case [_, "=", "view", "of", base, operator, "(", *rest]:
            need(may_give_view(operator), operator, "gives no view")
            need(is_function(operator, rest) and not draws(operator, rest), operator, "is no view")
            need(p.kind[base] and {p.base[word] for word in rest if word[0] == "%"} == {base}, name)
            p.base[name], p.view[name] = base, [operator, *rest]
        case [_, ":", phase, *rest]:
            stack = rest[::-1]
            p.nodes[name] = own = call(stack)
            own.phase = phase
            need(not stack, "not expected:", *stack)
            need(
                {*own.results} <= own.region.keys() or not own.fused(),
                name,
                "makes what no call does",
            )
            need(not own.fused() or (own.region and not own.token and not own.replay), name)
            places = [own.region.get(a, a) for a in own.made()]
            apart = len({*places}) == len(places) and not {*places} & {*own.arguments}
            need(apart, name, "gives one storage under two names")
            for form in filter(None, [own, own.replay]):
                need(form.is_function(), form.operator, "is no function of what it reads")
                need(own.token or not form.draws(), form.operator, "draws without a token")
                need(not gives_view(form.operator) or not form.made(), name, "gives views")
        case _:
            raise Wrong("no aNode, view or cNode")


def call(stack: Words) -> Operation:
    """A call and its attributes, off the end of `stack`; a replay form ends with its brace."""
    results, equals = Words(), ","
    while equals == "," and (stack[-1][0] == "%" or (stack[-1] == "_" and stack[-2] != "(")):
        results.append(stack.pop())
        equals = stack.pop()
    made, depth = Operation(stack.pop(), [], results), 1
    need(stack.pop() == "(", "no call")
    while depth:
        made.arguments.append(stack.pop())
        depth += (made.arguments[-1] == "(") - (made.arguments[-1] == ")")
    made.arguments = made.arguments[:-1]  # of its own size: `append` makes room for more
    while stack and stack[-1] not in ("}", ";"):
        match word := stack.pop():
            case "time":
                made.time_ns = amount(stack.pop())
            case "on" if stack.pop() == "host":
                made.host_ns = amount(stack.pop())
            case "workspace":
                made.workspace = intern(" ".join(expression(stack)))
            case "token":
                made.token = stack.pop()
            case "replay" if stack.pop() == "{":
                made.replay = call(stack)
                need(stack.pop() == "}" and not made.replay.fused(), "no replay form")
            case "{" if made.fused():
                region(stack, made)
            case "[":  # the result that a call in a region picks
                need(stack.pop().isdecimal() and stack.pop() == "]", "no index")
            case "of":
                stack.pop()
                while stack and stack[-1] == ",":
                    del stack[-2:]
            case _:  # `at file:line "module"`, `at "file":line "module"` or `at "module"`
                need(word[:2] == "at", "not expected:", word)
                while stack and (stack[-1] == ":" or stack[-1][0] in '"0123456789'):
                    stack.pop()
    return made


def region(stack: Words, own: Operation) -> None:
    """A function of the arguments: each call reads those, or what calls before it made."""
    known = {word for word in own.arguments if word != ","}
    need(all(word[0] == "%" for word in known) and not own.region, "no arguments of a region")
    while stack[-1] != "}":
        if stack[-1] == ";":
            stack.pop()
            continue
        inner = call(stack)
        plain = inner == Operation(inner.operator, inner.arguments, inner.results)
        need(plain and inner.operator not in ("loss", "accumulate", "fused"), "not in a region")
        need({word for word in inner.arguments if word[0] == "%"} <= known, "reads what is not in")
        need(not {*inner.made()} & known, "a name twice in a region")
        plain = codec(inner.operator) == ("", "") and inner.is_function()
        need(plain and not inner.draws(), inner.operator, "cannot stand in a region")
        known |= {*inner.made()}
        viewed = gives_view(inner.operator) and [w for w in inner.arguments if w[0] == "%"]
        base = viewed[0] if viewed else ""
        own.region |= {a: own.region.get(base, base) or a for a in inner.made()}
    stack.pop()


def expression(stack: Words, level: int = 0) -> Words:
    """An expression off the end of `stack`, in postfix order: `b*(s - 1)` is `b s 1 - *`."""
    if level == len(LEVELS):
        word = stack.pop()
        if word == "-":
            return ["0", *expression(stack, level), "-"]
        opens = word == "(" or (word in FUNCTIONS and stack[-1:] == ["("] and stack.pop() == "(")
        if not opens:
            return [word]
        postfix = expression(stack)
        while stack[-1] == "," and stack.pop():
            postfix += [*expression(stack), f"{word}("]
        need(stack.pop() == ")", "no bracket closes")
        return postfix
    postfix = expression(stack, level + 1)
    while stack and stack[-1] in LEVELS[level]:
        operator = stack.pop()
        postfix += [*expression(stack, level + 1), operator]
    return postfix


@cache
def amount(word: str) -> int:
    """Bytes, bytes per second or nanoseconds: a whole number."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)(?:/s)?", word)
    value = Fraction(match[1]) * UNITS[match[2]] if match else Fraction(1, 2)
    need(value.denominator == 1, word, "is no whole amount")
    return value.numerator
