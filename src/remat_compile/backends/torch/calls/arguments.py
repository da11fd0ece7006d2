"""Calls that mean the same: by position or by keyword, with defaults given or left out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

OTHERS = "the call passes other arguments than the sample did"

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Arguments:
    """Brings the arguments of a call into the form that those of the sample have."""

    def __init__(self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]):
        self._signature = inspect.signature(forward)
        self._count, self._keywords = len(args), tuple(kwargs)
        kinds = {p.kind: name for name, p in self._signature.parameters.items()}
        self._more = kinds.get(inspect.Parameter.VAR_POSITIONAL)
        self._named = kinds.get(inspect.Parameter.VAR_KEYWORD)
        by_position = (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        )
        parameters = self._signature.parameters.items()
        self._positional = [name for name, p in parameters if p.kind in by_position]
        self._sample = self._flat(self._signature.bind(*args, **kwargs).arguments)
        self._are_leaves = all(map(_is_leaf, (*args, *kwargs.values())))

    def flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        """The leaves of a call that gives plain tensors where the sample has them;
        None for others, which a tree can tell more of. It is asked at every step."""
        if not self._are_leaves or len(args) != self._count or tuple(kwargs) != self._keywords:
            return None
        leaves = [*args, *kwargs.values()]
        return leaves if all(map(_is_leaf, leaves)) else None

    def as_in_sample(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | str:
        """The same call as the sample's would be written, or why there is none."""
        try:
            given = self._flat(self._signature.bind(*args, **kwargs).arguments)
        except TypeError as error:
            return f"{OTHERS}: {error}"
        for name, value in given.items():
            if name not in self._sample and not _is(value, self._default(name)):
                return f"{OTHERS}: {name}={_text(value)}"
        names = [*self._positional, *range(self._count)][: self._count]
        wanted = (*names, *self._keywords)
        values = {name: given.get(name, self._default(name)) for name in wanted}
        if any(value is inspect.Parameter.empty for value in values.values()):
            return OTHERS
        return tuple(values[n] for n in names), {name: values[name] for name in self._keywords}

    def _flat(self, bound: Mapping[str, Any]) -> dict[Any, Any]:
        """By name; those of `*args` by number."""
        flat: dict[Any, Any] = {}
        for name, value in bound.items():
            if name == self._more:
                flat.update(enumerate(value))
            elif name == self._named:
                flat.update(value)
            else:
                flat[name] = value
        return flat

    def _default(self, name: Any) -> Any:
        parameter = self._signature.parameters.get(name)
        return inspect.Parameter.empty if parameter is None else parameter.default


def _is_leaf(value: object) -> bool:
    """Return whether `tree_flatten` takes it for one, in any case."""
    return type(value) is Tensor


def _is(value: Any, default: Any) -> bool:
    plain = bool | int | float | str | None
    if isinstance(value, plain) and isinstance(default, plain):
        return type(value) is type(default) and value == default
    return value is default


def _text(value: Any) -> str:
    return "a tensor" if isinstance(value, Tensor) else repr(value)
