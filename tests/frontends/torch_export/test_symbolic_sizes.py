"""Dynamic sizes are computed once, and nothing else of a capture changes by that."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest
import torch
from torch.export import Dim
from torch.fx.experimental import proxy_tensor
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from helpers.models import FACTORIES
from remat_compile.frontends.torch_export import export, lower
from remat_compile.ir.text.printer import format_program

symbolic_sizes = import_module("remat_compile._torch.symbolic_sizes")
BATCH, SEQ = Dim("batch", min=2, max=64), Dim("seq", min=2, max=16)
CASES = {
    "small-gpt": {0: BATCH, 1: SEQ},
    "small-llama": {0: BATCH},
    "small-resnet": {0: Dim("few", min=2, max=15)},
    "small-two": {0: BATCH},
}


def captured(name: str) -> tuple[str, torch.fx.GraphModule]:
    """The program as text, and the joint graph, with the dynamic dimensions of `CASES`."""
    module, args, kwargs = FACTORIES[name](torch.float32)
    exported = export(module, args, kwargs, dynamic_shapes=(CASES[name],) * len(args))
    with lower(exported) as lowered:
        return format_program(lowered.program), lowered.joint.graph_module


def in_order(text: str) -> str:
    """With every value named by where it stands first: names count the nodes of a trace."""
    names: dict[str, str] = {}
    return re.sub(r"%\w+", lambda at: names.setdefault(at.group(), f"%{len(names)}"), text)


@contextmanager
def unshared(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(symbolic_sizes, "is_supported", lambda: False)
        yield


def sizes(env: ShapeEnv, *values: int) -> list[torch.SymInt]:
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    made = []
    for index, value in enumerate(values):
        source = ConstantSource(f"size{index}")
        symbol = env.create_symbol(value, source, DimDynamic.DYNAMIC, constraint_dim=None)
        made.append(env.create_symintnode(symbol, hint=value, source=source))
    return made  # type: ignore[return-value]


def test_the_canary_of_what_is_replaced() -> None:
    """Where this fails, a new PyTorch has other private parts and captures take longer."""
    assert symbolic_sizes.is_supported()


@pytest.mark.parametrize("name", CASES)
def test_a_plan_is_the_one_that_is_captured_without(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unshared(monkeypatch):
        plain, _ = captured(name)
    shared, _ = captured(name)
    assert in_order(shared) == in_order(plain)


def test_each_size_is_made_once_and_is_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 0
    init = SymNode.__init__

    def counted(*args: Any, **kwargs: Any) -> None:
        nonlocal count
        count += 1
        init(*args, **kwargs)

    monkeypatch.setattr(SymNode, "__init__", counted)
    with unshared(monkeypatch):
        _, graph = captured("small-gpt")
    assert any(isinstance(n.meta.get("val"), torch.SymInt) for n in graph.graph.nodes)
    plain, count = count, 0
    _, graph = captured("small-gpt")
    assert not any(isinstance(n.meta.get("val"), torch.SymInt) for n in graph.graph.nodes)
    assert count < plain / 4


def _fails_inside(size: torch.SymInt, methods: dict[str, Any]) -> None:
    assert (size * 3).node is (size * 3).node
    assert vars(SymNode)["_mul"] is not methods["_mul"]
    raise ZeroDivisionError


def test_pytorch_is_left_as_it_was() -> None:
    before = dict(vars(SymNode)), dict(vars(proxy_tensor))
    (size,) = sizes(env := ShapeEnv(), 5)
    inside = symbolic_sizes.sizes_as_values(env)
    with pytest.raises(ZeroDivisionError), symbolic_sizes.shared_sizes(), inside:
        _fails_inside(size, before[0])
    assert (dict(vars(SymNode)), dict(vars(proxy_tensor))) == before
    assert not symbolic_sizes._known
    assert not symbolic_sizes._as_values


def test_a_symbol_that_is_replaced_is_computed_again() -> None:
    env = ShapeEnv(duck_shape=False)
    a, b = sizes(env, 5, 5)
    with symbolic_sizes.shared_sizes():
        product = a * b
        assert (a * b).node is product.node
        assert len((a * b).node.expr.free_symbols) == 2
        assert a == b  # from here on one symbol stands for both
        assert (a * b).node is not product.node
        assert len((a * b).node.expr.free_symbols) == 1
        assert a == 5  # and now there is none
        assert (a * b).node.maybe_as_int() == 25


def test_another_thread_is_left_alone() -> None:
    env = ShapeEnv()
    (a,) = sizes(env, 5)
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append((a * 3).node is (a * 3).node))
    with symbolic_sizes.shared_sizes():
        thread.start()
        thread.join()
        assert seen == [False]
        assert (a * 3).node is (a * 3).node


def test_a_size_that_depends_on_data_is_never_shared() -> None:
    env = ShapeEnv()
    size = env.create_unbacked_symint()
    with symbolic_sizes.shared_sizes():
        assert (size * 3).node is not (size * 3).node
