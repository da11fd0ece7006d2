"""Whether a list alone holds a tensor: each other holder is seen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from remat_compile.backends.torch import private
from remat_compile.backends.torch.private import are_private


class Asked(torch.autograd.Function):
    """Asks in its backward, after it dropped what it saved, as AOTAutograd does."""

    ask: Callable[[list[Tensor]], Any]

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x * 2)
        return x * 3

    @staticmethod
    def backward(ctx: Any, tangent: Any) -> Any:
        args = [*ctx.saved_tensors]
        ctx.maybe_clear_saved_tensors()
        Asked.ask(args)
        return tangent


def answer(
    make: Callable[[Tensor], Any] = lambda _: None,
    args_of: Callable[[list[Tensor]], list[Any]] = lambda args: args,
    **options: Any,
) -> list[bool]:
    """What one backward is told, while what `make` gives is held."""
    seen = []

    def ask(args: list[Tensor]) -> None:
        given = args_of(args)
        held = make(given[0])
        seen.append(are_private(given, [0]))
        del held

    Asked.ask = ask
    y = Asked.apply(torch.ones(4, requires_grad=True)).sum()
    y.backward(**options)
    return seen


def in_a_closure(tensor: Tensor) -> Callable[[], Tensor]:
    return lambda: tensor


def saved_elsewhere(tensor: Tensor) -> Tensor:
    """In C++ alone: for the backward of a product."""
    with torch.enable_grad():
        return torch.ones(4, requires_grad=True) * tensor


def test_one_that_nobody_else_holds_is_private() -> None:
    assert answer() == [True]


def test_one_of_a_kept_graph_is_not() -> None:
    assert answer(retain_graph=True) == [False]
    alone = [torch.ones(4)]
    assert not are_private(alone, [0])  # outside of a backward nothing is known


HOLDERS: Sequence[Callable[[Tensor], Any]] = (
    lambda t: t,
    lambda t: [t],
    in_a_closure,
    saved_elsewhere,
    lambda t: t[1:],
    lambda t: t.view(2, 2),
    lambda t: t.data,
    lambda t: t.detach(),
    lambda t: t.untyped_storage(),
    lambda t: t.numpy(),
    lambda t: memoryview(t.numpy()),
    lambda t: t.__dlpack__(),
    torch.nn.Parameter,
    lambda t: t.share_memory_() is None,
)


@pytest.mark.parametrize("hold", HOLDERS)
def test_each_other_holder_is_seen(hold: Callable[[Tensor], Any]) -> None:
    assert answer(hold) == [False]


@pytest.mark.parametrize(
    "other",
    [
        lambda args: [torch.from_numpy(np.ones(4, dtype=np.float32))],
        lambda args: [torch.frombuffer(bytearray(16), dtype=torch.float32)],
        lambda args: [torch.ones(8)[:4]],
        lambda args: [torch.ones(4).share_memory_()],
        lambda args: [*args, args[0]],
        lambda args: [*args, args[0].detach()],
        lambda args: [torch.nn.Parameter(args.pop())],
        lambda args: [args.pop().to_sparse()],
    ],
)
def test_memory_of_others_is_not_private(other: Callable[[list[Tensor]], list[Any]]) -> None:
    assert answer(args_of=other) == [False]


def test_one_that_another_thread_holds_is_not() -> None:
    holds, done = threading.Event(), threading.Event()

    def work(box: list[Tensor]) -> None:
        tensor = box.pop()
        holds.set()
        done.wait()
        del tensor

    def started(tensor: Tensor) -> threading.Thread:
        thread = threading.Thread(target=work, args=([tensor],))
        thread.start()
        holds.wait()
        return thread

    seen = []
    threads = []

    def ask(args: list[Tensor]) -> None:
        threads.append(started(args[0]))
        seen.append(are_private(args, [0]))

    Asked.ask = ask
    try:
        Asked.apply(torch.ones(4, requires_grad=True)).sum().backward()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert seen == [False]


@pytest.mark.parametrize("missing", ["_is_graph_kept", "_uses_of_storage"])
def test_without_the_functions_of_pytorch_nothing_is(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    private._alone.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(private, missing, None)
        assert answer() == [False]
    private._alone.cache_clear()
    assert answer() == [True]


def test_counts_that_miss_a_holder_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    private._alone.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(private, "_uses_of_storage", lambda _: 2)
        assert answer() == [False]
    private._alone.cache_clear()
