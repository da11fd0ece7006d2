"""Floating point operations of an operator, from its shapes. A multiply-add counts as 2.

Matrix products, convolutions and attention have their own count; every other operator
counts one operation per element that it writes (it is bound by memory anyway).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ..ir.graph import Call, Ref
from ._shapes import Shape, value_of


@dataclass(frozen=True, slots=True)
class _Shapes:
    """Shapes of a call's arguments and results; `()` for what is not a tensor."""

    call: Call
    args: tuple[Shape, ...]
    results: tuple[Shape, ...]
    env: Mapping[str, int]

    def named(self, name: str, position: int) -> object:
        """An argument by keyword or position."""
        for key, value in self.call.kwargs:
            if key == name:
                return value_of(value, self.env)
        return value_of(self.call.args[position], self.env)


def flops_of(
    call: Call, shapes: Mapping[str, Shape], results: Sequence[Shape], env: Mapping[str, int]
) -> int:
    """Operations of one execution of `call`; `results` are the shapes it writes."""
    args = tuple(shapes.get(a.name, ()) if isinstance(a, Ref) else () for a in call.args)
    given = _Shapes(call, args, tuple(results), env)
    name = call.op.split(".")[1] if call.op.count(".") == 2 else call.op
    rule = _RULES.get(name) or _attention_rule(name)
    if rule is not None:
        return rule(given)
    return sum(prod(shape) for shape in results)


def _product(first: int) -> Callable[[_Shapes], int]:
    """`[..., m, k] x [..., k, n]`: the first factor stands at position `first`."""

    def count(given: _Shapes) -> int:
        a, b = given.args[first], given.args[first + 1]
        return 2 * prod(a) * (b[-1] if len(b) > 1 else 1)

    return count


def _one_convolution(x: Shape, weight: Shape, y: Shape, transposed: bool) -> int:
    """Each element of the output (of the input, when transposed) meets one filter's weights:
    the weight is `[out, in/groups, *kernel]`, transposed `[in, out/groups, *kernel]`."""
    return 2 * prod(x if transposed else y) * prod(weight[1:])


def _convolution(given: _Shapes) -> int:
    transposed = bool(given.named("transposed", 6))
    return _one_convolution(given.args[0], given.args[1], given.results[0], transposed)


def _convolution_backward(given: _Shapes) -> int:
    """One convolution for the input's gradient and one for the weight's, as asked for."""
    y, x, weight = given.args[:3]
    wanted = given.named("output_mask", 10)
    sides = sum(bool(side) for side in wanted[:2]) if isinstance(wanted, tuple) else 2
    return sides * _one_convolution(x, weight, y, bool(given.named("transposed", 7)))


def _attention(first: int, products: int) -> Callable[[_Shapes], int]:
    """`products` matrix products over `[batch, heads, queries, keys]`, of the head's width;
    the query stands at position `first`. Causal masks are not taken off."""

    def count(given: _Shapes) -> int:
        query, key = given.args[first], given.args[first + 1]
        return 2 * products * prod(query) * key[-2]

    return count


def _attention_rule(name: str) -> Callable[[_Shapes], int] | None:
    """Forward: 2 products; backward recomputes the scores: 5. By the family's name, since
    each device has operators of its own."""
    if not name.startswith("_scaled_dot_product"):
        return None
    return _attention(1, 5) if "backward" in name else _attention(0, 2)


_RULES: dict[str, Callable[[_Shapes], int]] = {
    "mm": _product(0),
    "bmm": _product(0),
    "mv": _product(0),
    "dot": _product(0),
    "addmm": _product(1),
    "baddbmm": _product(1),
    "addmv": _product(1),
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
}
