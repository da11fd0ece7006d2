"""Results of a model: which of its tensors are kept and differentiated, and its form.

A step is traced over a flat tuple of tensors. `read_results` looks once at what the forward
returns, opens its containers (PyTorch's, dataclasses, mappings, `ModelOutput`s), finds the loss
and decides on each tensor; `Results` then takes the returns of every later call apart, and puts
the tensors of a planned step together into a container of the same type.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, assert_never

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ...ir.diagnostics import Diagnostic, fail, listed, nearest
from ..output_spec import ALL_RESULTS, Wanted


@dataclass(frozen=True)
class _Kept:
    """The tensor at `index` of the flat results."""

    index: int
    detached: bool


@dataclass(frozen=True)
class _Fixed:
    """No tensor: None, a number or a text of the model, or None in place of what is left out."""

    value: Any


@dataclass(frozen=True)
class _Opened:
    """A container with named parts. `like` is a copy without them; `spec` that of PyTorch."""

    parts: Mapping[Any, _Kept | _Fixed | _Opened]
    like: Any = None
    spec: pytree.TreeSpec | None = None


_Part = _Kept | _Fixed | _Opened


@dataclass(frozen=True)
class Results:
    """The form of what a model returns, and the paths of what keeps and loses its gradient."""

    _whole: _Part
    trained: tuple[str, ...] = ()
    detached: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Return whether PyTorch's own pytree can do all of it."""
        return _is_plain_form(self._whole)

    def tensors(self, made: Any) -> tuple[Tensor, ...]:
        """The kept tensors of what a call returned, the detached ones without their gradient."""
        return tuple(_taken(self._whole, made))

    def is_form_of(self, made: Any) -> bool:
        """Return whether a call returned tensors at the places that are known, and at no others."""
        places = {path for path, leaf in _leaves(made, ()) if isinstance(leaf, Tensor)}
        known = dict(_ends(self._whole, ()))
        kept = {path for path, end in known.items() if isinstance(end, _Kept)}
        return kept <= places <= known.keys()

    def put_together(self, tensors: Sequence[Tensor]) -> Any:
        """The container that the model would return, around `tensors`."""
        return _put(self._whole, tensors)


def tensors_of(made: Any, results: Results | None) -> list[Tensor]:
    """The tensors of what a model or its drop-in returned; all of them where nothing is known."""
    if results is not None:
        return list(results.tensors(made))
    return [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, Tensor)]


def read_results(made: Any, wanted: Wanted = ALL_RESULTS) -> Results:
    """The form of `made`, which a call of the model returned, seen as `wanted`.

    FBError FB0517 where `wanted` names what is not there, FB0507 where nothing is a tensor.
    """
    tensors = {path: leaf for path, leaf in _leaves(made, ()) if isinstance(leaf, Tensor)}
    if not tensors:
        message = f"the model returns no tensor, but a {type(made).__name__}"
        fail("FB0507", message, hint="return tensors, in containers that PyTorch's pytree knows")
    kept = _kept(tensors, wanted)
    trained = _trained(made, {path: tensors[path] for path in kept}, wanted)
    detached = [p for p in kept if p not in trained and tensors[p].requires_grad]
    order = {path: _Kept(i, path in detached) for i, path in enumerate(kept)}
    names = [tuple(_name(p) for p in paths) for paths in (trained, detached)]
    return Results(_form(made, (), order), *names)


# -- what is kept, and what is differentiated -----------------------------------------

_Path = tuple[Any, ...]


def _kept(tensors: Mapping[_Path, Tensor], wanted: Wanted) -> list[_Path]:
    if wanted.outputs is None:
        return list(tensors)
    named = wanted.outputs
    asked: list[str | int] = [named] if isinstance(named, str) else list(named)
    if isinstance(wanted.loss, str | int):
        asked.append(wanted.loss)
    chosen = [path for name in asked for path in _at(name, tensors, "outputs")]
    return [path for path in tensors if path in chosen]


def _trained(made: Any, kept: Mapping[_Path, Tensor], wanted: Wanted) -> list[_Path]:
    """The results that keep their gradient: the loss, or all where none is found."""
    if callable(wanted.loss):
        return _used_by(wanted.loss, made, kept)
    if wanted.loss is not None:
        return _at(wanted.loss, kept, "loss")
    loss = kept.get(("loss",))
    if loss is not None and loss.dim() == 0 and loss.requires_grad:
        return [("loss",)]
    return list(kept)


def _at(name: str | int, tensors: Mapping[_Path, Tensor], option: str) -> list[_Path]:
    """The tensors at a path, or below it."""
    asked = str(name)
    paths = [p for p in tensors if _name(p) == asked or _name(p).startswith(f"{asked}.")]
    if not paths:
        names = [_name(path) for path in tensors]
        message = f"{option}={name!r}: the model returns no such tensor.{nearest(asked, names)}"
        fail("FB0517", message, hint=f"it returns {listed(names)}", usage=True)
    return paths


def _used_by(loss: Callable[[Any], Tensor], made: Any, kept: Mapping[_Path, Tensor]) -> list[_Path]:
    """The results on which the value of a function depends."""
    probes = [t.detach().requires_grad_(t.requires_grad) for t in kept.values()]
    order = {path: _Kept(index, False) for index, path in enumerate(kept)}
    try:
        value = loss(_put(_form(made, (), order), probes))
    except Exception as error:  # whatever the user's function raises
        why = f"{type(error).__name__}: {error}"
        fail("FB0517", f"loss= cannot be called on what the model returns: {why}", usage=True)
    if not isinstance(value, Tensor) or not value.requires_grad or value.numel() != 1:
        message = "loss= does not give a scalar that depends on what the model returns"
        fail("FB0517", message, hint="return one number as a tensor", usage=True)
    given = [probe for probe in probes if probe.requires_grad]
    gradients = iter(torch.autograd.grad(value, given, allow_unused=True))
    return [
        path
        for path, probe in zip(kept, probes, strict=True)
        if probe.requires_grad and next(gradients) is not None
    ]


def what_to_know(results: Results, original: Any) -> tuple[Diagnostic, ...]:
    """One warning (FB0518) with all that a planned step does not return as the model does.

    `original` is what the model returns with its caches on.
    """
    said = []
    if results.detached:
        verb = "carries" if len(results.detached) == 1 else "carry"
        said.append(
            f"only {listed(results.trained)} is differentiated: "
            f"{listed(results.detached)} {verb} no gradient"
        )
    if dropped := _left_out(results, original):
        said.append(f"left out of what the step returns: {listed(dropped)}")
    if not said:
        return ()
    hint = "loss= names another loss, outputs= what is to be returned; a cache is for generation"
    return (Diagnostic("FB0518", "; ".join(said), hint=hint),)


def _left_out(results: Results, original: Any) -> list[str]:
    whole, parts = results._whole, _children(original)
    left_out = {p: x for p, x in _leaves(original, ()) if not _is_plain(x)}
    if isinstance(whole, _Opened) and parts is not None:
        gone = {(key,): part for key, part in parts.items() if key not in whole.parts}
        left_out = gone | {p: x for p, x in left_out.items() if p[:1] not in gone}
    return [
        f"{_name(p)} ({type(x).__name__})" if p else type(x).__name__ for p, x in left_out.items()
    ]


# -- containers ------------------------------------------------------------------------


def _children(made: Any) -> dict[Any, Any] | None:
    """The named parts of a container; None for anything else."""
    if isinstance(made, Tensor) or made is None or _is_cache(made):
        return None
    if _spec(made) is not None:
        parts = pytree.tree_flatten(made, is_leaf=lambda part: part is not made)[0]
        return dict(zip(_keys(made, len(parts)), parts, strict=True))
    if isinstance(made, Mapping):
        return dict(made)
    if is_dataclass(made) and not isinstance(made, type):
        return {field.name: getattr(made, field.name) for field in fields(made)}
    return None


def _spec(made: Any) -> pytree.TreeSpec | None:
    """The form of one level, where PyTorch knows the type."""
    spec = pytree.tree_flatten(made, is_leaf=lambda part: part is not made)[1]
    return None if spec.is_leaf() else spec


def _keys(made: Any, count: int) -> list[Any]:
    try:
        flat = pytree.tree_flatten_with_path(made, is_leaf=lambda part: part is not made)[0]
    except ValueError:  # registered without names
        return list(range(count))
    last = [path[-1] for path, _ in flat]
    words = ("key", "name", "idx")
    return [next(getattr(k, w) for w in words if hasattr(k, w)) for k in last]


def _leaves(made: Any, path: _Path) -> Iterator[tuple[_Path, Any]]:
    parts = _children(made)
    if parts is None:
        yield path, made
        return
    for key, part in parts.items():
        yield from _leaves(part, (*path, key))


def _form(made: Any, path: _Path, kept: Mapping[_Path, _Kept]) -> _Part:
    parts = _children(made)
    if parts is None:
        is_constant = _is_plain(made) and not isinstance(made, Tensor)
        return kept.get(path) or _Fixed(made if is_constant else None)
    forms = {key: _form(part, (*path, key), kept) for key, part in parts.items()}
    spec = _spec(made)
    return _Opened(forms, None if spec else _filled(made, dict.fromkeys(parts)), spec)


def _filled(like: Any, parts: Mapping[Any, Any]) -> Any:
    """A copy of a mapping or dataclass with other parts."""
    made = copy.copy(like)
    for key, part in parts.items():
        if isinstance(made, Mapping):
            made[key] = part  # type: ignore[index]
        if not isinstance(made, Mapping) or (isinstance(key, str) and key in vars(made)):
            object.__setattr__(made, key, part)
    return made


def _is_plain_form(part: _Part) -> bool:
    match part:
        case _Kept(_, detached):
            return not detached
        case _Fixed(value):
            return value is None
        case _Opened(parts, _, spec):
            return spec is not None and all(map(_is_plain_form, parts.values()))
        case _:
            assert_never(part)


def _taken(part: _Part, made: Any) -> Iterator[Tensor]:
    match part:
        case _Kept(_, detached):
            yield made.detach() if detached else made
        case _Fixed():
            return
        case _Opened(parts):
            children = _children(made) or {}
            for key, inner in parts.items():
                yield from _taken(inner, children.get(key))
        case _:
            assert_never(part)


def _put(part: _Part, tensors: Sequence[Tensor]) -> Any:
    match part:
        case _Kept(index):
            return tensors[index]
        case _Fixed(value):
            return value
        case _Opened(parts, like, spec):
            made = {key: _put(inner, tensors) for key, inner in parts.items()}
            if spec is not None:
                return pytree.tree_unflatten(list(made.values()), spec)
            return _filled(like, made)
        case _:
            assert_never(part)


def _ends(part: _Part, path: _Path) -> Iterator[tuple[_Path, _Kept | _Fixed]]:
    if isinstance(part, _Opened):
        for key, inner in part.parts.items():
            yield from _ends(inner, (*path, key))
    else:
        yield path, part


def _is_plain(leaf: Any) -> bool:
    constants = Tensor | bool | int | float | str | torch.dtype | torch.device
    return leaf is None or isinstance(leaf, constants)


def _is_cache(leaf: Any) -> bool:
    """An object that a model keeps for generating text (`DynamicCache`); never differentiated."""
    return type(leaf).__name__.endswith("Cache") and not isinstance(leaf, tuple)


def _name(path: _Path) -> str:
    return ".".join(map(str, path))


def asks_for_cache(model: nn.Module) -> list[Any]:
    """The configurations in `model` with `use_cache`, as `transformers` has them."""
    configs = (vars(module).get("config") for module in model.modules())
    return [config for config in configs if getattr(config, "use_cache", None) is True]


@contextmanager
def without_cache(model: nn.Module) -> Iterator[None]:
    """Inside, no configuration of `model` asks for a cache."""
    configs = asks_for_cache(model)
    for config in configs:
        config.use_cache = False
    try:
        yield
    finally:
        for config in configs:
            config.use_cache = True
