"""Periods of pipelines by planner, on roofline costs of networks of the literature.

    python benchmarks/pipelines.py --kept pipelines.jsonl
    python benchmarks/pipelines.py --nets resnet50 --ranks 4,8 --memory 4,6,8 --planners one-f-one-b

Networks are captured once on the `meta` device, at 1000 x 1000 pixels and batch 8 (a micro-batch);
costs are by roofline (V100). Bytes are counted as Shilova 2021 does: three copies of the weights,
two activations for each side of a cut, nothing for what an operator needs for itself; what PyTorch
saves for its backward is kept. Figures are steady-state periods in milliseconds.

With `--kept` each figure is a line of JSON in that file, and is not computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import product
from math import exp, log
from pathlib import Path
from re import split
from typing import Annotated

import typer
from _kept import Kept
from zoo.published import make

import remat_compile
from remat_compile.costs import load_device, roofline
from remat_compile.planners.pipeline.contract import Planned, parse_pipeline_planner
from remat_compile.planners.pipeline.from_program import StepLayers
from remat_compile.planners.pipeline.layers import Layers

NETS = "resnet50,resnet101,inception3,densenet121"
PLANNERS = (
    "pipedream,pipedream{memory=depth},one-f-one-b,madpipe,"
    "one-f-one-b{options=recompute},madpipe{options=recompute}"
)
COPIES = 3
Figures = dict[tuple[str, str, str, str], dict[str, int | None]]


@cache
def captured(net: str, size: int, batch: int) -> Layers:
    """The chain of a network, for one rank without a bound."""
    module, args = make(net, size, batch)
    plan = remat_compile.plan(
        module, args, planner="store-all", costs="roofline", device="h200", cache=False
    )
    step = StepLayers(roofline(plan.program, load_device("v100-16gb")))
    layers = step.layers(1, None, None, 1)
    each = range(len(step))
    weights = [step.weight_bytes((layer, layer + 1)) for layer in each]
    # Both planners of the thesis and ours see a cut as two activations on each side.
    return replace(
        layers,
        held_bytes_L=tuple(COPIES * w for w in weights),
        gradient_bytes_B=layers.activation_bytes_B,
        inner_bytes_L=tuple(step.parts(layer, layer + 1, 1).keep_bytes for layer in each),
        extra_bytes_L=(),
        microbatches=None,
    )


def on_ranks(layers: Layers, ranks: int, memory_bytes: int, link_bytes_per_s: int) -> Layers:
    return replace(
        layers, ranks=ranks, memory_bytes=memory_bytes, link_bytes_per_s=link_bytes_per_s
    )


def period_ns(planner: str, layers: Layers, limit_s: float) -> int | None:
    """None where the planner finds nothing."""
    result = parse_pipeline_planner(planner).plan(layers, time_limit_s=limit_s)
    return result.plan.period_ns if isinstance(result, Planned) else None


def main(
    nets: Annotated[str, typer.Option(help="Networks, with commas.")] = NETS,
    ranks: Annotated[str, typer.Option(help="Numbers of ranks.")] = "2,3,4,5,6,7,8",
    memory: Annotated[str, typer.Option(help="GB of each rank.")] = "3,4,6,8,10,12,16",
    links: Annotated[str, typer.Option(help="GB/s between ranks.")] = "12,24",
    planners: Annotated[str, typer.Option(help="With commas.")] = PLANNERS,
    size: int = 1000,
    batch: int = 8,
    time_limit: Annotated[float, typer.Option(help="Seconds for each plan.")] = 60.0,
    kept: Annotated[Path | None, typer.Option(help="JSON lines to go on from.")] = None,
    means: Annotated[bool, typer.Option(help="Only the means over networks and ranks.")] = False,
) -> None:
    """Prints a table in Markdown per network and link, then means over the best PipeDream."""
    known = Kept(kept)
    columns = split(r",(?![^{]*\})", planners)
    figures: Figures = {}
    for net, link in product(nets.split(","), links.split(",")):
        if not means:
            print(f"\n{net}, {link} GB/s\n")
            print("| ranks | GB | " + " | ".join(f"`{c}`" for c in columns) + " |")
            print("|" + "---|" * (len(columns) + 2))
        for p, gb in product(ranks.split(","), memory.split(",")):
            row = figures[net, link, p, gb] = {}
            cells = []
            for column in columns:
                key = (net, size, batch, int(p), gb, link, column)
                if key not in known.known:  # the capture is no part of the seconds
                    bounds = (int(p), int(float(gb) * 10**9), int(float(link) * 10**9))
                    asked = on_ranks(captured(net, size, batch), *bounds)
                    known.figure(key, partial(period_ns, column, asked, time_limit))
                row[column], spent_s = known.known[key]
                cells.append(_cell(row[column], spent_s))
            if not means:
                print(f"| {p} | {gb} | " + " | ".join(cells) + " |", flush=True)
    print(*_means(figures, columns, memory.split(",")), sep="\n")


def _cell(found: int | None, spent_s: float) -> str:
    ms = "–" if found is None else f"{found / 1e6:.1f}"
    return f"{ms} ({spent_s:.1f} s)" if spent_s >= 1 else ms


def _means(
    figures: Figures,
    columns: list[str],
    memory: list[str],
) -> Iterator[str]:
    """Geometric mean over networks, ranks and links of the best PipeDream over each planner."""
    yield "\nBest `pipedream` over each planner, and where it finds a plan at all\n"
    ours = [c for c in columns if not c.startswith("pipedream")]
    yield "| GB | " + " | ".join(f"`{c}`" for c in ours) + " |"
    yield "|" + "---|" * (len(ours) + 1)
    for gb in memory:
        cells = []
        for column in ours:
            ratios, only = [], 0
            for (_, _, _, at), row in figures.items():
                theirs = [row[c] for c in columns if c.startswith("pipedream")]
                best = min((t for t in theirs if t is not None), default=None)
                if at == gb and row[column] is not None:
                    ratios += [log(best / row[column])] if best else []
                    only += best is None
            mean = f"{exp(sum(ratios) / len(ratios)):.2f}" if ratios else "–"
            cells.append(f"{mean} ({len(ratios)} of {len(ratios) + only})")
        yield f"| {gb} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    typer.run(main)
