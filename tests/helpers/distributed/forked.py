"""Ranks of a pipelined step as forks of one process, which has captured and planned for all.

A rank takes a moment to start then, so that hundreds of steps can be killed.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

from helpers.distributed.pipelines import adamw, made
from remat_compile import FBError, pipeline
from remat_compile.backends.torch.pipeline import RankRun
from remat_compile.ir.pipeline import Pipeline
from remat_compile.ir.semantics.pipeline import simulate_pipeline
from remat_compile.plans.pipeline import step as _step
from remat_compile.plans.pipeline.step import PipelineStep

Rank = tuple[nn.Module, torch.optim.AdamW, PipelineStep, tuple[Tensor, Tensor]]
LATE_S = 20.0
"""After a step's deadline: a rank that has not ended by then hangs."""
_FORK = multiprocessing.get_context("fork")


def planned(name: str, size: int, make: Callable[[str], Any] = made, **options: Any) -> list[Rank]:
    """The step of each rank, by one process without a group."""
    said: list[str] = []
    ranks: list[Rank] = []

    def from_first(_: object, text: str) -> str:
        said.extend([text] if text else [])
        return said[0]

    for rank in range(size):
        model, batch = make(name)
        optimizer = adamw(model)
        with (
            patch.object(_step, "rank_and_size", lambda _, rank=rank: (rank, size)),
            patch.object(_step, "gathered", lambda _, mine: [mine]),
            patch.object(_step, "from_first", from_first),
        ):
            options = {"link": "12GB/s", "device": "v100-16gb", **options}
            step = pipeline(model, batch, optimizer=optimizer, **options)
        ranks.append((model, optimizer, step, batch))
    return ranks


@contextmanager
def forked(
    ranks: Sequence[Rank], run: Callable[[Rank], object]
) -> Iterator[tuple[list[Any], Callable[[int], Any]]]:
    """The processes, whose groups are there, and what `run` gave on a rank: None before it ends."""
    with TemporaryDirectory() as name:
        folder = Path(name)

        def enter(rank: int) -> None:
            torch.set_num_threads(1)
            dist.init_process_group(
                "gloo",
                init_method=f"file://{folder / 'store'}",
                rank=rank,
                world_size=len(ranks),
                timeout=timedelta(seconds=60),
            )
            (folder / f"began{rank}").touch()
            (folder / f"part{rank}").write_text(json.dumps(run(ranks[rank])))
            (folder / f"part{rank}").rename(folder / f"ended{rank}")

        def answer(rank: int) -> Any:
            path = folder / f"ended{rank}"
            return json.loads(path.read_text()) if path.exists() else None

        processes = [_FORK.Process(target=enter, args=(rank,)) for rank in range(len(ranks))]
        try:
            for process in processes:
                process.start()
            until = time.monotonic() + 60
            while len(list(folder.glob("began*"))) < len(ranks) and time.monotonic() < until:
                time.sleep(0.005)
            yield processes, answer
        finally:
            for process in processes:
                process.kill()
                process.join()


def contents(rank: Rank) -> list[Tensor]:
    """All that a step may change, copied."""
    model, optimizer, _, _ = rank
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [p.grad for p in model.parameters() if p.grad is not None]
    tensors += [x for held in optimizer.state.values() for x in held.values()]
    return [*(x.detach().clone() for x in tensors), torch.get_rng_state()]


def _until_refused(rank: Rank) -> dict[str, Any]:
    """Steps until one fails: its code, whether all is as before it, and how many went well."""
    steps = 0
    while True:
        before = contents(rank)
        try:
            rank[2](*rank[3])
        except FBError as error:
            after = contents(rank)
            same = len(before) == len(after) and all(map(torch.equal, before, after))
            return {"code": error.diagnostics[0].code, "same": same, "steps": steps}
        steps += 1


def killed(ranks: Sequence[Rank], chance: random.Random, within_s: float) -> list[dict[str, Any]]:
    """Kills one rank at a random moment; what the others say, `hangs` for one that never does."""
    victim = chance.randrange(len(ranks))
    with forked(ranks, _until_refused) as (processes, answer):
        time.sleep(chance.random() * within_s)
        processes[victim].kill()
        until = time.monotonic() + ranks[0][2].timeout_s + LATE_S
        others = [rank for rank in range(len(ranks)) if rank != victim]
        for rank in others:
            processes[rank].join(max(0.0, until - time.monotonic()))
        return [answer(rank) or {"code": "hangs", "same": False, "steps": -1} for rank in others]


def durations_s(ranks: Sequence[Rank], steps: int) -> list[float]:
    """Seconds of each step on the slowest rank, from the moment at which all ranks were there."""

    def run(rank: Rank) -> list[float]:
        found = []
        for _ in range(steps + 1):
            dist.barrier()
            began = time.monotonic()
            rank[2](*rank[3])
            found.append(time.monotonic() - began)
        return found[1:]

    with forked(ranks, run) as (processes, answer):
        for process in processes:
            process.join()
        return [max(each) for each in zip(*map(answer, range(len(ranks))), strict=True)]


def asleep(ranks: Sequence[Rank], forward_s: float) -> tuple[list[Rank], float]:
    """The same rows with stages that sleep, backwards twice as long; and their claimed seconds."""

    def slow(pipeline: Pipeline) -> Pipeline:
        ns = round(forward_s * 1e9)
        stages = [replace(s, forward_ns=ns, backward_ns=2 * ns) for s in pipeline.stages]
        return replace(pipeline, stages=tuple(stages), claims=None)

    slowed = [(*r[:2], replace(r[2], pipeline=slow(r[2].pipeline)), r[3]) for r in ranks]
    return slowed, simulate_pipeline(slowed[0][2].pipeline).makespan_ns / 1e9


@contextmanager
def sleeping() -> Iterator[None]:
    """Every pass lasts as long as its stage says, beside the little that it computes."""
    forward, backward = RankRun._forward, RankRun._backward

    def slept(run: RankRun, s: int, k: int) -> None:
        time.sleep(run.pipeline.stages[s].forward_ns / 1e9)
        forward(run, s, k)

    def slept_back(run: RankRun, s: int, k: int) -> None:
        time.sleep(run.pipeline.stages[s].backward_ns / 1e9)
        backward(run, s, k)

    with patch.object(RankRun, "_forward", slept), patch.object(RankRun, "_backward", slept_back):
        yield
