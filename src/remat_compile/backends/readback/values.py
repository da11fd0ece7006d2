"""Values that a variable of generated code can have: the abstract values of the read-back.

Two expressions that mean the same get equal values, however they are written: sizes are
polynomials, and a view that changes nothing is what it looks at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import assert_never

from ...ir.expr import Add, CeilDiv, Const, Expr, FloorDiv, Max, Mul, RoundUp, Sym
from ...ir.graph import Atom
from ...ir.rewrites.reshapes import RESHAPES, VIEW


@dataclass(frozen=True, slots=True)
class ANodeInstance:
    """One materialisation of an aNode: number 0 is what the caller holds, the others count
    the results of executions and prefetches over the whole step."""

    anode: str
    number: int


@dataclass(frozen=True, slots=True)
class RandomState:
    """The state of the random stream after so many draws from it."""

    draws: int


@dataclass(frozen=True, slots=True)
class OnHost:
    """A copy on the host."""

    of: ANodeInstance | RandomState


@dataclass(frozen=True, slots=True)
class CallCopies:
    """The host copies of the call, which its forward hands to its backward."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A Python constant by its `repr`, so that 1, 1.0 and True differ and nan equals nan."""

    text: str


@dataclass(frozen=True, slots=True)
class Items:
    """A list or tuple of arguments."""

    parts: tuple[Value, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ViewValue:
    """A pure function of what it looks at. `part` picks one of several results; None
    stands for the only result, -1 for all of them together.

    Views of views of views are as deep as the model makes them: deeper than Python calls go.
    """

    op: str
    args: tuple[Value, ...]
    kwargs: frozenset[tuple[str, Value]] = frozenset()
    part: int | None = None
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        known = hash((self.op, self.args, self.kwargs, self.part))
        object.__setattr__(self, "_hash", known)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        pairs: list[tuple[object, object]] = [(self, other)]
        while pairs:
            match pairs.pop():
                case one, same if one is same:
                    continue
                case ViewValue() as one, ViewValue() as two:
                    if one._hash != two._hash or not one._is_alike(two):
                        return False
                    pairs.extend(zip(one.args, two.args, strict=True))
                    own, theirs = dict(one.kwargs), dict(two.kwargs)
                    pairs.extend((value, theirs[key]) for key, value in own.items())
                case Items(one_s), Items(two_s):
                    if len(one_s) != len(two_s):
                        return False
                    pairs.extend(zip(one_s, two_s, strict=True))
                case one, two:
                    if type(one) is not type(two) or one != two:
                        return False
        return True

    def _is_alike(self, other: ViewValue) -> bool:
        """But for the values of what is looked at."""
        return (
            (self.op, self.part, len(self.args)) == (other.op, other.part, len(other.args))
            and len(self.kwargs) == len(other.kwargs)
            and dict(self.kwargs).keys() == dict(other.kwargs).keys()
        )


Factor = tuple[object, ...]
Poly = frozenset[tuple[tuple[Factor, ...], int]]
"""A sum of products: each has its factors, sorted, and its coefficient, which is not 0.
A factor is `("dim", anode, axis)`, `("floor", poly, divisor)` or `("max", polys)`."""


@dataclass(frozen=True, slots=True)
class Size:
    """An integer that depends on dynamic dimensions."""

    poly: Poly


Value = (
    ANodeInstance | RandomState | OnHost | CallCopies | Literal | Items | ViewValue | Size | Atom
)


def storages(value: Value) -> Iterator[ANodeInstance | RandomState]:
    """Return the memory that a value keeps alive."""
    values = [value]
    while values:
        match values.pop():
            case ANodeInstance() | RandomState() as storage:
                yield storage
            case Items(parts):
                values += parts[::-1]
            case ViewValue(_, args, kwargs):
                values += (*args, *(v for _, v in kwargs))[::-1]
            case OnHost() | CallCopies() | Literal() | Size() | Atom():
                continue
            case other:
                assert_never(other)


_SAME = frozenset(("aten.detach.default", "aten.alias.default"))
_UNDONE_BY_ITSELF = frozenset(("aten.t.default", "aten.transpose.int"))


def viewed(view: ViewValue) -> Value:
    """The view, or the value of which it is another name. The code runs without autograd,
    so a `detach` is one; two equal transpositions in a row undo each other, and of two reshapes
    the last one counts."""
    if view.kwargs or not view.args or view.part is not None:
        return view
    inner = view.args[0]
    if view.op in _SAME and len(view.args) == 1:
        return inner
    undone = (
        isinstance(inner, ViewValue) and inner.op == view.op and inner.args[1:] == view.args[1:]
    )
    if view.op in _UNDONE_BY_ITSELF and undone:
        assert isinstance(inner, ViewValue)
        return inner.args[0]
    if view.op in RESHAPES:
        is_one = isinstance(inner, ViewValue) and inner.op == VIEW and not inner.kwargs
        source = inner.args[0] if is_one and isinstance(inner, ViewValue) else inner
        return replace(view, op=VIEW, args=(source, *view.args[1:]))
    return view


# -- sizes --------------------------------------------------------------------------------


def integer(value: Value) -> Poly | None:
    """An integer as a polynomial; None for anything else."""
    match value:
        case Size(poly):
            return poly
        case Literal(text) if text.lstrip("-").isdigit():
            return _constant(int(text))
        case _:
            return None


def as_value(poly: Poly) -> Value:
    """A polynomial as a value: a literal where it depends on nothing."""
    known = _known(poly)
    return Size(poly) if known is None else Literal(repr(known))


def _constant(number: int) -> Poly:
    return frozenset({((), number)}) if number else frozenset()


def _known(poly: Poly) -> int | None:
    if not poly:
        return 0
    ((factors, number), *rest) = poly
    return number if not factors and not rest else None


def dimension(anode: str, axis: int) -> Value:
    """The length of an axis of an argument."""
    return Size(frozenset({((("dim", anode, axis),), 1)}))


def add_sizes(parts: Iterable[Poly]) -> Poly:
    total: dict[tuple[Factor, ...], int] = {}
    for poly in parts:
        for factors, number in poly:
            total[factors] = total.get(factors, 0) + number
    return frozenset((factors, number) for factors, number in total.items() if number)


def multiply_sizes(parts: Iterable[Poly]) -> Poly:
    def times(a: Poly, b: Poly) -> Poly:
        return add_sizes(
            frozenset({(tuple(sorted((*f, *g), key=repr)), m * n)}) for f, m in a for g, n in b
        )

    return reduce(times, parts, _constant(1))


def floor_division(poly: Poly, divisor: int) -> Poly:
    known = _known(poly)
    if known is not None:
        return _constant(known // divisor)
    return poly if divisor == 1 else frozenset({((("floor", poly, divisor),), 1)})


def ceil_division(poly: Poly, divisor: int) -> Poly:
    """`-(-a // n)`, which is what Python code writes for it."""
    minus = _constant(-1)
    return multiply_sizes((minus, floor_division(multiply_sizes((minus, poly)), divisor)))


def largest(parts: Iterable[Poly]) -> Poly:
    polys = frozenset(parts)
    if len(polys) == 1:
        return next(iter(polys))
    known = [_known(p) for p in polys]
    if all(k is not None for k in known):
        return _constant(max(k for k in known if k is not None))
    return frozenset({((("max", polys),), 1)})


def size_of_expr(expr: Expr, symbols: dict[str, Poly]) -> Poly:
    """An expression of the graph; `symbols` says what each stands for."""

    def of(inner: Expr) -> Poly:
        match inner:
            case Const(number):
                return _constant(number)
            case Sym(name):
                return symbols[name]
            case Add(terms):
                return add_sizes(map(of, terms))
            case Mul(factors):
                return multiply_sizes(map(of, factors))
            case FloorDiv(dividend, divisor):
                return floor_division(of(dividend), divisor)
            case CeilDiv(dividend, divisor):
                return ceil_division(of(dividend), divisor)
            case Max(terms):
                return largest(map(of, terms))
            case RoundUp(value, multiple):
                whole = ceil_division(of(value), multiple)
                return multiply_sizes((whole, _constant(multiple)))
            case _:
                assert_never(inner)

    return of(expr)


# -- words --------------------------------------------------------------------------------


SHOWN = 20
"""Views of views that a message spells out."""


def shown(value: Value, deep: int = SHOWN) -> str:
    """A value as messages name it."""
    match value:
        case ANodeInstance(name, number):
            return f"%{name}" if number == 0 else f"%{name} (instance {number})"
        case RandomState(draws):
            return f"the random state after {draws} draws"
        case OnHost(of):
            return f"the host's copy of {shown(of)}"
        case CallCopies():
            return "the copies of the call"
        case Literal(text):
            return text
        case Items(parts):
            return f"[{', '.join(shown(part, deep) for part in parts)}]"
        case ViewValue(op) if deep == 0:
            return f"{op}(...)"
        case ViewValue(op, args, kwargs, part):
            named = sorted(kwargs, key=lambda pair: pair[0])
            inner = [shown(a, deep - 1) for a in args]
            inner += [f"{k}={shown(v, deep - 1)}" for k, v in named]
            return f"{op}({', '.join(inner)})" + ("" if part is None else f"[{part}]")
        case Size(poly):
            return " + ".join(sorted(map(_said_product, poly)))
        case Atom(kind, name):
            return f"{kind}:{name}"
        case _:
            assert_never(value)


def _said_product(product: tuple[tuple[Factor, ...], int]) -> str:
    factors, number = product
    return "*".join((str(number), *(f"{f[0]}({', '.join(map(str, f[1:]))})" for f in factors)))
