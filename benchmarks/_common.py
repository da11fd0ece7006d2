"""What the benchmarks share: interleaved timing, tables, and the machine they ran on."""

from __future__ import annotations

import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

EXAMPLES = Path(__file__).parents[1] / "examples"


def machine() -> str:
    """One line: processor, threads, torch and Python versions."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = torch.get_num_threads()
    return (
        f"{platform.machine()} cpu, {cores} cores, {threads} thread{'s' * (threads != 1)}, "
        f"torch {torch.__version__}, python {platform.python_version()}"
    )


def interleave(
    runs: Mapping[str, Callable[[], None]],
    *,
    rounds: int,
    warmup: int = 3,
    repeat: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds per call of each run by `clock`, one entry a round.

    A round times `repeat` calls of every run in turn, and the order turns from round to
    round, so that a slow spell of the machine falls on all of them alike. The garbage
    collector is off while the clock runs.
    """
    for run in runs.values():
        for _ in range(warmup):
            run()
    names = list(runs)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for index in range(rounds):
        shift = index % len(names)
        for name in names[shift:] + names[:shift]:
            gc.collect()
            gc.disable()
            start = clock()
            for _ in range(repeat):
                runs[name]()
            seconds[name].append((clock() - start) / repeat)
            gc.enable()
    return seconds


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Median of the ratios by round, then their lower and upper quartile.

    The two runs of a round stand side by side, so a machine that is slow for a while
    shifts both; medians taken apart fall into different spells.
    """
    by_round = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, middle, high = statistics.quantiles(by_round, n=4)
    return middle, low, high


def _example() -> object:
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    import gpt2_onnx

    return gpt2_onnx


def gpt2(*, layers: int, width: int, heads: int, vocab: int, seq: int) -> nn.Module:
    """The model of `examples/gpt2_onnx.py`, seeded, in train mode."""
    torch.manual_seed(0)
    make: Callable[..., nn.Module] = vars(_example())["GPT2"]
    return make(layers, width, heads, vocab, seq).train()


def write_gpt2_onnx(
    path: Path, *, layers: int, width: int, heads: int, vocab: int, seq: int, batch: int
) -> None:
    """Writes it as an ONNX file with its loss inside."""
    model = gpt2(layers=layers, width=width, heads=heads, vocab=vocab, seq=seq)
    write: Callable[..., None] = vars(_example())["write"]
    write(model, path, batch=batch, seq=seq, loss=True)
