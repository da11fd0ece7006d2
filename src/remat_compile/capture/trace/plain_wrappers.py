"""The autograd node around the generated code of a step that needs none of AOTAutograd's care.

AOTAutograd's wrappers see to results that are views of each other or of arguments, to arguments
that are written to, and more; they are made from a trace, and PyTorch takes two seconds to import
what makes them. `Joint.is_plain` says, where a step is captured, that it has none of that. Its
wrapper is what is left: what autograd has to know of a function.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_unflatten

from ...device.strides import Strides

Begin = Callable[[Sequence[Tensor | None]], None]
"""Is given the gradients of all that a forward gave, None where none came."""


@dataclass(frozen=True)
class PlainWrappers:
    """Stands for the `Joint` of a step that needs no more: one that was captured by an earlier
    process, or `Joint.wrappers` gave it.

    `paths` are those of parameters and buffers, in the order in which the step takes them, before
    its arguments. Its forward gives new contents of the inputs at `updated`, then results, of which
    those at `constant` have no gradient, then what the backward needs. The backward gives None for
    the inputs at `without_gradient`. What is returned has the `form` of a tuple of the results, or
    that which is given.
    """

    paths: tuple[str, ...]
    tangents: tuple[Strides, ...]
    updated: tuple[int, ...]
    results: int
    constant: tuple[int, ...]
    without_gradient: tuple[int, ...]
    form: TreeSpec | None = None

    def wrappers(self, _: Sequence[str | None]) -> PlainWrappers:
        """As `Joint.wrappers`."""
        return self

    def held(self) -> tuple[str, ...]:
        return self.paths

    def tangent_strides(self) -> tuple[Strides, ...]:
        return self.tangents

    def compile(
        self,
        partition: object,
        forward: Callable[..., Callable[[list[Any]], Any]],
        backward: Callable[..., Callable[[list[Any]], Any]],
        begin: Begin,
    ) -> Callable[[list[Any]], Any]:
        """As `Joint.compile`; nothing is partitioned. `begin` is called where a backward begins,
        as a hook of the node would be, without what it takes to register one at every call."""
        node = _node(self, forward(), backward(), begin)
        form = None if self.form is None or _is_flat(self.form) else self.form

        def run(leaves: list[Any]) -> Any:
            # Autograd shall not go on behind an input to which no gradient flows.
            for at in self.without_gradient:
                if isinstance(leaves[at], Tensor) and leaves[at].requires_grad:
                    leaves[at] = leaves[at].detach()
            made: tuple[Tensor, ...] = _outside_of_dynamo(node)(*leaves)
            if self.updated:
                with torch.no_grad():
                    for at, new in zip(self.updated, made, strict=False):
                        leaves[at].copy_(new)
            results = tuple(without_gradients(made[len(self.updated) :], self.constant))
            return results if form is None else tree_unflatten(results, form)

        # A `torch.compile` around the model does not look inside.
        run._torchdynamo_disable = True  # type: ignore[attr-defined]
        return run


def without_gradients(made: Sequence[Any], constant: Sequence[int]) -> Sequence[Any]:
    """Flat results, of which those at `constant` have no gradient. A view of a result that has one
    (`y, y.detach()[0]`) is made inside of the autograd node, which marks it as one that has."""
    if not constant:
        return made
    results = [*made]
    for at in constant:
        if isinstance(results[at], Tensor) and results[at].requires_grad:
            results[at] = results[at].detach()
    return results


def _zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    """A gradient that never came."""
    return torch.zeros(shape, dtype=dtype, device=device)


def _is_flat(form: TreeSpec) -> bool:
    """Return whether it is that of a tuple of leaves."""
    return form.type is tuple and all(part.is_leaf() for part in form.children())


def _outside_of_dynamo(node: Any) -> Callable[..., Any]:
    """The call of a node. Where TorchDynamo is in use, it does not look into it."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None and node.hidden is None:
        node.hidden = staticmethod(dynamo.disable(node.apply))
    called: Callable[..., Any] = node.hidden or node.apply
    return called


def _node(
    step: PlainWrappers,
    run_forward: Callable[[list[Any]], Sequence[Any]],
    run_backward: Callable[[list[Any]], Sequence[Any]],
    begin: Begin,
) -> type[torch.autograd.Function]:
    first = len(step.updated)
    end = first + step.results
    without = frozenset((*range(first), *(first + at for at in step.constant)))

    class CompiledFunction(torch.autograd.Function):  # the name of AOTAutograd's node
        boxed_grads_call = True
        hidden: Any = None

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
            made = run_forward([*inputs])
            results, saved = made[:end], made[end:]
            # A view, for instance of a parameter, would keep its base's node alive.
            ctx.save_for_backward(*[t.detach() if t._is_view() else t for t in saved])
            ctx.mark_non_differentiable(*[results[at] for at in sorted(without)])
            ctx.set_materialize_grads(False)
            ctx.results = [(result.shape, result.dtype, result.device) for result in results]
            return tuple(results)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> tuple[Tensor | None, ...]:
            (boxed,) = gradients
            begin(boxed)
            given = [*ctx.saved_tensors]
            given += [
                _zeros(*ctx.results[at]) if gradient is None else gradient
                for at, gradient in enumerate(boxed)
                if at not in without
            ]
            boxed.clear()
            ctx.maybe_clear_saved_tensors()
            return tuple(run_backward(given))

    return CompiledFunction
