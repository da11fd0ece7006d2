"""What capture took from a module beside its arguments, looked at before every step.

A planned step repeats operators; it would not notice another `Dropout.p`, a parameter in another
dtype, or a hook. Each call makes lists of what there is now and compares them with those of the
capture: a few tens of nanoseconds for each module and tensor. Only where they differ is it asked
what changed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy, deepcopy
from itertools import chain
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as of_modules

from ..._torch.arrays import MOST_BYTES
from ..._torch.constants import copied_constant, has_array, is_constant, same_constant
from ..._torch.exclusive import settled
from ..._torch.hooks import KINDS, Hook, hook_at
from ..._torch.objects import text_of
from ..._torch.outside import OF_MODULES, reached_by
from ..._torch.reached import Reached
from ..._torch.strides import lie_alike, strides_of
from ...ir.diagnostics import Diagnostic, render
from .held_objects import HeldObjects
from .outside_watch import OutsideWatch, as_bytes
from .ties import Slot, Ties

__all__ = ["ModuleGuards"]

_SHOWN = 5
"""Names in a message; of more, the number is told."""


class ModuleGuards:
    """A model as it was when its step was built.

    `changing` are attributes, by path, that the forward itself changes, and `own_hooks` those that
    it registers: a call of the original, to evaluate, may do that at any time. Hooks of the model
    itself run around the step, and so are not looked at.
    """

    def __init__(
        self,
        model: nn.Module,
        slots: Sequence[Slot],
        changing: frozenset[str],
        own_hooks: frozenset[Hook] = frozenset(),
    ):
        modules = dict(model.named_modules())
        self._modules = list(modules.values())
        below = {path: module for path, module in modules.items() if path}
        self._slots = slots
        reached = reached_by(model)
        self._scalars = [(p, vars(m), _scalars(p, m, changing, reached)) for p, m in below.items()]
        self._own = _scalars("", model, changing, reached)
        # The planned module has attributes of its own; what is set on the model counts as well.
        shared = {key: value for key, value in self._own.items() if key != "training"}
        self._scalars.append(("", vars(model), shared))
        self._getters = [(_getter(then), now) for _, now, then in self._scalars]
        self._with_arrays = [*_with_arrays(self._scalars), *_with_arrays([("", None, self._own)])]
        self._hooks = [(path, kind, vars(m)[kind]) for path, m in below.items() for kind in KINDS]
        self._hooks += [("", kind, vars(of_modules)[f"_global{kind}"]) for kind in KINDS]
        self._hook_dicts = [hooks for _, _, hooks in self._hooks]
        self._own_hooks = own_hooks
        self._note_hooks()
        self._children = [(p, m._modules, dict(m._modules)) for p, m in modules.items()]
        self._kids = [children for _, children, _ in self._children if children]
        self._forwards = [(p, vars(m), vars(m).get("forward")) for p, m in below.items()]
        self._vars = [now for _, now, _ in self._forwards]
        self._get_own = _getter(self._own)
        self._outside = OutsideWatch(model, changing)
        self._objects = HeldObjects(modules, changing, reached)
        self._ties = Ties(model, slots)
        self._tensors = [_described(held[key]) for held, key, _ in slots]
        self._of_modules = self._modules_now(model)
        self._of_data: tuple[Any, ...] = ()  # unknown: the first call looks closely
        in_part = (*self._objects.arrays_in_part(), *self._outside.arrays_in_part())
        self._arrays_in_part = [*dict.fromkeys(in_part)]  # to be named at the first call

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleGuards:
        for kind in KINDS:  # there is one of them
            of_all = vars(of_modules)[f"_global{kind}"]
            memo[id(of_all)] = of_all
        for module in self._modules:  # a copied module has another dictionary than its copied one
            memo[id(vars(module))] = vars(deepcopy(module, memo))
        made = copy(self)
        memo[id(self)] = made
        vars(made).update(deepcopy(vars(self), memo))
        return made

    def changes(self, owner: nn.Module, tensors: Sequence[Any]) -> list[str]:
        """What changed, in words with module paths.

        `owner` is the planned module, `tensors` what the slots hold now.
        """
        if self._looks(owner, tensors)[0]:
            return []
        with settled():  # what is noted below is that of one thread
            return self._changes(owner, [held.get(key) for held, key, _ in self._slots])

    def _looks(self, owner: nn.Module, tensors: Sequence[Any]) -> tuple[bool, Any, Any]:
        """Whether all is as at the last close look, and what there is."""
        try:
            modules, data = self._modules_now(owner), _data_now(tensors)
            same = modules == self._of_modules and self._has_same_hooks()
            same &= self._outside.is_same() and self._objects.is_same(owner)
            same &= self._ties.are_same() and self._has_same_arrays(owner)
        except (KeyError, AttributeError):  # a tensor or an attribute was removed
            return False, (), ()
        return same and data == self._of_data, modules, data

    def _changes(self, owner: nn.Module, tensors: Sequence[Any]) -> list[str]:
        is_same, modules, data = self._looks(owner, tensors)
        if is_same:  # what was otherwise was another thread's to exchange
            return []
        changes = [
            *_sentence("submodule", "replaced, added or removed", self._replaced()),
            *self._of_tensors(),
            *_of_scalars(
                [*self._scalars, ("", vars(owner), self._own)], self._objects.changes(owner)
            ),
            *self._ties.changes(),
            *self._changed_hooks(),
            *_sentence(
                "forward of module",
                "replaced",
                [path for path, now, then in self._forwards if now.get("forward") is not then],
            ),
        ]
        if self._arrays_in_part:
            _warn_of_arrays(self._arrays_in_part)
            self._arrays_in_part = []
        if not changes and self._objects.take(owner):
            self._outside.look_again(vars(owner))
        self._outside.tell()
        if not changes:  # the same tensors at other places, equal texts, or the forward's own hooks
            self._of_data, self._of_modules = data, modules
            self._note_hooks()
        return changes

    def _modules_now(self, owner: nn.Module) -> tuple[Any, ...]:
        values = [*(get(now) for get, now in self._getters), self._get_own(vars(owner))]
        return (
            as_bytes(values),
            [list(children.values()) for children in self._kids],
            [now.get("forward") for now in self._vars],
        )

    def _has_same_arrays(self, owner: nn.Module) -> bool:
        if not self._with_arrays:
            return True
        own, of_model = vars(owner), self._scalars[-1][1]
        return all(
            _holds(now[key], then)
            if now is not None
            else own[key] is of_model[key] or _holds(own[key], then)
            for now, key, then in self._with_arrays
        )

    def _has_same_hooks(self) -> bool:
        if not self._hook_ids:  # the common case, five times as fast
            return not any(self._hook_dicts)
        return list(chain.from_iterable(self._hook_dicts)) == self._hook_ids

    def _replaced(self) -> list[str]:
        return [
            f"{path}.{key}" if path else key
            for path, now, then in self._children
            for key in {**then, **now}
            if now.get(key) is not then.get(key)
        ]

    def _of_tensors(self) -> Iterator[str]:
        removed, switched, laid, others = [], [], [], []
        for (held, key, path), then in zip(self._slots, self._tensors, strict=True):
            now = _described(held.get(key))
            if now is None or then is None:
                removed += [path] if now is not then else []
            elif now[:3] != then[:3]:
                others.append(f"{path} is {_text(now)}, not {_text(then)}")
            elif now != then:
                if now[3] != then[3]:
                    switched.append(path)
                if not lie_alike(now[1], now[4], then[1], then[4]):
                    laid.append(path)
        yield from _sentence("parameter or buffer", "removed", removed)
        if switched:
            yield f"{_listed(switched)} has another requires_grad since capture"
        if laid:
            yield f"{_listed(laid)} has other strides in memory than at capture"
        if others:
            more = f", and {len(others) - 1} more changed" if len(others) > 1 else ""
            yield f"{others[0]}, as at capture{more}"

    def _note_hooks(self) -> None:
        self._hook_keys = [tuple(hooks) for hooks in self._hook_dicts]
        self._hook_ids = list(chain.from_iterable(self._hook_keys))

    def _changed_hooks(self) -> Iterator[str]:
        paths = dict.fromkeys(
            path
            for (path, kind, now), then in zip(self._hooks, self._hook_keys, strict=True)
            if tuple(key for key in now if key in then) != then
            or any(
                hook_at(path, kind, function) not in self._own_hooks
                for key, function in now.items()
                if key not in then
            )
        )
        if "" in paths:
            yield "hooks of all modules were added or removed since capture"
        if of := [path for path in paths if path]:
            yield f"hooks of {_listed(of)} were added or removed since capture"


def _of_scalars(
    attributes: Sequence[tuple[str, dict[str, Any], Mapping[str, Any]]],
    objects: Sequence[str],
) -> Iterator[str]:
    modes: dict[str, None] = {}
    others: dict[str, None] = {}
    training = True
    for path, now, then in attributes:
        for key, value in then.items():
            if key in now and _holds(now[key], value):
                continue
            if key == "training":
                training = bool(value)
                modes[path or "itself"] = None
                continue
            new, old = text_of(now[key]) if key in now else "gone", text_of(value)
            what = f"another {old}" if new == old else f"{new}, not {old}"
            others[f"{path}.{key} is {what}".removeprefix(".")] = None
    others |= dict.fromkeys(objects)
    if modes:
        yield f"module {_listed(list(modes))} is in {'eval' if training else 'train'} mode, " + (
            "unlike at capture"
        )
    if others:
        yield f"{_listed(list(others))}, as at capture"


def _scalars(
    path: str, module: nn.Module, changing: frozenset[str], reached: Reached
) -> dict[str, Any]:
    """Attributes that are numbers, texts, switches, or small containers of them. One that is empty
    is for what is put into it later, and so is a list or what has an array where no code of a
    forward reads it."""
    return {
        key: copied_constant(value)
        for key, value in vars(module).items()
        if key != "_is_full_backward_hook"  # goes with the hooks
        and not (key in OF_MODULES and (type(value) is dict or type(value) is set))
        and is_constant(value)
        and not ((type(value) is list or type(value) is dict or type(value) is set) and not value)
        and not ((type(value) is list or has_array(value)) and not reached.may_read(key))
        and (f"{path}.{key}" if path else key) not in changing
    }


def _holds(now: Any, then: Any) -> bool:
    """Whether an attribute is what it was; a dictionary may grow."""
    if type(now) is dict and type(then) is dict:
        return all(key in now and same_constant(now[key], value) for key, value in then.items())
    return same_constant(now, then)


def _with_arrays(
    attributes: Sequence[tuple[str, dict[str, Any] | None, Mapping[str, Any]]],
) -> Iterator[tuple[dict[str, Any] | None, str, Any]]:
    """Those that have arrays, each by itself: their bits are compared in place."""
    for _, now, then in attributes:
        yield from ((now, key, value) for key, value in then.items() if has_array(value))


def _getter(then: Mapping[str, Any]) -> Callable[[dict[str, Any]], Any]:
    plain = [key for key, value in then.items() if not has_array(value)]
    return itemgetter(*plain) if plain else _nothing


def _nothing(_: dict[str, Any]) -> tuple[()]:
    return ()


def _described(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    shape, strides = tensor.shape, strides_of(tensor)
    return (tensor.dtype, shape, tensor.device, tensor.requires_grad, strides)


def _text(described: tuple[torch.dtype, torch.Size, torch.device, bool, object]) -> str:
    dtype, shape, device, *_ = described
    return f"{str(dtype).removeprefix('torch.')}{list(shape)} on {device}"


def _data_now(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """What cannot stay the same where a tensor is moved, cast or resized; cheap to ask for."""
    return (
        [t.data_ptr() for t in tensors],
        [t.dtype for t in tensors],
        [t.requires_grad for t in tensors],
        [t.numel() for t in tensors],
    )


def _warn_of_arrays(names: Sequence[str]) -> None:
    message = (
        f"{_listed(names)}: of an array of NumPy of more than {MOST_BYTES >> 10} KiB, of "
        "objects or with a mask only a part is compared before each step; a planned step goes on "
        "with what was there when the model was captured, also where the rest is written to"
    )
    hint = "make it a buffer or an argument, or compile again after writing to it"
    warnings.warn(render(Diagnostic("FB0530", message, hint=hint), level="warning"), stacklevel=2)


def _sentence(what: str, happened: str, names: Sequence[str]) -> Iterator[str]:
    if names:
        yield f"{what} {_listed(names)} was {happened} since capture"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
