"""Hooks of modules, told apart by the code that they run; and tensors without theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

__all__ = ["KINDS", "Hook", "SameObject", "hook_at", "hooks_of", "without_hooks"]

KINDS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Attributes of a module that hold its hooks."""

Hook = tuple[str, str, object]
"""The path of its module, its kind, and what it runs: of a function the code and the numbers and
texts that are fixed in it, which are the same for another one that the same line makes."""


def hooks_of(model: nn.Module) -> frozenset[Hook]:
    return frozenset(
        hook_at(path, kind, function)
        for path, module in model.named_modules()
        for kind in KINDS
        for function in vars(module)[kind].values()
    )


def hook_at(path: str, kind: str, function: Callable[..., Any]) -> Hook:
    plain = function.__func__ if isinstance(function, MethodType) else function
    if not isinstance(plain, FunctionType):
        return path, kind, SameObject(function)
    fixed = (*(plain.__defaults__ or ()), *map(_content, plain.__closure__ or ()))
    scalars = tuple((type(x), x) for x in fixed if isinstance(x, bool | int | float | str | None))
    return path, kind, (plain.__code__, scalars)


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # what it is to hold is not there yet
        return None


@contextmanager
def without_hooks(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Inside, the gradients of these tensors are as they arrive: what `register_hook` put on them
    does not run. (Behind a step it runs as behind eager, on the gradient that the step gives.)"""
    dicts = {id(t): t._backward_hooks for t in tensors if t._backward_hooks}
    held = [(hooks, dict(hooks)) for hooks in dicts.values()]
    for hooks, _ in held:
        hooks.clear()  # autograd reads this very dictionary
    try:
        yield
    finally:
        for hooks, then in held:
            hooks.update(then)


class SameObject:
    """Equal for one object, which need not be hashable (a dataclass that is called)."""

    def __init__(self, of: object):
        self.of = of

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SameObject) and other.of is self.of

    def __hash__(self) -> int:
        return id(self.of)
