"""Two gloo processes train a model in all the ways that spread it; run by test_threads.py.

Prints one line of JSON: per way, whether the parameters are those of eager to the bit, or the
code that it was refused with.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import remat_compile
from helpers.execution.run_again import RunAgain
from remat_compile import FBError

AGAIN: dict[str, Any] = {"planner": RunAgain(), "costs": "roofline", "device": "cpu"}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.drop, self.second = nn.Dropout(0.1), nn.Linear(16, 8)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return F.mse_loss(self.second(self.drop(torch.tanh(self.norm(self.first(x))))), target)


def ways(x: Tensor, target: Tensor) -> dict[str, tuple[Callable[[], nn.Module], str]]:
    """Of each, what makes the model, and in which way eager trains it."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))

    def compiled(model: nn.Module) -> nn.Module:
        return remat_compile.compile(model, (x, target), **AGAIN)

    def sharded(model: nn.Module, parts: Iterable[str] = ("",), **options: Any) -> nn.Module:
        for path in parts:
            fully_shard(model.get_submodule(path), mesh=mesh, **options)
        return model

    return {
        "DDP": (lambda: DistributedDataParallel(Net()), "DDP"),
        "DDP(compile)": (lambda: DistributedDataParallel(compiled(Net())), "DDP"),
        "compile(DDP)": (lambda: compiled(DistributedDataParallel(Net())), "DDP"),
        "in(DDP)": (lambda: compiled(nn.Sequential(DistributedDataParallel(Net()))), "DDP"),
        "FSDP": (lambda: sharded(Net()), "FSDP"),
        "FSDP(compile)": (lambda: sharded(compiled(Net())), "FSDP"),
        "FSDP(compile), freed": (
            lambda: sharded(compiled(Net()), reshard_after_forward=True),
            "FSDP",
        ),
        "FSDP(compile), in parts": (lambda: sharded(compiled(Net()), ("first", "")), "FSDP"),
        "compile(FSDP)": (lambda: compiled(sharded(Net())), "FSDP"),
    }


def train(model: nn.Module, x: Tensor, target: Tensor) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        torch.manual_seed(2 * step + dist.get_rank())
        optimizer.zero_grad()
        model(x, target).backward()
        optimizer.step()
    values: list[Any] = list(model.parameters())
    return [v.full_tensor() if hasattr(v, "full_tensor") else v.detach() for v in values]


def process(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    x = torch.linspace(-1, 1, 32).reshape(4, 8) * (rank + 1)
    target = x.flip(0)
    trained: dict[str, list[Tensor]] = {}
    verdicts: dict[str, bool | str] = {}
    for way, (make, reference) in ways(x, target).items():
        try:
            trained[way] = train(make(), x, target)
            pairs = zip(trained[way], trained[reference], strict=True)
            verdicts[way] = all(torch.equal(a, b) for a, b in pairs)
        except FBError as error:
            verdicts[way] = error.diagnostics[0].code
    if rank == 0:
        print(json.dumps(verdicts), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    mp.spawn(process, args=(sys.argv[1],), nprocs=2)
