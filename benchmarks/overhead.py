"""What running through a plan costs: `store-all` against eager, the same work.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --check        # exit code 1 above the limits

A step is forward, loss and backward from gradients set to None, without an optimizer.
Steps of both sides are interleaved; the ratio is the median over the rounds, and the
times are medians too. Two models: one whose
step takes at least 200 ms, where kernels decide, and one whose operators take
microseconds, where the dispatch decides.
"""

from __future__ import annotations

import copy
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from _common import gpt2, interleave, machine, ratio
from _tables import print_table
from torch import Tensor, nn

import remat_compile


@dataclass(frozen=True)
class Case:
    """A model to time. `limit` bounds the ratio of `store-all` to eager."""

    name: str
    layers: int
    width: int
    heads: int
    vocab: int
    seq: int
    batch: int
    limit: float
    least_ms: float = 0.0
    repeat: int = 1


@dataclass(frozen=True)
class Outcome:
    case: str
    eager_ms: float
    ours_ms: float
    ratio: float
    ratio_low: float
    ratio_high: float
    limit: float


CASES = (
    Case("compute-bound", 4, 384, 6, 4096, 256, 4, limit=1.02, least_ms=200.0),
    Case("launch-bound", 6, 32, 2, 64, 16, 2, limit=1.15, repeat=20),
)


def step_of(model: nn.Module, args: tuple[Tensor, ...]) -> Callable[[], None]:
    params = list(model.parameters())

    def step() -> None:
        for p in params:
            p.grad = None
        torch.autograd.backward(model(*args))

    return step


def measure(case: Case, rounds: int) -> Outcome:
    shape = {"layers": case.layers, "width": case.width, "heads": case.heads}
    eager = gpt2(**shape, vocab=case.vocab, seq=case.seq)
    ids = torch.randint(0, case.vocab, (case.batch, case.seq))
    args = (ids, torch.roll(ids, -1, 1))
    ours = remat_compile.compile(
        copy.deepcopy(eager), args, planner="store-all", costs="roofline", device="cpu"
    )
    steps = {"ours": step_of(ours, args), "eager": step_of(eager, args)}
    times = interleave(steps, rounds=rounds, repeat=case.repeat)
    medians = {name: statistics.median(found) * 1e3 for name, found in times.items()}
    if medians["eager"] < case.least_ms:
        raise SystemExit(
            f"{case.name}: a step takes {medians['eager']:.0f} ms here, not the "
            f"{case.least_ms:.0f} ms that its limit is for"
        )
    middle, low, high = ratio(times["ours"], times["eager"])
    return Outcome(case.name, medians["eager"], medians["ours"], middle, low, high, case.limit)


def main(
    rounds: int = 21,
    check: Annotated[bool, typer.Option(help="Fail above the limits.")] = False,
    out: Annotated[Path | None, typer.Option("--json", help="Write the figures.")] = None,
) -> None:
    """Times `store-all` against eager."""
    print(machine())
    found = [measure(case, rounds) for case in CASES]
    print_table(
        ("case", "eager ms", "ours ms", "ratio", "quartiles", "limit"),
        [
            (
                o.case,
                f"{o.eager_ms:.2f}",
                f"{o.ours_ms:.2f}",
                f"{o.ratio:.3f}",
                f"{o.ratio_low:.3f}-{o.ratio_high:.3f}",
                f"{o.limit:.2f}",
            )
            for o in found
        ],
    )
    if out is not None:
        out.write_text(json.dumps({"machine": machine(), "cases": [asdict(o) for o in found]}))
    if check and any(o.ratio > o.limit for o in found):
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
