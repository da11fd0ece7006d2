"""Proven peak bytes of each rank and time of a step, per schedule, on roofline costs.

    python benchmarks/schedules.py gpt2-large --ranks 4 --microbatches 16 --batch 4

The network is captured on the `meta` device; rows of all schedules are checked by both programs.
Bytes are those that the plan says in full: parameters, gradients, inputs, what backwards keep, what
crosses, and what operators need for themselves. States of an optimizer are not among them.
"""

from __future__ import annotations

from time import perf_counter
from typing import Annotated

import typer
from zoo.published import make

import remat_compile
from remat_compile.costs import load_device, roofline
from remat_compile.ir.diagnostics import FBError
from remat_compile.plans.options import Errors
from remat_compile.plans.pipeline.make import make_pipeline, read_pipeline_request
from remat_compile.verifier.pipeline import check_pipeline

SCHEDULES = "gpipe,interleaved,zb-h1,one-f-one-b,madpipe"
MB = 10**6


def main(
    net: str,
    ranks: int = 4,
    microbatches: int = 16,
    batch: Annotated[int, typer.Option(help="Of a micro-batch.")] = 4,
    size: Annotated[int, typer.Option(help="Pixels of images.")] = 224,
    link: str = "12GB/s",
    device: str = "a100-80gb",
    budget: Annotated[str, typer.Option(help="Of each rank; left out, none.")] = "",
    schedules: str = SCHEDULES,
) -> None:
    """Prints a table in Markdown."""
    module, args = make(net, size, batch)
    plan = remat_compile.plan(
        module, args, planner="store-all", costs="roofline", device="h200", cache=False
    )
    program = roofline(plan.program, load_device(device))
    print(f"{net}, {ranks} ranks, {microbatches} micro-batches of {batch}, {link}, {device}\n")
    print("| schedule | step, ms | idle | largest peak, MB | peak of each rank, MB | proof, s |")
    print("|---|---|---|---|---|---|")
    for schedule in schedules.split(","):
        errors = Errors()
        request = read_pipeline_request(
            errors, schedule, microbatches, budget or None, link, ranks=ranks
        )
        errors.raise_if_any()
        assert request is not None
        try:
            made = make_pipeline(program, request)
        except FBError as error:
            print(f"| `{schedule}` | {error.diagnostics[0].code} | | | | |")
            continue
        began = perf_counter()
        check_pipeline(made.pipeline)
        proof_s = perf_counter() - began
        peaks = [peak // MB for peak in made.verdict.peak_bytes_R]
        print(
            f"| `{schedule}` | {made.trace.makespan_ns / 1e6:.0f} | {made.trace.bubble:.0%} "
            f"| {max(peaks)} | {', '.join(map(str, peaks))} | {proof_s:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    typer.run(main)
