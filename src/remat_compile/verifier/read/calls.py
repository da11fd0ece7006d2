"""The names in a call, and which calls are one function."""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.graph import Arg, Call, Ref


def names_in(call: Call) -> Iterator[str]:
    """The names that stand in the arguments of a call, in order, repeats included."""
    stack: list[Arg] = [arg for _, arg in reversed(call.kwargs)]
    stack += reversed(call.args)
    while stack:
        arg = stack.pop()
        if isinstance(arg, Ref):
            yield arg.name
        elif isinstance(arg, tuple):
            stack += reversed(arg)


def same_call(a: Call, b: Call) -> bool:
    """True if two calls are one function: operator and arguments, `1`, `1.0` and `true` apart."""
    return repr(a) == repr(b)
