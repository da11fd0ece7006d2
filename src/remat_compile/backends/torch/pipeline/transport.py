"""Copies of values between ranks: the memory of tensors as bytes, with a deadline on every wait.

The one place that knows `torch.distributed`. A `Work` of gloo completes for whoever waits for it,
which is what the row's `wait` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ....ir.diagnostics import fail
from ....ir.pipeline import Value

WORD_BYTES = 8
"""Bytes with which a rank says that its row has ended."""


@dataclass(frozen=True, slots=True)
class CrossingTensor:
    """Form of a tensor that crosses between stages: dense in some order of its dimensions."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def empty(self) -> Tensor:
        return torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device=self.device)

    def laid_out(self, tensor: Tensor) -> Tensor:
        """The tensor itself, or a copy if it lies otherwise in memory."""
        if tuple(tensor.shape) == self.shape and tensor.stride() == self.strides:
            return tensor
        return self.empty().copy_(tensor)


def _memory(tensor: Tensor) -> Tensor:
    """All its elements in the order of memory, as bytes."""
    flat = tensor.as_strided((tensor.numel(),), (1,)) if tensor.dim() else tensor.reshape(1)
    return flat.view(torch.uint8)


class Transport:
    """Sends and receives of one rank. `timeout_s` bounds each wait. `replicas` is the group of
    ranks that run the same stages on other data, if there are any."""

    def __init__(self, group: Any, timeout_s: float, replicas: Any = None):
        self.group, self.timeout_s, self.replicas = group, timeout_s, replicas
        self.works: dict[Value, list[Any]] = {}
        # Sent memory stays referenced until its wait, whatever the row frees.
        self.memory: dict[Value, list[Tensor]] = {}

    def send(self, value: Value, tensors: Sequence[Tensor], peer: int) -> None:
        """Reads the memory of these tensors until the wait."""
        self._issue(value, tensors, partial(dist.isend, group=self.group, group_dst=peer))

    def receive(self, value: Value, forms: Sequence[CrossingTensor], peer: int) -> list[Tensor]:
        """Tensors whose memory is written until the wait."""
        tensors = [form.empty() for form in forms]
        self._issue(value, tensors, partial(dist.irecv, group=self.group, group_src=peer))
        return tensors

    def _issue(self, value: Value, tensors: Sequence[Tensor], call: Callable[..., Any]) -> None:
        kind, stage, microbatch = value
        first = (microbatch * 4096 + 2 * stage + (kind == "grad")) * 8
        self.memory[value] = [_memory(tensor) for tensor in tensors]
        self.works[value] = [
            call(memory, tag=(first + n) % (1 << 30)) for n, memory in enumerate(self.memory[value])
        ]

    def wait(self, value: Value) -> None:
        """Until the copy has ended. RuntimeError at the deadline, or where the peer has gone."""
        began = time.monotonic()
        for work in self.works.pop(value):
            left_s = max(0.001, self.timeout_s - (time.monotonic() - began))
            if work is not None and work.wait(timedelta(seconds=left_s)) is False:
                raise RuntimeError("the copy did not end in time")
        del self.memory[value]

    def all_ranks(self, ok: bool) -> bool:
        """True if every rank of all replicas says so. RuntimeError as `wait`."""
        failed = self.sum(torch.tensor([int(not ok)]))
        if self.replicas is not None:
            self._ended(dist.all_reduce(failed, group=self.replicas, async_op=True))
        return int(failed.item()) == 0

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Their mean over the replicas, in place, as `DistributedDataParallel` takes it."""
        if self.replicas is None:
            return
        size = dist.get_world_size(self.replicas)
        for gradient in gradients:
            self._ended(dist.all_reduce(gradient.div_(size), group=self.replicas, async_op=True))

    def sum(self, mine: Tensor) -> Tensor:
        """The sum over all ranks, in place. RuntimeError as `wait`."""
        self._ended(dist.all_reduce(mine, group=self.group, async_op=True))
        return mine

    def _ended(self, work: Any) -> None:
        work.wait(timedelta(seconds=self.timeout_s))

    def of_first(self, mine: bytearray) -> bytearray:
        """The bytes of rank 0, as many. RuntimeError as `wait`."""
        theirs = bytearray(mine)
        memory = torch.frombuffer(theirs, dtype=torch.uint8)
        self._ended(dist.broadcast(memory, group=self.group, group_src=0, async_op=True))
        return theirs


def gathered(group: Any, mine: str) -> list[str]:
    """The texts of all ranks."""
    texts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(texts, mine, group=group)
    return texts


def from_first(group: Any, mine: str) -> str:
    """The text of rank 0."""
    texts = [mine]
    dist.broadcast_object_list(texts, group=group, group_src=0)
    return texts[0]


def rank_and_size(group: Any) -> tuple[int, int]:
    """FB1032 without a process group."""
    if not (dist.is_available() and dist.is_initialized()):
        hint = "start with torchrun and call torch.distributed.init_process_group first"
        fail("FB1032", "a pipeline runs in a process group and there is none", hint=hint)
    return dist.get_rank(group), dist.get_world_size(group)
