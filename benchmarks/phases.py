"""How long it takes from a model file to a verified plan, phase by phase.

    python benchmarks/phases.py                  # GPT-2: 12 layers, batch 4, sequence 256
    python benchmarks/phases.py --model my.onnx
    python benchmarks/phases.py --check          # exit code 1 above 60 s

Costs come by roofline, so no kernel is timed. Writing the sample file is not counted.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from _common import machine, write_gpt2_onnx
from _tables import print_table

import remat_compile

LIMIT_S = 60.0


def plan_and_save(
    model: Path, planner: str, budget: str, device: str, time_limit: float
) -> tuple[remat_compile.Plan, dict[str, float]]:
    """The plan, and the seconds of each phase in order; `other` is what no phase covers."""
    start = time.perf_counter()
    plan = remat_compile.plan(
        model,
        budget=budget,
        planner=planner,
        costs="roofline",
        device=device,
        time_limit_s=time_limit,
    )
    planned = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        plan.save(Path(folder) / "plan.fbir")
    end = time.perf_counter()
    seconds = dict(plan.phase_s)
    seconds["other"] = planned - start - sum(seconds.values())
    seconds["save"] = end - planned
    seconds["total"] = end - start
    return plan, seconds


def main(
    model: Annotated[Path | None, typer.Option(help="An ONNX file; GPT-2 if none.")] = None,
    planner: str = "auto",
    budget: str = "range:0.5",
    device: str = "h200",
    time_limit: Annotated[float, typer.Option(help="Seconds for the planner.")] = 20.0,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    vocab: int = 50257,
    seq: int = 256,
    batch: int = 4,
    check: Annotated[bool, typer.Option(help=f"Fail above {LIMIT_S:.0f} s.")] = False,
    out: Annotated[Path | None, typer.Option("--json", help="Write the figures.")] = None,
) -> None:
    """Times each phase from the model to the verified plan."""
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        path = model
        if path is None:
            path = Path(folder) / "gpt2.onnx"
            write_gpt2_onnx(
                path, layers=layers, width=width, heads=heads, vocab=vocab, seq=seq, batch=batch
            )
        plan, seconds = plan_and_save(path, planner, budget, device, time_limit)
    print(plan.summary())
    print_table(("phase", "seconds"), [(name, f"{s:.2f}") for name, s in seconds.items()])
    if out is not None:
        out.write_text(json.dumps({"machine": machine(), "seconds": seconds}))
    if check and seconds["total"] > LIMIT_S:
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
