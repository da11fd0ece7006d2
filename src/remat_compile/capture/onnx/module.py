"""The module that an ONNX graph becomes: one child module per ONNX node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from torch import Tensor, nn

from .call import Call, Known, Lowering


@dataclass(frozen=True, slots=True)
class Slot:
    """Input `index` of the node module; `known` if its value was also readable at build time."""

    index: int
    known: Known | None = None


class NodeModule(nn.Module):
    """One ONNX node. Its `template` is the node's inputs, with a `Slot` for each tensor."""

    remat_compile_place: str
    """Where a plan has its computations from."""

    def __init__(self, call: Call, lowering: Lowering, template: Sequence[Any]):
        super().__init__()
        self.call = call
        self.lowering = lowering
        self.template = tuple(template)
        slots = tuple(Slot(index) for index, entry in enumerate(template) if entry == Slot(index))
        is_plain = slots == self.template[: len(slots)]
        rest = self.template[len(slots) :] if is_plain else self.template
        # Entries after the tensors, where no entry needs more than its tensor.
        self.rest = None if any(map(_has_slots, rest)) else rest

    def forward(self, *tensors: Any) -> tuple[Any, ...]:
        if self.rest is not None:
            return as_outputs(self.lowering(self.call, *tensors, *self.rest))
        result = self.lowering(self.call, *[_filled(entry, tensors) for entry in self.template])
        return as_outputs(result)

    def extra_repr(self) -> str:
        return f'"{self.call.name}"'


def as_outputs(result: Any) -> tuple[Any, ...]:
    """Return the results of a lowering, one value per output."""
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def _has_slots(entry: Any) -> bool:
    return isinstance(entry, Slot) or (isinstance(entry, list) and any(map(_has_slots, entry)))


def _filled(entry: Any, tensors: Sequence[Any]) -> Any:
    if isinstance(entry, Slot):
        value = tensors[entry.index]
        return value if entry.known is None else entry.known.with_data(value)
    return [_filled(item, tensors) for item in entry] if isinstance(entry, list) else entry


@cache
def _class_of(op: str) -> type[NodeModule]:
    return type(op, (NodeModule,), {"__module__": NodeModule.__module__})


def node_module(call: Call, lowering: Lowering, template: Sequence[Any]) -> NodeModule:
    """A node module whose class carries the operator's name, for printing and module stacks."""
    return _class_of(call.op)(call, lowering, template)


@dataclass(frozen=True, slots=True)
class Step:
    """Call the module at `path`; `drop` names the values read here for the last time."""

    path: str
    reads: tuple[str, ...]
    writes: tuple[str | None, ...]
    drop: tuple[str, ...] = ()


class OnnxModule(nn.Module):
    """The graph as straight-line code. Positional arguments are the graph's inputs, in order.

    `onnx_names` maps the path of every parameter and buffer to its ONNX name.
    """

    def __init__(self) -> None:
        super().__init__()
        self.input_names: tuple[str, ...] = ()
        self.output_keys: tuple[str, ...] = ()
        self.stored: dict[str, str] = {}
        self.steps: tuple[Step, ...] = ()
        self.onnx_names: dict[str, str] = {}

    def forward(self, *args: Tensor) -> Any:
        values: dict[str, Any] = dict(zip(self.input_names, args, strict=True))
        for key, path in self.stored.items():
            values[key] = _fetch(self, path)
        for step in self.steps:
            results = _fetch(self, step.path)(*[values[key] for key in step.reads])
            for written, result in zip(step.writes, results, strict=False):
                if written is not None:
                    values[written] = result
            for key in step.drop:
                del values[key]
        outputs = tuple(values[key] for key in self.output_keys)
        return outputs[0] if len(outputs) == 1 else outputs


def _fetch(module: nn.Module, path: str) -> Any:
    if "." not in path:  # most paths, at a quarter of the steps to trace
        return getattr(module, path)
    value: Any = module
    for part in path.split("."):
        value = getattr(value, part)
    return value


def reserve(root: nn.Module, parts: Sequence[str]) -> tuple[nn.Module, str]:
    """A free place for `parts` in the module tree: the container that holds it, and its name.

    Containers are made as needed. A name that is taken, or that `nn.Module` itself uses
    (`forward`, `type`), gets underscores, then numbers.
    """
    place = root
    for part in parts[:-1]:
        place = _container(place, part)
    leaf = parts[-1] or "_"
    name, number = leaf, 1
    while hasattr(place, name):
        number += 1
        name = f"{leaf}_{number}"
    return place, name


def _container(place: nn.Module, part: str) -> nn.Module:
    name = part or "_"
    while True:
        child = place._modules.get(name)
        if child is not None and type(child) is nn.Module:
            return child
        if not hasattr(place, name):
            place.add_module(name, nn.Module())
            continue
        name += "_"


def last_uses(
    steps: Sequence[Step], keep: Sequence[str], stored: Mapping[str, str]
) -> tuple[Step, ...]:
    """The steps with `drop` filled in: every value but stored and returned ones dies."""
    alive = {*keep, *stored}
    done: list[Step] = []
    for step in reversed(steps):
        dying = []
        for key in (*step.reads, *step.writes):
            if key is not None and key not in alive:
                alive.add(key)
                dying.append(key)
        done.append(Step(step.path, step.reads, step.writes, tuple(dying)))
    return tuple(reversed(done))
