"""Models with their loss inside, and one rank of a pipelined step beside the unpipelined one.

Run as a script by the tests: `RANK SIZE STORE CASE ...`; prints a line of JSON per case.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
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
from remat_compile.plans.pipeline.step import PipelineStep

BATCH = 16


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
        m for n in (4, 8, 8) for m in (nn.LazyConv2d(n, 3, padding=1), nn.BatchNorm2d(n), nn.ReLU())
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
        torch.randn(320, 64),
        torch.randn(320, 64),
    )


MODELS = {"dropout": dropout, "mlp": mlp, "cnn": cnn, "gpt": gpt, "tied": tied}


def made(name: str) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(3)
    return MODELS[name]()


def beside_eager(name: str, microbatches: int, planner: str, percent: int = 0) -> dict[str, Any]:
    """Two steps of each: equal bits of gradients, buffers and generators, and the bytes of this
    rank. The budget is so many per cent of what the ranks take without one."""
    (model, batch), (eager, _) = made(name), made(name)
    options: dict[str, Any] = {"link": "12GB/s", "timeout_s": 120}

    def planned(budget: int | None) -> PipelineStep:
        return pipeline(
            model, batch, microbatches=microbatches, planner=planner, budget=budget, **options
        )

    step = planned(None)
    if percent:
        assert step.pipeline.claims is not None
        step = planned(max(step.pipeline.claims.peak_bytes_R) * percent // 100)
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
    bound = step.program.binding
    there = [p.name for p in bound.params] + [x.name for x in bound.buffers]
    entry = sum(size(step.values[n]) for n in there if n in read)
    entry += sum(
        microbatches * size(step.values[a.name]) for a in bound.arguments if a.name in read
    )
    return {
        "case": name,
        "equal": equal,
        "gradients": sorted(grads),
        "buffers": len(changed),
        "measured": used[0],
        "proven": step.peak_bytes,
        "entry": entry,
        "losses": losses,
        "ranks": step.pipeline.ranks,
        "stages": len(step.pipeline.stages),
        "remade": sum(b - a for s in step.pipeline.stages for a, b in s.remade),
    }


def expected(param: nn.Parameter) -> Tensor:
    assert param.grad is not None
    return param.grad


def size(tensor: Tensor) -> int:
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


def around_steps(before: Callable[[RowStep], None]) -> None:
    """Calls `before` with each step of this rank's row."""
    real = RankRun._step

    def stepped(self: RankRun, step: RowStep) -> None:
        before(step)
        real(self, step)

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
    other = WithLoss(nn.Sequential(nn.Linear(96, 96), nn.Dropout(0.5)), nn.functional.mse_loss)
    attempt(lambda: pipeline(other, batch, microbatches=4, **options))
    attempt(lambda: pipeline(model.net, batch[:1], microbatches=4, **options))  # type: ignore[arg-type]
    unlike = (model, batch) if rank else made("cnn")
    attempt(lambda: pipeline(*unlike, microbatches=4, **options))
    step = pipeline(model, batch, microbatches=4, **options)
    attempt(lambda: step(batch[0][:8], batch[1][:8]))
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
            name, microbatches, planner, *percent = case.split(":")
            answer = beside_eager(name, int(microbatches), planner, *map(int, percent))
        print("JSON" + json.dumps(answer), flush=True)
    if cases[-1] not in ("dies", "hangs"):
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
