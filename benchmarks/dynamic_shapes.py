"""What dynamic dimensions cost at capture: processor time of a static and of dynamic captures.

    python benchmarks/dynamic_shapes.py                  # a GPT of 2, 4 and 12 layers
    python benchmarks/dynamic_shapes.py --fresh          # each capture in a process of its own
    python benchmarks/dynamic_shapes.py --check          # exit code 1 above four times it

A capture is `export` and `lower`: what the phases `capture` and `lower` of a plan are. Captures
take turns, and the fastest of each counts. In one process a static capture finds PyTorch's cache
of fake tensors filled by the one before; a dynamic one has symbols of its own and does not.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from _common import machine
from _tables import print_table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers.networks.transformers import GPT

LIMIT = 4.0
KINDS = ("static", "batch", "seq", "both")


def capture_s(layers: int, kind: str) -> float:
    """Seconds of processor time, for the model of this many layers at batch 4, sequence 12."""
    from remat_compile.capture.torch import export, lower

    torch.manual_seed(0)
    batch, seq = torch.export.Dim("batch", min=2, max=64), torch.export.Dim("seq", min=2, max=16)
    shapes: dict[str, Any] = {"batch": {0: batch}, "seq": {1: seq}, "both": {0: batch, 1: seq}}
    dynamic = None if kind == "static" else (shapes[kind],)
    model, ids = GPT(layers=layers).train(), torch.randint(0, 61, (4, 12))
    start = time.process_time()
    with lower(export(model, (ids,), dynamic_shapes=dynamic)):
        return time.process_time() - start


def fresh_s(layers: int, kind: str) -> float:
    command = [sys.executable, __file__, "--one", f"{layers} {kind}"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def main(
    layers: str = "2,4,12",
    rounds: Annotated[int, typer.Option(help="Turns; the fastest capture counts.")] = 3,
    fresh: Annotated[bool, typer.Option(help="Each capture in a process of its own.")] = False,
    check: Annotated[bool, typer.Option(help=f"Fail above {LIMIT:.0f} times.")] = False,
    one: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Prints seconds of processor time and how many times the static ones they are."""
    if one:
        count, kind = one.split()
        print(capture_s(int(count), kind))
        return
    print(machine())
    seconds = fresh_s if fresh else capture_s
    if not fresh:
        for kind in ("static", "both"):
            capture_s(1, kind)
    worst, rows = 0.0, []
    for count in map(int, layers.split(",")):
        best = {kind: float("inf") for kind in KINDS}
        for _ in range(rounds):
            for kind in KINDS:
                best[kind] = min(best[kind], seconds(count, kind))
        ratios = {kind: best[kind] / best["static"] for kind in KINDS[1:]}
        worst = max(worst, *ratios.values())
        dynamic = [f"{best[kind]:.2f} ({ratios[kind]:.2f})" for kind in KINDS[1:]]
        rows.append((str(count), f"{best['static']:.2f}", *dynamic))
    print_table(("layers", "static, s", *KINDS[1:]), rows)
    if check and worst > LIMIT:
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
