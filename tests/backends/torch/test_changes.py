"""The table of changes after a compile: only blind spots are silent, and no alarm is false."""

from __future__ import annotations

import contextlib
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.slow import default_only
from remat_compile.ir.diagnostics import FBError

from .changes import CHANGES, WORLD, Change

Run = Callable[[nn.Module, Any], nn.Module]


def world(change: Change, name: str) -> types.ModuleType:
    """A module of its own with the model of a row, so that no row sees another one's globals."""
    made = types.ModuleType(name)
    made.__file__ = __file__
    sys.modules[name] = made
    exec(WORLD, vars(made))
    exec(f"def start(s): {change.start or 'pass'}", vars(made))
    exec(f"def read(s, x, k): return {change.read}", vars(made))
    made.Block.start, made.Block.read = made.start, made.read  # type: ignore[attr-defined]
    torch.manual_seed(0)
    made.b = made.Block()  # type: ignore[attr-defined]
    made.m = made.Top(made.b, nn.Linear(4, 4)).train()  # type: ignore[attr-defined]
    return made


def given(space: types.ModuleType, text: str) -> tuple[Any, ...]:
    made = eval(f"({text})", vars(space))
    return made if isinstance(made, tuple) else (made,)


def step(space: types.ModuleType, module: nn.Module, text: str, around: str) -> list[Any]:
    """Results and gradients of one step."""
    torch.manual_seed(1)
    args = given(space, text)
    context = eval(around, vars(space)) if around else contextlib.nullcontext()
    for p in space.m.parameters():
        p.grad = None
    with context:
        made = module(*args)
    if made.is_meta:
        return [made.shape]
    made.float().square().mean().backward()
    of_args = [a.grad for a in args if isinstance(a, Tensor) and a.is_leaf]
    return [made.detach(), *(p.grad for p in space.m.parameters()), *of_args]


@contextlib.contextmanager
def settings() -> Iterator[None]:
    """Puts back what a row changes of the process."""
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        os.environ.pop("FAITH", None)


def are_equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        a is b
        or (
            (isinstance(a, Tensor) and isinstance(b, Tensor) and a.dtype == b.dtype)
            and torch.equal(a.as_subclass(Tensor), b.as_subclass(Tensor))
        )
        or (not isinstance(a, Tensor) and a == b)
        for a, b in zip(one, other, strict=True)
    )


def outcome(change: Change, compiled: Run) -> str:
    """Of the second step: refused, equal, error, differs; or the code of a refusal at compile."""
    then = change.then or change.first
    eager = world(change, "changes_eager")
    expected: list[Any] | None = None
    with settings(), contextlib.suppress(Exception):
        step(eager, eager.m, change.first, change.before)
        exec(change.change or "pass", vars(eager))
        expected = step(eager, eager.m, then, change.around)
    for handle in eager.KEPT:
        handle.remove()
    space = world(change, "changes_ours")
    try:
        with settings(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            before = eval(change.before, vars(space)) if change.before else None
            with before or contextlib.nullcontext():
                module = compiled(space.m, given(space, change.first))
            step(space, module, change.first, change.before)
            exec(change.change or "pass", vars(space))
            made = step(space, module, then, change.around)
    except FBError as error:
        codes = [d.code for d in error.diagnostics]
        refused = "refused" if expected is not None else "error"
        return refused if codes == ["FB0910"] else codes[0]
    except Exception:
        return "error"
    finally:
        for handle in space.KEPT:
            handle.remove()
    return "equal" if expected is not None and are_equal(made, expected) else "differs"


def planned(model: nn.Module, args: tuple[Any, ...]) -> nn.Module:
    return remat_compile.compile(
        model,
        args,
        activation_budget="100%",
        planner="store-all",
        costs="roofline",
        device="cpu",
        cache=False,
        progress=False,
    )


def by_regions(model: nn.Module, _: object) -> nn.Module:
    torch._dynamo.reset()
    options = {"activation_budget": "100%", "planner": "store-all"}
    made: nn.Module = torch.compile(model, backend="remat", options=options)  # type: ignore[assignment]
    return made


REACHED = ("outside: a global array", "object: a method of the module's class")
"""Rows that come to branches of guards which no other test comes to."""


@pytest.mark.parametrize("name", default_only(CHANGES, {*[*CHANGES][::5], *REACHED}))
def test_a_change_is_never_silent(name: str) -> None:
    assert outcome(CHANGES[name], planned) == CHANGES[name].comes


COMPARED = [name for name, change in CHANGES.items() if change.remat != "uncompared"]


@pytest.mark.parametrize("name", default_only(COMPARED, COMPARED[::15]))
def test_torchdynamo_guards_regions(name: str) -> None:
    assert outcome(CHANGES[name], by_regions) == CHANGES[name].remat


def test_the_blind_spots_are_few() -> None:
    assert [name for name, c in CHANGES.items() if c.comes == "differs"] == ["module: 0.0 -> -0.0"]
