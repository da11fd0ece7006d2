"""One rank of a step whose parameters are sharded, beside FSDP2.

Run as a script by the tests: `RANK SIZE STORE FILE`; prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from random import Random
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Placement, Replicate, Shard, distribute_tensor
from torch.optim import AdamW

import remat_compile
from helpers.execution.run_again import RunAgain
from remat_compile import FBError
from remat_compile.backends.torch import TrainingStep, measure_step
from remat_compile.ir.text.printer import format_program
from remat_compile.verifier import ProvenPlan, verify

ZERO: dict[str, Any] = {"planner": "zero-infinity", "link": "10GB/s", "budget": "90%"}


class Block(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.drop, self.down = nn.Dropout(0.1), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(self.drop(torch.tanh(self.up(self.norm(x)))))
        return y


class Net(nn.Module):
    """A tied head, buffers that the forward updates, a weight that is not trained, and 51 rows,
    which two ranks cannot halve."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(51, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.last = nn.BatchNorm1d(8)
        self.head = nn.Linear(16, 51)
        self.head.weight = self.embed.weight
        self.blocks[0].up.weight.requires_grad_(False)  # type: ignore[union-attr]

    def forward(self, x: Tensor) -> Tensor:
        y = self.embed(x)
        for block in self.blocks:
            y = block(y)
        return nn.functional.cross_entropy(self.head(self.last(y)).flatten(0, 1), x.flatten())


def sharded(model: nn.Module, mesh: DeviceMesh, how: Placement | None = None) -> nn.Module:
    """Parameters as FSDP2 has them."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for key, p in module._parameters.items():
            if p is not None:
                if id(p) not in made:
                    rows = distribute_tensor(
                        p.detach(), mesh, [how or Shard(0)], src_data_rank=None
                    )
                    made[id(p)] = nn.Parameter(rows, p.requires_grad)
                module._parameters[key] = made[id(p)]
    return model


def batch(step: int, rank: int) -> Tensor:
    return torch.randint(0, 51, (4, 8), generator=torch.Generator().manual_seed(2 * step + rank))


def full(value: Any) -> Tensor:
    made: Tensor = value.full_tensor() if hasattr(value, "full_tensor") else value.detach()
    return made


def tensors(model: nn.Module, optimizer: AdamW) -> list[Tensor]:
    """All parameters, buffers and states of a rank."""
    parameters = list(model.parameters())
    trained = [p for p in parameters if p.requires_grad]
    states = [optimizer.state[p][key] for p in trained for key in ("exp_avg", "exp_avg_sq")]
    return [full(t) for t in (*parameters, *model.buffers(), *states)]


def adamw(model: nn.Module) -> AdamW:
    return AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)


def compiled(model: nn.Module, rank: int, **options: Any) -> TrainingStep:
    optimizer = options.pop("optimizer", None) or adamw(model)
    step = remat_compile.compile(model, (batch(0, rank),), optimizer=optimizer, **ZERO | options)
    assert isinstance(step, TrainingStep)
    return step


def beside_fsdp2(rank: int, mesh: DeviceMesh) -> dict[str, Any]:
    """Five steps of each, with collectives that come late, by chance on each rank."""
    model, other = sharded(Net(), mesh), Net()
    for block in other.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(other, mesh=mesh)
    optimizer, stepper = adamw(model), adamw(other)
    step = compiled(model, rank, optimizer=optimizer)
    plan = step.module.planned_step
    chance = Random(rank)
    assert plan.copies is not None
    plan.copies.engine.delay = lambda *_: chance.random() * 0.002  # type: ignore[attr-defined]
    equal = []
    for index in range(5):
        torch.manual_seed(2 * index + rank)
        loss = step(batch(index, rank))
        torch.manual_seed(2 * index + rank)
        theirs = other(batch(index, rank))
        theirs.backward()
        stepper.step()
        stepper.zero_grad()
        pairs = zip(tensors(model, optimizer), tensors(other, stepper), strict=True)
        equal.append(torch.equal(loss, theirs) and all(torch.equal(a, b) for a, b in pairs))
    with torch.no_grad():
        x = batch(9, rank)
        equal.append(torch.equal(step.module.eval()(x), other.eval()(x)))
    step.module.train()
    verdict = verify(plan.program, plan.schedule)
    assert isinstance(verdict, ProvenPlan)
    use = measure_step(step.module, (batch(9, rank),))
    return {
        "equal": equal,
        "text": format_program(plan.program) + str(plan.schedule.steps),
        "measured": use.measured_bytes,
        "proven": verdict.proven.device_bytes,
        "parameters": sum(p.numel() * 4 for p in model.parameters()),
        "own": sum(p.to_local().nbytes for p in model.parameters()),  # type: ignore[attr-defined]
    }


def blocks_under_fsdp2(rank: int, mesh: DeviceMesh) -> list[bool]:
    """Each block planned alone and sharded as a unit of its own, beside the same blocks in eager:
    gradients and losses of two steps."""
    model, other = Net(), Net()
    hidden = torch.randn(4, 8, 16, requires_grad=True)
    again: dict[str, Any] = {"planner": RunAgain(), "costs": "roofline", "device": "cpu"}
    for at, block in enumerate(model.blocks):
        model.blocks[at] = remat_compile.compile(block, (hidden,), **again)
    equal = []
    for net in (model, other):
        for block in net.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=True)
        fully_shard(net, mesh=mesh)
    for index in range(2):
        losses = []
        for net in (model, other):
            torch.manual_seed(rank)
            net.zero_grad()
            losses.append(net(batch(index, rank)))
            losses[-1].backward()
        pairs = zip(model.parameters(), other.parameters(), strict=True)
        grads = [(full(a.grad), full(b.grad)) for a, b in pairs if b.requires_grad]
        equal.append(all(torch.equal(a, b) for a, b in (*grads, (losses[0], losses[1]))))
    return equal


def refusals(rank: int, mesh: DeviceMesh, file: str) -> dict[str, str]:
    """The messages of refused calls. Every rank goes on afterwards."""
    said = {}

    def attempt(name: str, run: Callable[[], object]) -> None:
        try:
            run()
            said[name] = ""
        except FBError as error:
            said[name] = error.diagnostics[0].code

    def make(blocks: int = 1, how: Placement | None = None) -> nn.Module:
        return sharded(Net(blocks), mesh, how)

    attempt("states paged", lambda: compiled(make(), rank, planner="paged-states"))
    attempt("no budget", lambda: compiled(make(), rank, budget=None))
    attempt("clipped", lambda: compiled(make(), rank, max_grad_norm=1.0))
    attempt("replicated", lambda: compiled(make(how=Replicate()), rank))
    attempt("another model", lambda: compiled(make(1 + rank), rank))
    attempt("one rank fails", lambda: compiled(make(), rank, budget="1KiB" if rank else "90%"))
    alone = lambda: remat_compile.compile(make(), (batch(0, rank),), **ZERO)  # noqa: E731
    attempt("no optimizer", alone)
    attempt("wrong checkpoint", lambda: compiled(make(2), rank, weights=file))
    model = make()
    compiled(model, rank, weights=file)
    own = sum(p.to_local().double().sum().item() for p in model.parameters())  # type: ignore[attr-defined]
    total = torch.tensor(own, dtype=torch.float64)
    dist.all_reduce(total)
    said["sum of the checkpoint"] = f"{total.item():.6f}"
    return said


def main(rank: int, size: int, store: str, file: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (size,))
    start = time.perf_counter()
    answer = {
        "zero": beside_fsdp2(rank, mesh),
        "blocks": blocks_under_fsdp2(rank, mesh),
        "refusals": refusals(rank, mesh, file),
        "seconds": time.perf_counter() - start,
    }
    print("JSON" + json.dumps(answer), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
