"""Regions as functions of the generated module: one for all that differ in names only.

    def fused0(a0, a1):
        t0 = _aten_mul_Tensor(a0, a1)
        t1 = _aten_tanh_default(t0)
        del t0
        return (t1,)

What is inside ends where it is read last. A kernel may stand in for such a function. Where values
never change, as in JAX, there is nothing to `del`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ...ir.analysis.regions import RegionFunction, region_function
from ...ir.expr import Expr, symbols_of
from ...ir.graph import Arg, CNode, Graph, InnerCall, Ref
from .layout import fitted, wrapped
from .names import symbol_key

_INDENT = "    "


@dataclass(frozen=True)
class Regions:
    """`functions` by the name in the module, with the symbols that each takes after its own
    parameters; `of` says which function a fused cNode calls."""

    functions: Mapping[str, tuple[RegionFunction, tuple[str, ...]]]
    of: Mapping[str, str]

    def signature(self, name: str) -> str:
        """The parameters as text."""
        function, symbols = self.functions[name]
        return ", ".join((*function.parameters, *_symbol_names(symbols)))

    def call(self, c: CNode, argument: Callable[[Arg], str], variable: Callable[[str], str]) -> str:
        """The call of a fused cNode's function; what it is given as the backend writes it."""
        name = self.of[c.name]
        _, symbols = self.functions[name]
        given = [variable(symbol_key(symbol)) for symbol in symbols]
        return f"{name}({', '.join((*map(argument, c.call.args), *given))})"


def regions_of(graph: Graph) -> Regions:
    """The functions of a graph's fused cNodes, in order. Two cNodes share one where the regions
    and what they are given (types, shapes, views) are the same."""
    functions: dict[str, tuple[RegionFunction, tuple[str, ...]]] = {}
    names: dict[str, str] = {}
    of: dict[str, str] = {}
    for c in graph.cnodes:
        if not c.is_fused:
            continue
        function = region_function(c)
        key = repr((function, [_declared(name, graph) for name in c.call.refs()]))
        if key not in names:
            names[key] = f"fused{len(names)}"
            functions[names[key]] = function, _symbols(c)
        of[c.name] = names[key]
    return Regions(functions, of)


def _declared(name: str, graph: Graph) -> object:
    a, view = graph.anode[graph.storage[name]], graph.view.get(name)
    chain = []
    while view is not None:
        chain.append((view.call.op, view.call.args[1:], view.call.kwargs, view.index))
        first = view.call.args[0]
        view = graph.view.get(first.name) if isinstance(first, Ref) else None
    return a.dtype, a.shape, chain


def _symbols(c: CNode) -> tuple[str, ...]:
    """The symbols in the arguments of a region's calls."""

    def of(arg: Arg) -> Iterator[str]:
        if isinstance(arg, tuple):
            for part in arg:
                yield from of(part)
        elif isinstance(arg, Expr):
            yield from symbols_of(arg)

    args = (a for i in c.call.region for a in (*i.call.args, *(v for _, v in i.call.kwargs)))
    return tuple(sorted({name for arg in args for name in of(arg)}))


def _symbol_names(symbols: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"n{place}" for place in range(len(symbols)))


def local_names(function: RegionFunction, symbols: tuple[str, ...]) -> dict[str, str]:
    """The variables inside the function, by name in the region and by key of a symbol."""
    made = [n for inner in function.calls for n in inner.writes if n is not None]
    names = {name: name for name in (*function.parameters, *made)}
    keys = map(symbol_key, symbols)
    return names | dict(zip(keys, _symbol_names(symbols), strict=True))


def function_lines(
    signature: str,
    name: str,
    function: RegionFunction,
    calls: list[tuple[InnerCall, str, bool]],
    *,
    ends: bool = True,
) -> str:
    """The text of a function; `calls` come with the text of each, and whether it gives several.
    With `ends`, what is read for the last time is deleted."""
    lines = [f"\n\ndef {name}({signature}):"]
    last = {n: i for i, inner in enumerate(function.calls) for n in inner.call.refs()}
    for place, (inner, text, several) in enumerate(calls):
        slots = [f"_{i}" if n is None else n for i, n in enumerate(inner.writes)]
        if inner.index is not None:
            slots = [f"_{i}" for i in range(inner.index)] + slots[:1]
            text = f"{text}[:{len(slots)}]"
        target = f"({', '.join(slots)},)" if several or inner.index is not None else slots[0]
        lines += fitted(f"{target} = {text}", _INDENT)
        unread = [n for n in inner.writes if n is not None and n not in last]
        ended = [n for n in inner.call.refs() if last[n] == place]
        gone = [s for s in slots if s.startswith("_")]
        gone += [n for n in (*unread, *ended) if n not in function.results]
        gone = [n for n in gone if n not in function.parameters]
        if gone and ends:
            lines += wrapped(f"{_INDENT}del ", dict.fromkeys(gone))
    lines += fitted(f"return ({', '.join(function.results)},)", _INDENT)
    return "\n".join(lines) + "\n"
