"""A model as AOTAutograd has to see it to trace the model itself, hooks and all."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch._export.utils import _compiling_state_context
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from ...device.devices import forked_generators
from ...device.fake_tensors import FakeTensor
from ...ir.diagnostics import fail
from ..guards.effects import PythonState
from .autocast import Autocast, WeightCache
from .branches import ReadTracker
from .lock import exchanging
from .outputs import Results, without_cache

Slot = tuple[dict[str, Any], str]
"""A tensor of a module: the dictionary that holds it, and its key there."""


class StandIn:
    """A module that takes the place of another, with its parameters and attributes.

    No abstract class, whose metaclass could differ from that of the other's class.
    """

    def _remat_compile_original(self) -> nn.Module:
        """A module of the other's class that shares all of this one's state."""
        raise NotImplementedError


class WholeModel(nn.Module):
    """Calls the forward of `model`; has the model's own parameters, buffers and submodules.

    Hooks of submodules run. Those of the model itself run around a planned step, which takes the
    place of the forward. Caches for the generation of text are off unless `with_cache`.
    `autocast` is entered around the forward, and so not around a backward that is traced behind
    it. With `results`, what is returned are the tensors that those keep.

    AOTAutograd puts a traced tensor in the place of each name. Two names of one tensor
    (tied weights) would become two tensors with a gradient each; here every further name
    is given what the first one holds for the time of the call. And it sees only what is written
    into those tensors: a buffer that the forward replaces (`self.mean = 0.9 * self.mean + x`) is
    written into the one that stood there. FBError FB0508 where that cannot be.

    A traced tensor gets the Python attributes of the parameter for which it stands: layers of
    4 bits keep their scales there (`weight.quant_state` of bitsandbytes).
    """

    __model: nn.Module
    __ties: list[tuple[Slot, list[Slot]]]
    __attributes: list[tuple[Slot, dict[str, Any]]]
    __results: Results | None
    __with_cache: bool
    __autocast: Autocast | None
    __tracker: ReadTracker | None

    def __init__(
        self,
        model: nn.Module,
        results: Results | None = None,
        *,
        with_cache: bool = False,
        autocast: Autocast | None = None,
    ):
        super().__init__()
        held = {name: vars(model)[name] for name in ("_parameters", "_buffers", "_modules")}
        own: dict[str, Any] = {"model": model, "results": results, "with_cache": with_cache}
        own |= {"autocast": autocast, "ties": _ties(model), "tracker": None}
        own["attributes"] = _attributes(model)
        # Under names that no part of a model has: some are called `_model`.
        self.__dict__.update({f"_WholeModel__{name}": value for name, value in own.items()})
        self.__dict__.update(held, training=model.training)

    def tracker_of(self, sample: Sequence[object]) -> ReadTracker:
        """For what its forward reads of numbers, at the flat arguments `sample`."""
        tensors = (t for t in (*sample, *self.__model.parameters()) if isinstance(t, Tensor))
        return ReadTracker(sample, next(tensors).device, self.__model)

    @contextmanager
    def answered(self, tracker: ReadTracker) -> Iterator[None]:
        """Inside, a traced forward goes the way of eager: what it reads of numbers is answered."""
        self.__dict__["_WholeModel__tracker"] = tracker
        try:
            yield
        finally:
            self.__dict__["_WholeModel__tracker"] = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        before = [(held, key, held[key]) for _, ties in self.__ties for held, key in ties]
        for (first, name), ties in self.__ties:
            for held, key in ties:
                held[key] = first[name]
        for (held, key), attributes in self.__attributes:
            held[key].__dict__.update(attributes)
        buffers = {
            (id(module._buffers), key): (path, module._buffers, tensor)
            for path, module in self.__model.named_modules()
            for key, tensor in module._buffers.items()
        }
        tied = {(id(held), key) for first, ties in self.__ties for held, key in (first, *ties)}
        try:
            tracker = self.__tracker
            with (
                nullcontext() if self.__with_cache else without_cache(self.__model),
                self.__mixed_precision(),
                tracker.watching(tree_leaves((args, kwargs))) if tracker else nullcontext(),
            ):
                made = self.__model.forward(*args, **kwargs)
            for (where, key), (path, held, old) in buffers.items():
                if held.get(key) is not old:
                    name = f"{path}.{key}" if path else key
                    _write_into(old, held.get(key), name, is_tied=(where, key) in tied)
                    held[key] = old
            return made if self.__results is None else self.__results.tensors(made)
        finally:
            for held, key, tensor in before:
                held[key] = tensor

    @contextmanager
    def __mixed_precision(self) -> Iterator[None]:
        if self.__autocast is None:
            yield
            return
        held = [module._parameters for module in self.__model.modules()]
        weights = chain.from_iterable(parameters.values() for parameters in held)
        before = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(True)  # as in eager, for blocks of the model's own
        try:
            with self.__autocast.around(), WeightCache(self.__autocast.device_type, weights):
                yield
        finally:
            torch.set_autocast_cache_enabled(before)


def _attributes(model: nn.Module) -> list[tuple[Slot, dict[str, Any]]]:
    """Return the Python attributes of each parameter that has some."""
    slots = [(m._parameters, key) for m in model.modules() for key in m._parameters]
    return [(slot, dict(held)) for slot in slots if (held := getattr(_at(slot), "__dict__", None))]


def _at(slot: Slot) -> Any:
    held, key = slot
    return held[key]


def _write_into(old: Tensor | None, new: Tensor | None, name: str, *, is_tied: bool) -> None:
    """Write the value that replaced a buffer into the buffer."""
    if old is None:
        message = f"the forward makes buffer {name} on its first call"
        fail("FB0513", message, hint="call the model once before it is planned")
    if new is None or is_tied or (old.shape, old.dtype) != (new.shape, new.dtype):
        message = f"the forward replaces buffer {name} by something of another kind, or a tied one"
        fail("FB0508", message, hint="write into it (copy_), with the same shape and dtype")
    with torch.no_grad():
        old.copy_(new)


def _ties(model: nn.Module) -> list[tuple[Slot, list[Slot]]]:
    """Return the names of each tensor with several: the dictionary and key of the first, and the
    others'."""
    slots: dict[int, dict[tuple[int, str], Slot]] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for key, tensor in held.items():
                if isinstance(tensor, Tensor):
                    slots.setdefault(id(tensor), {})[id(held), key] = (held, key)
    of_each = [list(by_key.values()) for by_key in slots.values()]
    return [(first, rest) for first, *rest in of_each if rest]


def as_forward_sees(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call as the model's own forward pre-hooks leave them."""
    for key, hook in model._forward_pre_hooks.items():
        if key in model._forward_pre_hooks_with_kwargs:
            changed = hook(model, args, kwargs)
            args, kwargs = (args, kwargs) if changed is None else changed
            continue
        given = hook(model, args)
        if given is not None:
            args = given if isinstance(given, tuple) else (given,)
    return args, kwargs


def unalias(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copies tensors that share storage with an earlier one: capture would bake the alias in. One
    that is a view stands without its base, whose sizes would be part of a dynamic capture."""
    flat, spec = tree_flatten((args, kwargs))
    seen: set[int] = set()
    for index, leaf in enumerate(flat):
        if isinstance(leaf, Tensor):
            key = leaf.untyped_storage()._cdata
            if key in seen:
                flat[index] = leaf.detach().clone().requires_grad_(leaf.requires_grad)
            elif leaf._base is not None:
                flat[index] = leaf.detach().requires_grad_(leaf.requires_grad)
            seen.add(flat[index].untyped_storage()._cdata)
    return tree_unflatten(flat, spec)  # type: ignore[no-any-return]


def as_if_compiling() -> AbstractContextManager[Any]:
    """`torch.compiler.is_compiling()` says yes inside."""
    # Of PyTorch 2.11, `torch.compiler` has none.
    inside = getattr(torch.compiler, "_compile_session_context", _compiling_state_context)
    return inside()


def has_values(model: nn.Module) -> bool:
    """Return whether the parameters and buffers hold numbers that can be computed with."""
    tensors = (*model.parameters(), *model.buffers())
    return not any(t.is_meta or isinstance(t, FakeTensor) for t in tensors)


@contextmanager
def unchanged(model: nn.Module) -> Iterator[PythonState]:
    """`restored` behind what runs inside, of which no other thread sees anything."""
    with exchanging(), restored(model) as state:
        yield state


@contextmanager
def restored(model: nn.Module) -> Iterator[PythonState]:
    """Puts back what running the model's Python changes: the state that is yielded, and the
    random generators of PyTorch, Python and NumPy."""
    state = PythonState(model)
    try:
        with restored_generators():
            yield state
    finally:
        with exchanging():
            state.put_back()


@contextmanager
def restored_generators() -> Iterator[None]:
    """Puts back the random generators of PyTorch, Python and NumPy."""
    numpy = sys.modules.get("numpy")
    python, drawn = random.getstate(), numpy.random.get_state() if numpy else None
    try:
        with forked_generators():
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(drawn)
