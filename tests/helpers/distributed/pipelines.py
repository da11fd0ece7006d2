"""Models with their loss inside, and one rank of a pipelined step beside the unpipelined one.

Run as a script by the tests: `RANK SIZE STORE CASE ...`; prints a line of JSON per case.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.networks.transformers import GPT
from remat_compile import FBError, pipeline
from remat_compile.backends.torch.pipeline import RankRun
from remat_compile.device.memory import Mark, measure_regions
from remat_compile.ir.pipeline import RowStep
from remat_compile.planners.pipeline.contract import parse_pipeline_planner
from remat_compile.planners.pipeline.from_program import StepLayers
from remat_compile.plans.pipeline.make import PipelineRequest, make_pipeline
from remat_compile.plans.pipeline.step import PipelineStep

BATCH = 80
TIMEOUT = timedelta(minutes=10)


class WithLoss(nn.Module):
    """A network and the loss of what it returns."""

    def __init__(self, net: nn.Module, loss: Callable[[Tensor, Tensor], Tensor]):
        super().__init__()
        self.net, self.loss = net, loss

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.net(x), y)


def mlp() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    layers = [m for _ in range(5) for m in (nn.Linear(96, 96), nn.Tanh())]
    return WithLoss(nn.Sequential(*layers), nn.functional.mse_loss), (
        torch.randn(BATCH, 96),
        torch.randn(BATCH, 96),
    )


def cnn() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Convolutions with batch normalisation: buffers are updated by each micro-batch."""
    blocks = [
        m
        for n in (4, 8, 8, 8, 8, 8)
        for m in (nn.LazyConv2d(n, 3, padding=1), nn.BatchNorm2d(n), nn.ReLU())
    ]
    net = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(5))
    net(torch.randn(2, 3, 8, 8))
    return WithLoss(net, nn.functional.cross_entropy), (
        torch.randn(BATCH, 3, 8, 8),
        torch.randint(5, (BATCH,)),
    )


def gpt() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    net = GPT(vocab=50, seq=12)
    # Tied to the embedding it would have to be on the same rank.
    net.head.weight = nn.Parameter(net.head.weight.detach().clone())

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())

    return WithLoss(net, loss), (torch.randint(50, (BATCH, 12)), torch.randint(50, (BATCH, 12)))


def tied() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """The embedding is the head: both are on one rank."""
    model, batch = gpt()
    model.net.head.weight = model.net.tok.weight  # type: ignore[union-attr]
    return model, batch


def dropout() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Every layer draws masks; activations take more than weights."""
    layers = [m for _ in range(8) for m in (nn.Linear(64, 64), nn.Tanh(), nn.Dropout(0.3))]
    return WithLoss(nn.Sequential(*layers), nn.functional.mse_loss), (
        torch.randn(4 * BATCH, 64),
        torch.randn(4 * BATCH, 64),
    )


def wide(_: str) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Almost all of its time is in matrix products."""
    torch.manual_seed(3)
    layers = [m for _ in range(8) for m in (nn.Linear(512, 512), nn.ReLU())]
    return WithLoss(nn.Sequential(*layers), nn.functional.mse_loss), (
        torch.randn(4096, 512),
        torch.randn(4096, 512),
    )


class _SumOfWeights(nn.Module):
    """Two parameters get their gradient in one storage."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.randn(64, 64) / 8) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ (self.a + self.b)).tanh()


def shared() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    layers = [_SumOfWeights() for _ in range(4)]
    return WithLoss(nn.Sequential(*layers), nn.functional.mse_loss), (
        torch.randn(BATCH, 64),
        torch.randn(BATCH, 64),
    )


def tiny() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Stages take less than what follows their rows."""
    layers = [m for _ in range(3) for m in (nn.Linear(1, 1), nn.Tanh())]
    return WithLoss(nn.Sequential(*layers), nn.functional.mse_loss), (
        torch.randn(BATCH, 1),
        torch.randn(BATCH, 1),
    )


MODELS = {
    "shared": shared,
    "dropout": dropout,
    "mlp": mlp,
    "cnn": cnn,
    "gpt": gpt,
    "tied": tied,
    "tiny": tiny,
}


def made(name: str) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(3)
    return MODELS[name]()


def beside_eager(name: str, microbatches: int, planner: str, tight: str = "") -> dict[str, Any]:
    """Two steps of each: equal bits of gradients, buffers and generators, and the bytes of this
    rank. `tight`: a budget that makes ranks compute again; or its bytes, for roofline costs."""
    (model, batch), (eager, _) = made(name), made(name)
    options: dict[str, Any] = {"link": "12GB/s", "timeout_s": 120}
    if tight.isdigit():
        options["device"] = "v100-16gb"

    def planned(budget: int | None) -> PipelineStep:
        return pipeline(
            model, batch, microbatches=microbatches, planner=planner, budget=budget, **options
        )

    if tight.isdigit():
        step = planned(int(tight))
    else:
        step = tightened(planned, planner) if tight else planned(None)
    mine = {id(step.values[n]) for n in step.values}
    params = {n: p for n, p in model.named_parameters() if id(p) in mine}
    buffers = dict(model.named_buffers())
    used, losses, equal = [], [], True
    for number in range(2):
        torch.manual_seed(number)
        for x, y in zip(*(t.chunk(microbatches) for t in batch), strict=True):
            loss = eager(x, y)
            (loss / microbatches).backward()
        state = torch.get_rng_state()
        torch.manual_seed(number + 7 * dist.get_rank())

        def run(mark: Mark) -> Tensor | None:
            with mark("step"):
                return step(*batch)

        result, uses = measure_regions(run)
        draws = any(c.token for c in step.program.graph.cnodes)
        equal = equal and (not draws or torch.equal(state, torch.get_rng_state()))
        used.append(uses["step"].peak_bytes_over_entry)
        losses.append(None if result is None else result.item())
    grads = {n: p.grad for n, p in params.items() if p.grad is not None}
    theirs = dict(eager.named_parameters())
    equal = equal and all(torch.equal(g, expected(theirs[n])) for n, g in grads.items())
    read = {x for s in step.stages.values() for c in s.forward for x in _reads(step, c)}
    own = {b.names[0] for b in step.program.binding.buffers if b.name in read}
    changed = [n for n in buffers if n in own]
    eager_buffers = dict(eager.named_buffers())
    equal = equal and all(torch.equal(buffers[n], eager_buffers[n]) for n in changed)
    return {
        "case": name,
        "microbatches": microbatches,
        "equal": equal,
        "gradients": sorted(grads),
        "buffers": len(changed),
        "measured": used[0],
        "again": used[1],
        "proven": step.peak_bytes,
        "largest": max(map(size_of, grads.values()), default=0),
        "entry": entry_bytes(step, microbatches),
        "losses": losses,
        "ranks": step.pipeline.ranks,
        "stages": len(step.pipeline.stages),
        "remade": remade_layers(step),
    }


def tightened(planned: Callable[[int | None], PipelineStep], planner: str) -> PipelineStep:
    """The step within the largest budget of those tried that makes anything again; the step
    without a budget if there is none."""
    free = planned(None)
    found: list[int | None] = [None]
    if not dist.get_rank():  # which has the measured costs
        step, claims = StepLayers(free.program), free.pipeline.claims
        assert claims is not None
        for percent in range(130, 40, -4):
            budget = max(claims.peak_bytes_R) * percent // 100
            request = PipelineRequest(
                parse_pipeline_planner(planner),
                free.pipeline.ranks,
                free.pipeline.microbatches,
                budget,
                free.pipeline.link_bytes_per_s,
            )
            try:
                made = make_pipeline(step, request)
            except FBError:
                break
            if any(stage.remade for stage in made.pipeline.stages):
                found = [budget]
                break
    dist.broadcast_object_list(found)
    return free if found[0] is None else planned(found[0])


def remade_layers(step: PipelineStep) -> int:
    return sum(b - a for s in step.pipeline.stages for a, b in s.remade)


def trains(name: str, microbatches: int, planner: str, way: str = "") -> dict[str, Any]:
    """Three clipped steps of AdamW beside eager's: equal bits of parameters, buffers and states, of
    a checkpoint too. `replicas`: two of half the ranks each, on other data. `alone`: the budget of
    a rank is less than the model's parameters, gradients and states take."""
    rank, size = dist.get_rank(), dist.get_world_size()
    count = 2 if way == "replicas" else 1
    width = size // count
    groups = [
        dist.new_group(list(range(r * width, (r + 1) * width)), timeout=TIMEOUT)
        for r in range(count)
    ]
    peers = [dist.new_group(list(range(r, size, width)), timeout=TIMEOUT) for r in range(width)]
    mine = rank // width
    batches = []
    for replica in range(count):
        torch.manual_seed(11 + replica)
        batches.append([t[torch.randperm(len(t))] for t in made(name)[1]])
    eagers = [made(name)[0] for _ in range(count)]
    ours, theirs = adamw(model := made(name)[0]), [adamw(eager) for eager in eagers]
    least = 4 * sum(map(size_of, model.parameters()))
    step = pipeline(
        model,
        tuple(batches[mine]),
        microbatches=microbatches,
        planner=planner,
        budget=least - 1 if way == "alone" else None,
        link="12GB/s",
        optimizer=ours,
        max_grad_norm=0.5,
        group=groups[mine],
        replicas=peers[rank % width] if count > 1 else None,
        timeout_s=120,
    )
    used: list[int] = []
    for number in range(3):
        for replica, (eager, batch) in enumerate(zip(eagers, batches, strict=True)):
            torch.manual_seed(number + 100 * replica)
            for x, y in zip(*(t.chunk(microbatches) for t in batch), strict=True):
                (eager(x, y) / microbatches).backward()
        for params in zip(*(eager.parameters() for eager in eagers), strict=True):
            mean = torch.stack([expected(p) / count for p in params]).sum(0)
            for p in params:
                expected(p).copy_(mean)
        for eager, optimizer in zip(eagers, theirs, strict=True):
            nn.utils.clip_grad_norm_(eager.parameters(), 0.5, foreach=False)
            optimizer.step()
            optimizer.zero_grad()
        torch.manual_seed(number + 100 * mine if rank % width == 0 else 55)

        def run(mark: Mark) -> Tensor | None:
            with mark("step"):
                return step(*batches[mine])

        entry = entry_bytes(step, microbatches) + sum(
            size_of(x) for held in ours.state.values() for x in held.values() if x.dim()
        )
        _, uses = measure_regions(run)
        used.append(entry + uses["step"].peak_bytes_over_entry)
    parts: list[Any] = [None] * width
    dist.all_gather_object(parts, step.state_dict(), group=groups[mine])
    whole = PipelineStep.merged(parts)
    again = made(name)[0]
    again.load_state_dict(whole["model"])
    resumed = adamw(again)
    resumed.load_state_dict(whole["optimizer"])
    equal = same(again.state_dict(), eagers[mine].state_dict())
    for index, held in theirs[mine].state_dict()["state"].items():
        equal = equal and same(held, resumed.state_dict()["state"][index])
    return {
        "case": name,
        "microbatches": microbatches,
        "equal": equal,
        "ranks": width,
        "measured": max(used),
        "entry": 0,
        "proven": step.peak_bytes,
        "gradients": sorted(f"{mine} {path}" for path in parts[rank % width]["model"]),
        "clean": all(p.grad is None for p in model.parameters()),
    }


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def entry_bytes(step: PipelineStep, microbatches: int) -> int:
    """Bytes on a rank before its step: parameters, buffers and inputs of its stages."""
    bound = step.program.binding
    read = {x for s in step.stages.values() for c in s.forward for x in _reads(step, c)}
    there = [p.name for p in bound.params] + [x.name for x in bound.buffers]
    held = sum(size_of(step.values[n]) for n in there if n in read)
    return held + sum(
        microbatches * size_of(step.values[a.name]) for a in bound.arguments if a.name in read
    )


def in_torch(name: str, microbatches: int, planner: str, tight: str = "") -> dict[str, Any]:
    """The schedule and stages in PyTorch's runtime, beside rows: gradients, buffers, and the most
    bytes that cross stages and are here at one time."""
    (model, batch), (theirs, _) = made(name), made(name)
    options: dict[str, Any] = {"microbatches": microbatches, "device": "v100-16gb"}

    def planned(budget: int | None) -> PipelineStep:
        return pipeline(model, batch, planner=planner, timeout_s=120, budget=budget, **options)

    step = tightened(planned, planner) if tight else planned(None)
    options["budget"] = step.pipeline.budget_bytes
    other = pipeline(theirs, batch, planner=planner, timeout_s=120, **options)
    schedule = other.torch_schedule(*batch)
    most = [0]

    def count(run: RankRun) -> None:
        most[0] = max(most[0], sum(size_of(t) for ts in run.live.values() for t in ts))

    around_steps(lambda _: None, count)
    step(*batch), schedule.step(*batch)
    losses = (step(*batch), schedule.step(*batch))
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    found = {n: p.grad for n, p in theirs.named_parameters() if p.grad is not None}
    equal = grads.keys() == found.keys() and all(torch.equal(g, found[n]) for n, g in grads.items())
    buffers = zip(model.buffers(), theirs.buffers(), strict=True)
    equal = equal and all(torch.equal(a, b) for a, b in buffers)
    received = [
        info.buffer
        for stage in schedule.runtime._stages
        for infos in (*stage.args_recv_info.values(), *stage.grad_recv_info.values())
        for info in infos
        if not info.is_root_arg and info.buffer is not None
    ]
    return {
        "case": name,
        "equal": equal,
        "gradients": sorted(grads),
        "losses": [None if loss is None else loss.item() for loss in losses],
        "rows": most[0],
        "runtime": sum(map(size_of, received)),
        "csv": schedule.csv,
        "remade": remade_layers(other),
    }


def expected(param: nn.Parameter) -> Tensor:
    assert param.grad is not None
    return param.grad


def size_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _reads(step: Any, cnode: str) -> tuple[str, ...]:
    graph = step.program.graph
    reads: tuple[str, ...] = graph.reads(graph.cnode[cnode])
    return reads


def fails(rank: int, told: Path, *, hangs: bool) -> dict[str, Any]:
    """Rank 1 ends, or stands still, in the middle of its row; rank 0 is told, nothing changed."""
    model, batch = made("mlp")
    step = pipeline(model, batch, microbatches=4, device="v100-16gb", timeout_s=3 if hangs else 60)
    before = [p.detach().clone() for p in model.parameters()]
    if rank == 1:
        middle = step.pipeline.rows[1][len(step.pipeline.rows[1]) // 2]

        def leave(one: RowStep) -> None:
            while one is middle and hangs and not told.exists():
                time.sleep(0.05)
            if one is middle:
                os._exit(7)

        around_steps(leave)
    try:
        step(*batch)
    except FBError as error:
        told.touch()
        untouched = all(p.grad is None for p in model.parameters()) and all(
            torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)
        )
        return {"refused": str(error), "untouched": untouched}
    return {"refused": None}


def around_steps(
    before: Callable[[RowStep], None], after: Callable[[RankRun], None] = lambda _: None
) -> None:
    """Calls `before` with each step of this rank's row, and `after` behind it."""
    real = RankRun._step

    def stepped(self: RankRun, step: RowStep) -> None:
        before(step)
        real(self, step)
        after(self)

    setattr(RankRun, "_step", stepped)  # noqa: B010


def refusals(rank: int) -> dict[str, Any]:
    """The codes of what cannot run, on every rank."""
    codes = []
    model, batch = made("mlp")

    def attempt(call: Callable[[], object]) -> None:
        try:
            call()
        except FBError as error:
            codes.append(error.diagnostics[0].code)
        else:
            codes.append("")

    options: dict[str, Any] = {"device": "v100-16gb", "timeout_s": 60}
    attempt(lambda: pipeline(model, batch, microbatches=3, **options))
    attempt(lambda: pipeline(model, batch, microbatches=4, budget=1000, **options))
    attempt(lambda: pipeline(model.net, batch[:1], microbatches=4, **options))  # type: ignore[arg-type]
    unlike = (model, batch) if rank else made("cnn")
    attempt(lambda: pipeline(*unlike, microbatches=4, **options))
    step = pipeline(model, batch, microbatches=4, **options)
    attempt(lambda: step(batch[0][:8], batch[1][:8]))
    attempt(lambda: step.torch_schedule(*batch).step(batch[0][:8], batch[1][:8]))
    return {"case": "refusals", "codes": codes}


def main(rank: int, size: int, store: str, cases: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    late = random.Random(rank)
    around_steps(lambda _: time.sleep(late.random() * 0.003))  # no rank keeps the planned time
    for case in cases:
        if case in ("dies", "hangs"):
            answer = fails(rank, Path(f"{store}.told"), hangs=case == "hangs")
        elif case == "refusals":
            answer = refusals(rank)
        else:
            name, microbatches, planner, *way = case.removeprefix("train:").split(":")
            if way[:1] == ["torch"]:
                answer = in_torch(name, int(microbatches), planner, *way[1:])
            else:
                run = trains if case.startswith("train:") else beside_eager
                answer = run(name, int(microbatches), planner, *way)
        print("JSON" + json.dumps(answer), flush=True)
    if cases[-1] not in ("dies", "hangs"):
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
