"""Time from a model to the end of its first training step, beside `torch.compile`.

    python benchmarks/first_step.py                   # four models, half of the activations
    python benchmarks/first_step.py --only mlp --rounds 3
    python benchmarks/first_step.py --fuse            # both sides make kernels

Each start has a process and folders of caches of its own; both sides take turns. PyTorch and
remat-compile are imported and the model is built before the clock runs; an ONNX file is planned
and not run. Besides the clock stands
the processor time of the process and of all that it waited for: on a shared machine it says more.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from _common import gpt2, machine
from _tables import print_table
from torch import nn

Model = nn.Module | Path
Made = tuple[Model, tuple[Any, ...]]
SIDES = ("remat-compile", "torch.compile")


def mlp() -> Made:
    """Eight layers, the loss inside."""

    class Mlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            pairs = ([nn.Linear(256, 256), nn.GELU()] for _ in range(8))
            self.layers = nn.Sequential(*(layer for pair in pairs for layer in pair))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x).square().mean()

    return Mlp(), (torch.randn(512, 256),)


def gpt(layers: int) -> Made:
    model = gpt2(layers=layers, width=256, heads=4, vocab=1000, seq=128)
    ids = torch.randint(0, 1000, (4, 128))
    return model, (ids, torch.roll(ids, -1, 1))


def resnet() -> Made:
    """The ResNet-50 among the test data of the onnx package."""
    import onnx.backend.test

    folder = Path(onnx.backend.test.__file__).parent
    return folder / "data" / "light" / "light_resnet50.onnx", ()


MODELS: dict[str, Callable[[], Made]] = {
    "mlp": mlp,
    "gpt-4": lambda: gpt(4),
    "gpt-12": lambda: gpt(12),
    "resnet-50": resnet,
}


def spent_s() -> float:
    """Seconds of processors, of this process and of those that it waited for."""
    return sum(os.times()[:4])


def start(name: str, side: str, options: dict[str, Any]) -> dict[str, float]:
    """One start in this process: seconds by the clock and of processors."""
    import remat_compile
    import remat_compile.backends.torch
    import remat_compile.capture.torch
    import remat_compile.verifier

    torch.manual_seed(0)
    model, args = MODELS[name]()
    clock, spent = time.perf_counter(), spent_s()
    if side == "torch.compile":
        assert isinstance(model, nn.Module)
        step: Any = torch.compile(model)
    else:
        call = remat_compile.plan if isinstance(model, Path) else remat_compile.compile
        step = call(model, args, cache=False, **options)
    if isinstance(model, nn.Module):
        step(*args).backward()
    return {"clock": time.perf_counter() - clock, "spent": spent_s() - spent}


def beside(name: str, rounds: int, options: dict[str, Any]) -> list[tuple[str, ...]]:
    """The rows of one model: medians of so many rounds, both sides in turn."""
    sides = SIDES if name != "resnet-50" else SIDES[:1]
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            with tempfile.TemporaryDirectory() as folder:
                own = ["--only", name, "--alone", side, "--options", json.dumps(options)]
                done = subprocess.run(
                    [sys.executable, __file__, *own],
                    cwd=Path(__file__).parent,
                    env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder},
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
            runs[side].append(json.loads(done.stdout.splitlines()[-1]))
    rows = []
    for side, seen in runs.items():
        figures = (statistics.median(run[key] for run in seen) for key in ("clock", "spent"))
        rows.append((name, side, *(f"{s:.1f}" for s in figures)))
    return rows


def main(
    only: Annotated[str, typer.Option(help=f"One of {', '.join(MODELS)}.")] = "",
    rounds: int = 1,
    fuse: Annotated[bool, typer.Option(help="Kernels on our side too.")] = False,
    alone: Annotated[str, typer.Option(hidden=True)] = "",
    options: Annotated[str, typer.Option(help="Of `compile`, as JSON.")] = "{}",
) -> None:
    """Times first steps."""
    chosen = {"activation_budget": "50%", "fuse": "auto" if fuse else "none"}
    chosen |= json.loads(options)
    if alone:
        print(json.dumps(start(only, alone, chosen)))
        return
    print(machine())
    rows = [row for name in ([only] if only else MODELS) for row in beside(name, rounds, chosen)]
    print_table(("model", "side", "by the clock (s)", "processors (s)"), rows)


if __name__ == "__main__":
    typer.run(main)
