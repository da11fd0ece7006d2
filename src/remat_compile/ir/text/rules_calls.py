"""Rules of `fbir.lark` inside a statement: expressions, operators, arguments, attributes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias, TypeVar, cast

from lark import Token

from ..expr import (
    Add,
    CeilDiv,
    Const,
    Expr,
    FloorDiv,
    Max,
    Mul,
    RoundUp,
    Sym,
    evaluate,
    symbols_of,
    too_large,
)
from ..graph import Arg, Atom, AtomKind, Call, InnerCall, Ref, Replay
from ..span import Loc
from .tokens import Entry, double, duration_of, integer, once, refuse, short, string

T = TypeVar("T")
Arguments: TypeAlias = tuple[tuple[Arg, ...], tuple[tuple[str, Arg], ...]]


def _negated(expr: Expr) -> Expr:
    match expr:
        case Const(value):
            return Const(-value)
        case Mul((Const(value), *rest)):
            return Mul((Const(-value), *rest))
        case _:
            return Mul((Const(-1), expr))


class ValueRules:
    """Rules of what stands inside a statement: expressions, calls, attributes. They run while
    the text is parsed, and hold no state, so that one parser serves every thread.
    """

    # Expressions. Nothing is simplified: what is written is what is built.

    def integer(self, number: Token) -> Const:
        return Const(integer(number))

    def symbol(self, name: Token) -> Sym:
        return Sym(str(name))

    def sum(self, first: Expr, *rest: Token | Expr) -> Add:
        signed = zip(rest[::2], cast("tuple[Expr, ...]", rest[1::2]), strict=True)
        return Add((first, *(term if sign == "+" else _negated(term) for sign, term in signed)))

    def product(self, *factors: Expr) -> Mul:
        return Mul(factors)

    def division(self, word: Token, dividend: Expr, divisor: Token) -> Expr:
        by = integer(divisor)
        if by <= 0:
            refuse("FB0108", f"{word}…) needs a divisor of at least 1, not {by}", divisor)
        return _DIVISIONS[word](dividend, by)

    def maximum(self, word: Token, *terms: Expr) -> Max:
        return Max(terms)

    def several(self, *parts: T) -> tuple[T, ...]:
        return parts

    # Operators and their arguments.

    def argument(self, part: Token | Expr | tuple[Arg, ...]) -> Arg:
        if isinstance(part, tuple):
            return part
        if not isinstance(part, Token):
            if symbols_of(part) or too_large(part, {}):
                return part  # well-formedness refuses what is too large, with its place
            return evaluate(part, {})
        match part.type:
            case "REF":
                return Ref(part[1:])
            case "STRING":
                return string(part)
            case "FLOAT":
                return double(part)
            case "ATOM":
                kind, _, value = part.partition(":")
                return Atom(cast(AtomKind, kind), value)
            case _:
                return _CONSTANTS[part]

    def keyword(self, key: Token, value: Arg) -> Entry:
        name = key.rstrip("= \t")
        return Entry(name, key, name, value)

    def arguments(self, *parts: Arg | Entry) -> Arguments:
        args: list[Arg] = []
        kwargs: list[Entry] = []
        for part in parts:
            if type(part) is Entry:
                kwargs.append(part)
            elif kwargs:
                message = "an argument without a name stands after this one"
                refuse("FB0107", message, kwargs[0].token)
            else:
                args.append(cast(Arg, part))
        return tuple(args), tuple(once(kwargs, "in this call").items())

    def call(self, operator: Token, arguments: Arguments | None) -> Call:
        return Call(operator[:-1], *(arguments or ()))

    def inner(self, writes: tuple[str | None, ...], call: Call, index: int | None) -> InnerCall:
        return InnerCall(writes, call, index)

    # Attributes of cNodes.

    def index(self, number: Token) -> int:
        return integer(number)

    def writes(self, *results: Token) -> tuple[str | None, ...]:
        return tuple(None if token == "_" else token[1:] for token in results)

    def time(self, time: Token) -> Entry:
        return Entry("time", time, "time_ns", duration_of(time))

    def host_time(self, word: Token, time: Token) -> Entry:
        return Entry("on host", word, "host_time_ns", duration_of(time))

    def workspace(self, word: Token, size: Expr) -> Entry:
        return Entry("workspace", word, "workspace", size)

    def token(self, name: Token) -> Entry:
        return Entry("token", name, "token", name[1:])

    def of(self, *names: Token) -> Entry:
        return Entry("of", names[0], "of", tuple(map(str, names)))

    def at_place(self, place: Token, module: Token | None) -> Entry:
        file, _, line = place.rpartition(":")
        loc = Loc(file, int(short(line, place)), "" if module is None else string(module))
        return Entry("at", place, "loc", loc)

    def at_quoted(self, first: Token, line: Token | None, module: Token | None) -> Entry:
        if line is None:
            return Entry("at", first, "loc", Loc("", 0, string(first)))
        place = Loc(string(first), integer(line), "" if module is None else string(module))
        return Entry("at", first, "loc", place)

    def replay(
        self, word: Token, writes: tuple[str | None, ...] | None, call: Call, *costs: Entry
    ) -> Entry:
        form = Replay(writes or (), call, **once(costs, "in this replay form"))
        return Entry("replay", word, "replay", form)


_DIVISIONS: dict[str, Callable[[Expr, int], Expr]] = {
    "floordiv(": FloorDiv,
    "ceildiv(": CeilDiv,
    "roundup(": RoundUp,
}

_CONSTANTS: dict[str, Arg] = {
    "true": True,
    "false": False,
    "none": None,
    "inf": math.inf,
    "-inf": -math.inf,
    "nan": math.nan,
}
