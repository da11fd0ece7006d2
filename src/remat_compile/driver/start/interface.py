"""What a plan's step takes and gives, told from the plan and the model without a capture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from ..._torch.ops import from_torch_dtype
from ..._torch.plain_wrappers import PlainWrappers
from ..._torch.strides import Strides
from ...backends.torch.interface import Interface, default_interface
from ...ir.expr import evaluate
from ...ir.program import Program

__all__ = ["StepInterface", "interface_of"]


@dataclass(frozen=True)
class StepInterface:
    """Names in order, and where in them is what the wrappers have to know."""

    paths: tuple[str, ...]
    names: Interface
    updated: tuple[int, ...]

    def wrappers(self, program: Program, tangents: tuple[Strides, ...]) -> PlainWrappers:
        results = program.binding.results
        return PlainWrappers(
            paths=self.paths,
            tangents=tangents,
            updated=self.updated,
            results=len(results),
            constant=tuple(at for at, r in enumerate(results) if r.tangent is None),
            without_gradient=tuple(at for at, g in enumerate(self.names.grads) if g is None),
        )


def interface_of(program: Program, model: nn.Module, leaves: Sequence[object]) -> StepInterface:
    """For the flat arguments `leaves`. ValueError where the program is of another model."""
    binding, known = program.binding, default_interface(program)
    held = dict(_held(model))
    constants = {a.name for a in program.graph.anodes if a.kind == "const"}
    owner = {path: p.name for p in binding.params for path in p.names}
    owner |= {path: b.name for b in binding.buffers if b.name not in constants for path in b.names}
    if owner.keys() != held.keys():
        raise ValueError("it has other parameters or buffers")
    given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if len(given) != len(binding.arguments):
        raise ValueError("it has another number of arguments")
    pairs = [(owner[path], tensor) for path, tensor in held.items()]
    pairs += [(a.name, tensor) for a, tensor in zip(binding.arguments, given, strict=True)]
    storages: dict[str, int] = {}
    for name, tensor in pairs:
        _check(program, name, tensor)
        storage = tensor.untyped_storage()._cdata
        if storages.setdefault(name, storage) != storage:
            raise ValueError(f"what %{name} names is not tied")
    if len({*storages.values()}) != len(storages):
        raise ValueError("tensors share memory that did not")
    first = {p.names[0]: p.grad for p in binding.params}
    of_argument = dict(binding.input_grads)
    names = iter([a.name for a in binding.arguments])
    grads = iter([of_argument.get(at) for at in range(len(given))])
    is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
    paths = tuple(held)
    return StepInterface(
        paths,
        Interface(
            inputs=(
                *(owner[path] for path in paths),
                *(next(names) if flag else None for flag in is_tensor),
            ),
            outputs=known.outputs,
            tangents=known.tangents,
            grads=(
                *(first.get(path) for path in paths),
                *(next(grads) if flag else None for flag in is_tensor),
            ),
        ),
        tuple(paths.index(b.names[0]) for b in binding.buffers if b.update is not None),
    )


def _check(program: Program, name: str, tensor: Tensor) -> None:
    a = program.graph.anode[name]
    shape = tuple(evaluate(size, {}) for size in a.shape)
    if (from_torch_dtype(tensor.dtype), tuple(tensor.shape)) != (a.dtype, shape):
        raise ValueError(f"%{name} has another type or shape")


def _held(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)
