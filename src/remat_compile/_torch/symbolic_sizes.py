"""Less work for PyTorch's arithmetic of dynamic sizes while a model is traced.

PyTorch computes with a dynamic size in Python, and each tensor that is made while tracing asks for
its number of elements, its strides and whether it is contiguous: of a GPT of four layers some
30 000 operations on sizes, of which one in twenty is new. Inside `shared_sizes` what came of an
operation, and of a question that decides something, is kept and given out again; and what PyTorch
works out inside of an operator is not kept in its cache of operators, whose keys take longer.
Inside `sizes_as_values` the traced graph also holds sizes as they are, where PyTorch makes a node
of each operation on them. What is asked of sizes (guards) and what they are is the same with both.

This is the one file that touches PyTorch's private parts for that. Where a PyTorch lacks one of
them nothing is shared, and tracing takes longer. The canary is
`tests/frontends/torch_export/test_symbolic_sizes.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from torch import SymBool, SymFloat, SymInt
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

__all__ = ["is_supported", "shared_sizes", "sizes_as_values"]

Binary = Callable[[Any, Any], Any]

COMPARISONS = ("eq", "ne", "gt", "ge", "lt", "le")
OPERATIONS = ("add", "sub", "mul", "int_floordiv", "and_", "or_", *COMPARISONS)
"""On integers and truth values, with results that depend on nothing but the operands: not `mod`,
which looks at the ranges of symbols."""

_VERSION = "_replacements_version_counter"
"""Of a `ShapeEnv`: another number whenever a symbol is replaced by an expression."""

_OF_PROXIES = (
    "handle_sym_dispatch",
    "fetch_sym_proxy",
    "get_proxy_mode",
    "disable_proxy_modes_tracing",
)
_OF_NODES = ("wrap_int", "maybe_as_int", *(f"_{name}" for name in OPERATIONS))

_PATCHING = threading.Lock()
"""Held while methods are exchanged, not while a model is traced."""


@cache
def is_supported() -> bool:
    """Whether this PyTorch has what is replaced here."""
    return (
        hasattr(ShapeEnv(), _VERSION)
        and all(hasattr(proxy_tensor, name) for name in _OF_PROXIES)
        and all(name in vars(SymNode) for name in _OF_NODES)
        and all(name in vars(ShapeEnv) for name in ("evaluate_sym_node", "_suppress_guards_tls"))
        and all(
            name in vars(FakeTensorMode) for name in ("_cached_dispatch_impl", "_dispatch_impl")
        )
    )


@dataclass(eq=False)
class _KnownSizes:
    """What came of operations on the sizes of one `ShapeEnv`, as long as its symbols stand.

    A result is kept for each tracer, which records it when it is first made. What is known by its
    `id` is kept alive beside it.
    """

    env: ShapeEnv
    version: int = -1
    of_nodes: dict[tuple[int, str, int, int], tuple[Any, ...]] = field(default_factory=dict)
    of_values: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    nodes: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    numbers: dict[int, tuple[Any, int | None]] = field(default_factory=dict)
    constants: dict[int, Any] = field(default_factory=dict)
    answers: dict[tuple[Any, ...], tuple[Any, Any]] = field(default_factory=dict)

    def refresh(self) -> _KnownSizes:
        self.of_nodes, self.of_values, self.nodes, self.numbers = {}, {}, {}, {}
        self.answers = {}
        self.version = getattr(self.env, _VERSION)
        return self

    def binary(self, method: str, inner: Binary, a: Any, b: Any) -> Any:
        tracer = None if self.env in _as_values else proxy_tensor.get_proxy_mode()
        key = (id(tracer), method, id(a), id(b))
        known = self.of_nodes.get(key)
        if known is not None:
            return known[0]
        result = self._by_value(method, inner, a, b) if tracer is None else inner(a, b)
        if _value(a) is not None and _value(b) is not None:
            self.of_nodes[key] = (result, a, b, tracer)
        return result

    def _by_value(self, method: str, inner: Binary, a: Any, b: Any) -> Any:
        first, second = _value(a), _value(b)
        if first is None or second is None:
            return inner(a, b)
        key = (method, first, second)
        result = self.of_values.get(key)
        if result is None:
            result = inner(a, b)
            value = _value(result)
            if value is not None:  # one node for one size, whatever it came from
                result = self.of_values[key] = self.nodes.setdefault(value, result)
        return result

    def constant(self, inner: Binary, node: Any, number: int) -> Any:
        known = self.constants.get(number)
        if known is None:
            known = self.constants[number] = inner(node, number)
        return known


def _value(node: Any) -> tuple[Any, ...] | None:
    """What two nodes have in common of which one can stand for the other. None for a size that
    depends on data (it has no hint), and for what is no integer or truth value."""
    hint = node.hint
    if type(hint) not in (int, bool) or node.pytype not in (int, bool):
        return None
    is_sum = getattr(node, "_optimized_summation", False)
    return (node.expr, node.pytype, type(hint), hint, node.constant, is_sum)


_known: dict[int, _KnownSizes] = {}
_threads: list[int] = []
"""Those inside: what they trace first is shared, also by the threads of their backwards."""
_as_values: list[ShapeEnv] = []
_originals: list[tuple[Any, str, Any]] = []


def _known_of(node: Any) -> _KnownSizes | None:
    env = node.shape_env
    known = _known.get(id(env))
    if known is not None:
        return known if known.version == env._replacements_version_counter else known.refresh()
    if env is None or threading.get_ident() not in _threads:
        return None  # another trace, of this package or not
    if env._translation_validation_enabled:
        return None  # which follows each operation
    return _known.setdefault(id(env), _KnownSizes(env)).refresh()


def _binary(method: str, inner: Binary) -> Binary:
    def shared(a: Any, b: Any) -> Any:
        known = _known_of(a)
        if known is None or getattr(b, "shape_env", None) is not known.env:
            return inner(a, b)
        return known.binary(method, inner, a, b)

    return shared


def _wrap_int(inner: Binary) -> Binary:
    def shared(node: Any, number: int) -> Any:
        known = _known_of(node) if type(number) is int else None
        return inner(node, number) if known is None else known.constant(inner, node, number)

    return shared


def _maybe_as_int(inner: Callable[[Any], int | None]) -> Callable[[Any], int | None]:
    def shared(node: Any) -> int | None:  # what is asked most by far: `_known_of`, as it mostly is
        env = node.shape_env
        known = _known.get(id(env))
        if known is None or known.version != env._replacements_version_counter:
            known = _known_of(node)
        if known is None:
            return inner(node)
        number = known.numbers.get(id(node))
        if number is None:
            number = known.numbers[id(node)] = (node, inner(node))
        return number[1]

    return shared


def _evaluated(inner: Callable[..., Any]) -> Callable[..., Any]:
    """The guard that an answer rests on was added with the first."""

    def shared(
        env: ShapeEnv, node: Any, size_oblivious: bool = False, fallback_value: bool | None = None
    ) -> Any:
        known = _known_of(node)
        if known is None or env._suppress_guards_tls():
            return inner(env, node, size_oblivious, fallback_value)
        key = (id(node), size_oblivious, fallback_value)
        answer = known.answers.get(key)
        if answer is None:
            result = inner(env, node, size_oblivious, fallback_value)
            answer = known.answers[key] = (result, node)
        return answer[0]

    return shared


class _InOperators(threading.local):
    """Whether this thread is inside of an operator that is traced."""

    now = False


_inside = _InOperators()


def _cached(inner: Callable[..., Any]) -> Callable[..., Any]:
    def dispatch(mode: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if _inside.now and id(mode.shape_env) in _known:
            return mode._dispatch_impl(func, types, args, kwargs)
        before, _inside.now = _inside.now, True
        try:
            return inner(mode, func, types, args, kwargs)
        finally:
            _inside.now = before

    return dispatch


class _Size:
    """A size as an argument of a traced call: in the graph it stands as it is."""

    def __init__(self, size: Any):
        self._size = size

    def __fx_create_arg__(self, _tracer: Any) -> Any:
        return self._size


def _is_value(size: object) -> bool:
    if isinstance(size, list | tuple):
        return any(map(_is_value, size))
    return isinstance(size, SymInt | SymFloat | SymBool) and size.node.shape_env in _as_values


def _computed(inner: Callable[..., Any]) -> Callable[..., Any]:
    def handle(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not _is_value(tuple(args)):
            return inner(func, args, kwargs)
        with proxy_tensor.disable_proxy_modes_tracing():
            return func(*args, **kwargs)

    return handle


def _fetched(inner: Callable[..., Any]) -> Callable[..., Any]:
    def fetch(tracer: Any) -> Callable[[Any], Any]:
        in_graph = inner(tracer)

        def argument(size: Any) -> Any:
            if not _is_value(size) or size.node.constant is not None or size.node.expr.is_number:
                return in_graph(size)
            return _Size(size)

        return argument

    return fetch


def _replaced() -> Iterator[tuple[Any, str, Callable[[Any], Any]]]:
    """Owner, name, and what makes the replacement of what is there."""
    for method in OPERATIONS:
        yield SymNode, f"_{method}", partial(_binary, method)
    yield SymNode, "wrap_int", _wrap_int
    yield SymNode, "maybe_as_int", _maybe_as_int
    yield ShapeEnv, "evaluate_sym_node", _evaluated
    yield FakeTensorMode, "_cached_dispatch_impl", _cached
    yield proxy_tensor, "handle_sym_dispatch", _computed
    yield proxy_tensor, "fetch_sym_proxy", _fetched


@contextmanager
def shared_sizes() -> Iterator[None]:
    """Inside, what this thread traces with dynamic sizes computes each expression once."""
    if not is_supported():
        yield
        return
    with _PATCHING:
        if not _threads:
            for owner, name, made in _replaced():
                _originals.append((owner, name, vars(owner)[name]))
                setattr(owner, name, made(vars(owner)[name]))
        _threads.append(threading.get_ident())
    try:
        yield
    finally:
        with _PATCHING:
            _threads.remove(threading.get_ident())
            if not _threads:
                while _originals:
                    setattr(*_originals.pop())
                _known.clear()


@contextmanager
def sizes_as_values(env: ShapeEnv) -> Iterator[None]:
    """`shared_sizes`, and a graph that is traced with the sizes of `env` holds them themselves."""
    with shared_sizes():
        _as_values.append(env)
        try:
            yield
        finally:
            _as_values.remove(env)
