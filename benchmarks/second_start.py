"""Time of the first and second start of a model, in processes that share a cache of plans.

    python benchmarks/second_start.py             # a GPT of 12 layers
    python benchmarks/second_start.py --fuse inductor

Processor time, that of compilers and other processes included, from the call of `compile` to the
module handed out, with PyTorch and remat-compile imported and the model built; the time up to there
stands beside it, and that of `compile` by the clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from _common import gpt2, machine
from _tables import print_table


def spent_s() -> float:
    """Seconds of processors, of this process and of those that it waited for."""
    return sum(os.times()[:4])


def start(layers: int, width: int, seq: int, fuse: str) -> dict[str, float]:
    """Seconds before and of one start in this process."""
    import torch

    from remat_compile.api import compile as planned

    vocab = 97
    model = gpt2(layers=layers, width=width, heads=4, vocab=vocab, seq=seq)
    ids = torch.randint(0, vocab, (2, seq))
    args = (ids, torch.roll(ids, -1, 1))
    before, clock = spent_s(), time.perf_counter()
    planned(model, args, activation_budget="range:0.5", planner="dtr", progress=False, fuse=fuse)
    end, clock = spent_s(), time.perf_counter() - clock
    return {"before": before, "start": end - before, "clock": clock}


def main(
    layers: int = 12,
    width: int = 64,
    seq: int = 32,
    fuse: Annotated[str, typer.Option(help="As `compile` takes it.")] = "none",
    starts: Annotated[int, typer.Option(help="After the first.")] = 1,
    alone: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Starts a model in processes that share a cache of plans."""
    if alone:
        print(json.dumps(start(layers, width, seq, fuse)))
        return
    print(machine())
    runs = []
    with tempfile.TemporaryDirectory() as plans, tempfile.TemporaryDirectory() as kernels:
        folders = {"REMAT_COMPILE_CACHE": plans, "TORCHINDUCTOR_CACHE_DIR": kernels}
        for _ in range(1 + starts):
            sizes = ["--layers", layers, "--width", width, "--seq", seq, "--fuse", fuse]
            done = subprocess.run(
                [sys.executable, __file__, "--alone", *map(str, sizes)],
                cwd=Path(__file__).parent,
                env={**os.environ, **folders},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            runs.append(json.loads(done.stdout))
    keys = ("before", "start", "clock")
    rows = [(str(at + 1), *(f"{run[k]:.2f}" for k in keys)) for at, run in enumerate(runs)]
    print_table(("start", "imports, model (s)", "compile (s)", "by the clock (s)"), rows)


if __name__ == "__main__":
    typer.run(main)
