"""The contract of a planned step where nothing guards the Python of a forward.

As with `torch.export` and `jax.jit`, a step is one for a module tree: its classes, names, training
flags, hooks and replaced forwards, and the type, dtype, shape, device, layout and `requires_grad`
of its parameters and buffers, with their ties. Other Python is fixed at the capture.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextvars import ContextVar
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.nn.modules import module as of_modules

from ....device.strides import lie_alike, strides_of

KINDS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = tuple(vars(of_modules)[f"_global{kind}"] for kind in KINDS)

_GONE = "absent"


class Contract:
    """The facts of a model that its step depends on. Facts at the paths `changing`, which the
    forward itself changes, are left out. Hooks of the model itself run around the step."""

    def __init__(self, model: nn.Module, changing: frozenset[str]):
        self._changing = changing
        self._then = self._facts(model)
        self._seen: tuple[Any, ...] | None = None
        self._watch: _Watch | None = None

    def changes(self, owner: nn.Module) -> list[str]:
        """Return the facts that changed, by name."""
        watch = self._watch
        if watch is not None and watch.is_of(owner) and self._seen == watch.look():
            return []
        now = self._facts(owner)
        changes = [
            _change(name, now.get(name, _GONE), then)
            for name, then in self._then.items()
            if not _is_same(now.get(name, _GONE), then)
        ]
        new = now.keys() - self._then.keys()
        changes += [f"{name} is new since the capture" for name in now if name in new]
        if not changes:
            watch = _Watch(owner)
            self._seen, self._watch = watch.look(), watch
        return changes

    def __deepcopy__(self, memo: dict[int, Any]) -> Contract:
        made = object.__new__(Contract)
        vars(made).update(vars(self), _seen=None, _watch=None)
        return made

    def _facts(self, model: nn.Module) -> dict[str, Any]:
        facts = dict(_facts(model))
        return {name: fact for name, fact in facts.items() if name not in self._changing}


class _Watch:
    """Quick signs of a change: one of them changes wherever a fact does."""

    def __init__(self, owner: nn.Module):
        self._of = vars(owner)
        dicts = [vars(module) for module in owner.modules()]
        below = dicts[1:]
        self._dicts = dicts
        self._children = [d["_modules"] for d in dicts if d["_modules"]]
        self._hooks = [*(d[kind] for d in below for kind in KINDS), *GLOBAL_HOOKS]
        self._variables = list(_context_variables(owner).values())
        self._plain = [(d, key) for d in dicts for key in _tensors(d)]
        self._held = [d[key] for d in dicts for key in ("_parameters", "_buffers") if d[key]]

    def is_of(self, owner: nn.Module) -> bool:
        return vars(owner) is self._of

    def look(self) -> tuple[Any, ...]:
        hooks = self._hooks
        return (
            [d["training"] for d in self._dicts],
            [d.get("forward") for d in self._dicts],
            [list(children.values()) for children in self._children],
            any(hooks) and [*map(id, chain.from_iterable(h.values() for h in hooks))],
            [list(map(id, held.values())) for held in self._held],
            [id(variable.get(None)) for variable in self._variables],
            [_version(d.get(key)) for d, key in self._plain],
            _quick([t for held in self._held for t in held.values() if t is not None]),
        )


def _quick(tensors: list[Tensor]) -> Any:
    try:
        return (
            [t.data_ptr() for t in tensors],
            [t.requires_grad for t in tensors],
            [t.numel() for t in tensors],
            [t.stride() for t in tensors],
        )
    except (RuntimeError, NotImplementedError):  # sparse or fake: no strides, or no memory
        return object()


def ties_of(model: nn.Module) -> list[tuple[str, ...]]:
    """The names of each parameter or buffer that has several."""
    names: dict[int, list[str]] = {}
    for name, tensor in chain(
        model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False)
    ):
        names.setdefault(id(tensor), []).append(name)
    return [tuple(tied) for tied in names.values() if len(tied) > 1]


def changed_ties(now: list[tuple[str, ...]], then: list[tuple[str, ...]]) -> list[str]:
    """In words, which names are no longer one tensor, and which are one now."""
    gone = [f"{' and '.join(tied)} are no longer one tensor" for tied in then if tied not in now]
    return gone + [f"{' and '.join(tied)} are one tensor now" for tied in now if tied not in then]


def _facts(model: nn.Module) -> Iterator[tuple[str, Any]]:
    for path, module in model.named_modules(remove_duplicate=False):
        held, dot = vars(module), f"{path}." if path else ""
        if path:
            yield f"the class of {path}", type(module)
            for kind in KINDS:
                yield f"{dot}{kind}", tuple(map(_code, held[kind].values()))
            yield f"{dot}forward", _code(held["forward"]) if "forward" in held else None
        yield f"{dot}training", module.training
        for name, tensor in chain(held["_parameters"].items(), held["_buffers"].items()):
            yield f"{dot}{name}", _described(tensor)
        for name in _tensors(held):
            yield f"{dot}{name}", _version(held[name])
    for name, variable in _context_variables(model).items():
        yield name, ("its content", id(variable.get(None)), 0)
    for kind, hooks in zip(KINDS, GLOBAL_HOOKS, strict=True):
        yield f"{kind} of all modules", tuple(map(_code, hooks.values()))
    for tied in ties_of(model):
        yield " = ".join(tied), True


def _tensors(held: dict[str, Any]) -> list[str]:
    """Attributes that are tensors, and no parameters or buffers: constants of the step."""
    return [key for key, value in held.items() if issubclass(type(value), Tensor)]


def _version(tensor: Any) -> Any:
    return "its content", id(tensor), getattr(tensor, "_version", 0)


def _context_variables(model: nn.Module) -> dict[str, ContextVar[Any]]:
    """Return the context variables beside the classes."""
    spaces = {kind.__module__ for kind in map(type, model.modules())}
    held = [(n, v) for s in sorted(spaces) for n, v in vars(sys.modules.get(s, sys)).items()]
    return {name: value for name, value in held if type(value) is ContextVar}


def _code(function: Any) -> object:
    """The code of a hook, the same for one that the same line makes again."""
    plain = getattr(function, "__func__", function)
    return getattr(plain, "__code__", type(plain))


def _described(tensor: Tensor | None) -> Any:
    if tensor is None:
        return None
    form = (type(tensor), tensor.dtype, tensor.device, tensor.requires_grad, tuple(tensor.shape))
    return (*form, strides_of(tensor))


def _change(name: str, now: Any, then: Any) -> str:
    new, old = _text(now), _text(then)
    return f"{name} was replaced" if new == old else f"{name} is {new}; at capture it was {old}"


def _is_same(now: Any, then: Any) -> bool:
    if not _is_tensor(now) or not _is_tensor(then):
        return type(now) is type(then) and bool(now == then)
    if now[:5] != then[:5]:
        return False
    return lie_alike(now[4], now[5], then[4], then[5])


def _is_tensor(fact: Any) -> bool:
    return isinstance(fact, tuple) and len(fact) == 6


def _text(fact: Any) -> str:
    if _is_tensor(fact):
        _, dtype, device, requires_grad, shape, strides = fact
        grad = ", requires grad" if requires_grad else ""
        return f"{str(dtype).removeprefix('torch.')}{list(shape)} on {device}, {strides}{grad}"
    if isinstance(fact, tuple):
        return str(fact[0]) if "its content" in fact else f"{len(fact)} hooks"
    return fact.__name__ if isinstance(fact, type) else str(fact)
