"""Parameters that ranks share along dimension 0, as FSDP2 has them: `DTensor` with `Shard(0)`."""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def is_sharded(tensor: object) -> bool:
    """Return whether it is a `DTensor`, of which this process has a part."""
    known = sys.modules.get("torch.distributed.tensor")
    return known is not None and isinstance(tensor, known.DTensor)


@dataclass(frozen=True)
class Shards:
    """The ranks of `group`, of which this process is `rank`: each has some rows of each tensor."""

    group: Any
    rank: int
    size: int

    @classmethod
    def of(cls, tensor: Tensor, group: Any = None) -> Shards:
        """The ranks of a sharded tensor; copies go over its own `group` unless another is given."""
        mesh: Any = tensor.device_mesh  # type: ignore[attr-defined]
        return cls(group or mesh.get_group(), mesh.get_local_rank(), mesh.size())

    def parts(self, rows: int) -> list[tuple[int, int]]:
        """First and last row (exclusive) of each rank, as `torch.chunk` cuts."""
        each = -(-rows // self.size)
        return [(min(rank * each, rows), min((rank + 1) * each, rows)) for rank in range(self.size)]

    def gather(self, whole: Tensor, shard: Tensor) -> None:
        """Fills `whole`, dense, with the rows of all ranks; every rank calls it."""
        import torch.distributed as dist

        for rank, (first, end) in enumerate(self.parts(len(whole))):
            if first < end:
                part = _unowned(whole[first:end])
                if rank == self.rank:
                    part.copy_(shard)
                dist.broadcast(part, group=self.group, group_src=rank)

    def mean(self, whole: Tensor, shard: Tensor) -> None:
        """Fills `shard` with this rank's rows of the mean over all ranks; every rank calls it.
        `whole` is written over."""
        import torch.distributed as dist

        for rank, (first, end) in enumerate(self.parts(len(whole))):
            if first < end:
                part = whole[first:end].contiguous()
                dist.reduce(_unowned(part), group=self.group, group_dst=rank)
                if rank == self.rank:
                    torch.div(part, self.size, out=shard)


def _unowned(tensor: Tensor) -> Tensor:
    """The memory of a dense tensor on the CPU, which the caller keeps: a back end may refer to what
    it was given for a moment longer, and a version that autograd knows is not counted up."""
    memory = (ctypes.c_byte * tensor.nbytes).from_address(tensor.data_ptr())
    return torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape)


def own_rows(tensor: Tensor, of: Tensor | None = None) -> Tensor:
    """The rows that this process has of a tensor, all of one that is not sharded; or the same rows
    `of` another tensor of its shape."""
    if not is_sharded(tensor):
        return tensor if of is None else of
    if of is None:
        local: Tensor = tensor.to_local()  # type: ignore[attr-defined]
        return local
    shards = Shards.of(tensor)
    first, end = shards.parts(len(tensor))[shards.rank]
    return of[first:end]


def whole(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy of all of a tensor on a device; of a sharded one every rank asks for it."""
    if not is_sharded(tensor):
        return tensor.detach().to(device, copy=True)
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
    Shards.of(tensor).gather(made, own_rows(tensor).detach())
    return made
