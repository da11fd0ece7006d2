"""From a text to a proven plan, on graphs of a thousand computations to a hundred thousand.

    python benchmarks/scale.py                                  # up to 2 500 computations
    python benchmarks/scale.py --graphs chain-100000 --limit 120
    python benchmarks/scale.py --graphs encoder-decoder-2500 --uneven

Graphs are synthetic, and so are their times. `encoder-decoder-N`: as many layers of 26 forward
computations, half of them the encoder's; every layer of the decoder reads the encoder's result and,
over a long skip, the layer of the encoder that lies as far from the middle. `--uneven`: no two
layers are equal. `gpt2-L`: L layers of GPT-2; `chain-N`: one computation a layer.
"""

from __future__ import annotations

import random
import resource
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from _tables import print_table

import remat_compile
from remat_compile.ir.program import Program
from remat_compile.ir.text.printer import format_program

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers.planners.graph_builder import Builder
from helpers.planners.graphs import chain
from helpers.planners.transformer_graph import transformer

OPS = 26
"""Forward computations of a layer."""
RESIDUAL = {8: -1, 17: 8, OPS - 1: 17}
"""Sums, and what else they read: -1 is what comes into the layer."""

app = typer.Typer(add_completion=False)


def encoder_decoder(cnodes: int, *, uneven: bool, size: int = 4096) -> Program:
    """With about so many cNodes in all."""
    layers = max(2, cnodes // (2 * OPS + 2) // 2 * 2)
    rng = random.Random(0)
    scale = [rng.uniform(0.8, 1.2) if uneven else 1.0 for _ in range(layers)]
    b = Builder("encoder_decoder")
    b.input("source", size)
    b.input("target", size)
    reads_of: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    half = layers // 2
    last = ""
    for layer in range(layers):
        before = {0: "source", half: "target"}.get(layer, last)
        memory = f"v{half - 1}_{OPS - 1}"
        for k in range(OPS):
            name, weight = f"v{layer}_{k}", f"w{layer}_{k}"
            reads = [before]
            if k in RESIDUAL:
                reads.append(f"v{layer}_{RESIDUAL[k]}" if RESIDUAL[k] >= 0 else last or "source")
            if layer >= half and k == 4:
                reads += [memory, f"v{layers - 1 - layer}_{OPS - 2}"]
            b.param(weight, 64, f"d{weight}")
            wide = 4 if k % 9 in (3, 4) else 1
            bytes_ = int(size * wide * scale[layer])
            kind = "output" if (layer, k) == (layers - 1, OPS - 1) else "act"
            b.op(
                [*dict.fromkeys(reads), weight],
                [(name, kind, bytes_)],  # type: ignore[list-item]
                time=int((40 if k % 3 == 0 else 6) * scale[layer]) + 1,
            )
            reads_of[name] = list(dict.fromkeys(reads))
            sizes[name] = bytes_
            before = name
        last = before
    _backward(b, reads_of, sizes, last)
    return b.program()


def _backward(b: Builder, reads_of: dict[str, list[str]], size: dict[str, int], last: str) -> None:
    """Of each computation in turn; what several read gets the sum of their gradients."""
    b.loss([last], [(f"g_{last}", size[last])])
    grad = {last: f"g_{last}"}
    for name in reversed(reads_of):
        reads = reads_of[name]
        weight = "w" + name[1:]
        writes = [(f"d{weight}", "param_grad", 64)]
        parts = [(r, f"p_{name}_{r}") for r in reads if r in size]
        writes += [(part, "grad", size[r]) for r, part in parts]
        b.op([grad[name], *reads, weight], writes, phase="bwd", time=20)  # type: ignore[arg-type]
        for r, part in parts:
            if r in grad:
                b.accumulate(grad[r], part, f"s_{name}_{r}", "grad", size[r])
                part = f"s_{name}_{r}"
            grad[r] = part


def graph(name: str, *, uneven: bool) -> Program:
    kind, _, number = name.rpartition("-")
    match kind:
        case "encoder-decoder":
            return encoder_decoder(int(number), uneven=uneven)
        case "gpt2":
            return transformer(int(number))
        case "chain":
            return chain(int(number) // 2, seed=1 if uneven else None)
    raise typer.BadParameter(f"no graph {name}")


@app.command()
def main(
    graphs: str = "gpt2-12,gpt2-48,encoder-decoder-2500",
    planner: str = "hiremate",
    share: Annotated[float, typer.Option(help="of the activations of the unplanned step")] = 0.5,
    limit: Annotated[float, typer.Option(help="seconds for the planner")] = 60.0,
    uneven: bool = False,
) -> None:
    """Prints a row for each graph."""
    rows = []
    for name in graphs.split(","):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "graph.fbir"
            program = graph(name, uneven=uneven)
            path.write_text(format_program(program))
            start = perf_counter()
            plan = remat_compile.plan(
                path,
                activation_budget=f"{100 * share:g}%",
                planner=planner,
                time_limit_s=limit,
                progress=False,
            )
            seconds = perf_counter() - start
        over = 100 * (plan.time_s / plan.baseline.time_ns * 1e9 - 1)
        phases = ", ".join(f"{k} {s:.1f}" for k, s in plan.phase_s.items() if s >= 0.05)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        count = len(program.graph.cnodes)
        rows.append((name, str(count), f"{seconds:.1f}", phases, f"{over:.2f}", f"{used:.2f}"))
        print(*rows[-1], plan.planner, sep=" | ", flush=True)
    print()
    print_table(("graph", "cNodes", "s", "of which", "overhead %", "GiB"), rows)


if __name__ == "__main__":
    app()
