"""Trains a module for a few steps and compares two such runs bit for bit.

`train_steps` treats any callable module alike: the original, one under
`torch.utils.checkpoint`, or a compiled one. It seeds each step, so that two runs that
draw the same random numbers in the same order are equal in every bit, and it records the
state of the generator, so that they are unequal when one draws more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

Loss = Callable[[Sequence[Tensor]], Tensor]
MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True)
class Step:
    """What one training step gave; `rng_*` is the state of the CPU generator."""

    outputs: tuple[Tensor, ...]
    grads: Mapping[str, Tensor | None]
    input_grads: tuple[Tensor | None, ...]
    rng_after_forward: Tensor
    rng_after_backward: Tensor


@dataclass(frozen=True)
class Record:
    """A whole run: its steps, then parameters and buffers by name."""

    steps: tuple[Step, ...]
    params: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]


def sgd(params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.01)


def outer_loss(outputs: Sequence[Tensor]) -> Tensor:
    """A scalar of all outputs with a gradient; each output weighs differently.

    A model with its loss inside returns one scalar, which is taken as it is.
    """
    trained = [o for o in outputs if o.requires_grad]
    if len(outputs) == 1 and outputs[0].dim() == 0:
        return outputs[0]
    terms = [(o - 0.1 * i).square().mean() / (i + 1) for i, o in enumerate(trained)]
    return torch.stack(terms).sum()


def train_steps(
    module: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    steps: int = 3,
    seed: int = 1234,
    loss: Loss = outer_loss,
    make_optimizer: MakeOptimizer = sgd,
) -> Record:
    """Runs `steps` steps of forward, loss, backward and optimizer; `module` is changed.

    Inputs that require a gradient are replaced by leaves of their own in each step. The
    gradients are set to None before each step. Recorded tensors are copies.
    """
    optimizer = make_optimizer(module.parameters())
    done = []
    with torch.random.fork_rng(devices=[]):
        for index in range(steps):
            torch.manual_seed(seed + index)
            optimizer.zero_grad(set_to_none=True)
            done.append(_step(module, (tuple(args), dict(kwargs or {})), loss))
            optimizer.step()
    return Record(
        tuple(done),
        {name: _copy(p) for name, p in module.named_parameters()},
        {name: _copy(b) for name, b in module.named_buffers()},
    )


def _step(module: nn.Module, inputs: tuple[tuple[Any, ...], dict[str, Any]], loss: Loss) -> Step:
    leaves, spec = pytree.tree_flatten(inputs)
    leaves = [
        leaf.detach().clone().requires_grad_()
        if isinstance(leaf, Tensor) and leaf.requires_grad
        else leaf
        for leaf in leaves
    ]
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    outputs = tuple(pytree.tree_leaves(module(*args, **kwargs)))
    after_forward = torch.get_rng_state()
    # autograd.backward of a loss: `outputs` keep the values that the forward returned.
    copies = tuple(_copy(o) for o in outputs)
    torch.autograd.backward(loss(outputs))
    return Step(
        copies,
        {n: None if p.grad is None else _copy(p.grad) for n, p in module.named_parameters()},
        tuple(
            None if leaf.grad is None else _copy(leaf.grad)
            for leaf in leaves
            if isinstance(leaf, Tensor) and leaf.requires_grad
        ),
        after_forward,
        torch.get_rng_state(),
    )


def _copy(tensor: Tensor) -> Tensor:
    """A detached copy with the same values and dense strides where they were dense."""
    return tensor.detach().clone(memory_format=torch.preserve_format)


_INTEGER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def difference(ours: Tensor | None, theirs: Tensor | None) -> str | None:
    """Why two tensors differ, or None: type, shape, then every bit (NaN and -0 included)."""
    if ours is None or theirs is None:
        return None if ours is theirs else f"{_what(ours)} for {_what(theirs)}"
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return f"{_what(ours)} for {_what(theirs)}"
    a, b = ours.detach().contiguous(), theirs.detach().contiguous()
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    kind = _INTEGER[a.element_size()]
    wrong = a.view(kind) != b.view(kind)
    if not bool(wrong.any()):
        return None
    first = tuple(int(i) for i in wrong.nonzero()[0])
    text = (
        f"{int(wrong.sum())} of {wrong.numel()} elements of {_what(theirs)}, "
        f"first at {first}: {a[first].item()!r} for {b[first].item()!r}"
    )
    if a.is_floating_point():
        gap, size = (a.double() - b.double()).abs().max(), b.double().abs().max()
        text += f"; largest difference {gap.item():.3g}, largest value {size.item():.3g}"
    return text


def _what(tensor: Tensor | None) -> str:
    if tensor is None:
        return "None"
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def assert_same_tensors(
    ours: Mapping[str, Tensor | None], theirs: Mapping[str, Tensor | None], what: str
) -> None:
    """Fails with every name that differs, the missing ones first."""
    assert list(ours) == list(theirs), (
        f"{what}: names {sorted(set(ours) ^ set(theirs))} are on one side only, "
        "or the order differs"
    )
    reasons = [
        f"{what} {name}: {why}" for name in ours if (why := difference(ours[name], theirs[name]))
    ]
    assert not reasons, "not bit-equal\n  " + "\n  ".join(reasons)


def _numbered(tensors: Sequence[Tensor | None]) -> dict[str, Tensor | None]:
    return {f"[{i}]": t for i, t in enumerate(tensors)}


def assert_bit_equal(ours: Record, theirs: Record) -> None:
    """Fails at the first step at which the runs part, naming all that differs there."""
    assert len(ours.steps) == len(theirs.steps)
    for index, (a, b) in enumerate(zip(ours.steps, theirs.steps, strict=True), start=1):
        where = f"step {index}:"
        assert_same_tensors(_numbered(a.outputs), _numbered(b.outputs), f"{where} output")
        strides = [o.stride() for o in a.outputs], [o.stride() for o in b.outputs]
        assert strides[0] == strides[1], f"{where} output strides {strides[0]} for {strides[1]}"
        assert_same_tensors(a.grads, b.grads, f"{where} gradient of")
        assert_same_tensors(
            _numbered(a.input_grads), _numbered(b.input_grads), f"{where} gradient of input"
        )
        for when in ("rng_after_forward", "rng_after_backward"):
            states = {"state": getattr(a, when)}, {"state": getattr(b, when)}
            assert_same_tensors(*states, f"{where} {when}")
    assert_same_tensors(ours.params, theirs.params, "parameter")
    assert_same_tensors(ours.buffers, theirs.buffers, "buffer")
