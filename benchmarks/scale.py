"""From a text to a proven plan that is saved, on graphs of a thousand computations to a million.

    python benchmarks/scale.py                                  # up to 2 500 computations
    python benchmarks/scale.py --graphs gpt2-2940 --limit 60    # 10^5
    python benchmarks/scale.py --graphs gpt2-29400 --limit 300  # 10^6
    python benchmarks/scale.py --graphs encoder-decoder-2500 --uneven
    python benchmarks/scale.py --graphs gpt2-29,gpt2-294,gpt2-2940 --plot docs/img/scale.svg

Graphs are synthetic, and so are their times. `encoder-decoder-N`: as many layers of 26 forward
computations, half of them the encoder's; every layer of the decoder reads the encoder's result and,
over a long skip, the layer of the encoder that lies as far from the middle. `--uneven`: no two
layers are equal. `gpt2-L`: L layers of GPT-2, 34 computations each; `chain-N`: one computation a
layer. Each graph has a process of its own; GiB is the peak of that process plus that of the largest
it started, and where the system has /proc the peak of all at one time. What is being done is told
on standard error as it begins, and a sign of life every minute. With `--results FILE` rows are kept
there (JSON lines), and the plot is of all of them. A graph that ends otherwise than with a proven
plan gives a message in place of its row; the others are run all the same.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from math import log10
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from _tables import print_table

import remat_compile
from remat_compile.ir.diagnostics import FBError
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


def measured(path: Path, planner: str, share: float, limit: float) -> dict[str, Any]:
    """One plan from a text to a file, in this process."""
    start, load = perf_counter(), os.getloadavg()[0]

    def tell(line: str) -> None:
        print(f"{perf_counter() - start:8.1f} s  {line}", file=sys.stderr, flush=True)

    tell(f"reading {path.stat().st_size / 2**20:.0f} MiB")
    plan = remat_compile.plan(
        path,
        activation_budget=f"{100 * share:g}%",
        planner=planner,
        time_limit_s=limit,
        progress=tell,
    )
    saving = perf_counter()
    tell("saving")
    plan.save(path.with_name("plan.fbir"))
    phases = {"read": 0.0, **plan.phase_s, "save": perf_counter() - saving}
    seconds = perf_counter() - start
    phases["read"] = seconds - sum(phases.values())  # with the bounds of the step without a plan
    own, others = (resource.getrusage(who) for who in (0, resource.RUSAGE_CHILDREN))
    assert plan.proven is not None
    assert plan.proven.certificate is not None
    once_ns = sum(c.time_ns or 0 for c in plan.graph.cnodes)
    return {
        "cnodes": len(plan.program.graph.cnodes),
        "steps": len(plan.schedule.steps),
        "s": round(seconds, 1),
        "cpu_s": [round(who.ru_utime + who.ru_stime, 1) for who in (own, others)],
        "phases": {name: round(s, 1) for name, s in phases.items() if s >= 0.05},
        "overhead": round(100 * (plan.proven.certificate.time_ns / once_ns - 1), 2),
        "gib": [round(who.ru_maxrss / 2**20, 2) for who in (own, others)],
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "planner": plan.planner,
    }


class Unfinished(Exception):
    """Why a process has not given what it was to give."""


def _aside(function: str, *args: str) -> tuple[str, float]:
    """What one of the functions below prints, in a process of its own; and the most memory, in
    GiB, that it and those it started held at one time (0 where that is not known)."""
    command = [sys.executable, __file__, function, *args]
    most, start, report_at_s = 0.0, perf_counter(), 60.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            while True:
                most = max(most, _gib(process.pid))
                try:
                    printed, _ = process.communicate(timeout=0.5)
                    break
                except subprocess.TimeoutExpired:
                    pass
                if perf_counter() - start >= report_at_s:
                    held = f", {_gib(process.pid):.2f} GiB" if most else ""
                    print(f"{report_at_s:8.0f} s  still at it{held}", file=sys.stderr, flush=True)
                    report_at_s += 60
        except BaseException:
            process.kill()
            raise
    if process.returncode < 0:
        why = f"it was ended by signal {-process.returncode}"
        hint = ": out of memory, most likely" if process.returncode == -9 else ""
        raise Unfinished(f"{why}{hint} after {perf_counter() - start:.0f} s and {most:.2f} GiB")
    if process.returncode:
        raise Unfinished(f"what is wrong stands above; {most:.2f} GiB were held")
    return printed, round(most, 2)


def _gib(process: int) -> float:
    """Held by a process and by those that it started, as far as /proc tells."""
    pages, todo = 0, [process]
    while todo:
        folder = Path("/proc") / str(todo.pop())
        try:
            pages += int((folder / "statm").read_text().split()[1])
            for task in (folder / "task").iterdir():
                todo += map(int, (task / "children").read_text().split())
        except OSError:  # it has ended, or there is no /proc
            continue
    return pages * resource.getpagesize() / 2**30


CURVES: dict[str, tuple[str, Callable[[dict[str, Any]], float]]] = {
    "clock": ("#1a1a1a", lambda row: row["s"]),
    "processor": ("#0072b2", lambda row: sum(row["cpu_s"])),
    "proof, clock": ("#009e73", lambda row: row["phases"]["verify"]),
}
"""Colours, and seconds of a row."""


def plot(rows: Sequence[dict[str, Any]]) -> str:
    """Seconds over cNodes, both on logarithmic axes, as SVG; the dashed line is linear growth."""
    rows = sorted(rows, key=lambda row: row["cnodes"])
    left, right, low, high = 3, 6.2, -1, 3.5

    def at(count: float, seconds: float) -> str:
        x = 60 + 420 * (log10(count) - left) / (right - left)
        y = 300 - 280 * (log10(seconds) - low) / (high - low)
        return f"{x:.1f},{y:.1f}"

    def text(place: str, words: str, colour: str = "#555", anchor: str = "start") -> str:
        x, y = place.split(",")
        return f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}">{words}</text>'

    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 560 340" font-size="12" '
        'font-family="sans-serif"><rect width="560" height="340" fill="white"/>'
    ]
    for power in range(left, 7):
        ends = f"{at(10**power, 10**low)} {at(10**power, 10**high)}"
        lines.append(f'<polyline points="{ends}" stroke="#ddd" fill="none"/>')
        x = at(10**power, 10**low).split(",")[0]
        shown = f"10<tspan dy='-4' font-size='9'>{power}</tspan>"
        lines.append(text(f"{x},318", shown, anchor="middle"))
    for power in range(low, 4):
        ends = f"{at(10**left, 10**power)} {at(10**right, 10**power)}"
        lines.append(f'<polyline points="{ends}" stroke="#ddd" fill="none"/>')
        y = at(10**left, 10**power).split(",")[1]
        lines.append(text(f"54,{y}", f"{10.0**power:g} s", anchor="end"))
    lines.append(text("270,336", "computations (cNodes)", anchor="middle"))
    first, last = rows[0], rows[-1]
    linear = at(last["cnodes"], first["s"] * last["cnodes"] / first["cnodes"])
    lines.append(
        f'<polyline points="{at(first["cnodes"], first["s"])} {linear}" stroke="#999" '
        'stroke-dasharray="4 3" fill="none"/>'
    )
    for name, (colour, seconds_of) in CURVES.items():
        points = [at(row["cnodes"], max(0.1, seconds_of(row))) for row in rows]
        lines.append(f'<polyline points="{" ".join(points)}" stroke="{colour}" fill="none"/>')
        for point in points:
            x, y = point.split(",")
            lines.append(f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>')
        x, y = points[-1].split(",")
        lines.append(text(f"{float(x) + 8:.1f},{float(y) + 4:.1f}", name, colour))
    return "\n".join([*lines, "</svg>", ""])


@app.command()
def main(
    graphs: str = "gpt2-12,gpt2-48,encoder-decoder-2500",
    planner: str = "hiremate",
    share: Annotated[float, typer.Option(help="of the activations of the unplanned step")] = 0.5,
    limit: Annotated[float, typer.Option(help="seconds for the planner")] = 60.0,
    uneven: bool = False,
    results: Annotated[Path | None, typer.Option(help="rows are added to this file")] = None,
    plotted: Annotated[Path | None, typer.Option("--plot", help="a log-log plot, as SVG")] = None,
) -> None:
    """Prints a row for each graph."""
    rows: list[dict[str, Any]] = []
    unfinished: list[str] = []
    if results is not None and results.exists():
        rows = [json.loads(line) for line in results.read_text().splitlines()]
    for name in filter(None, graphs.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "graph.fbir")
            try:
                _aside("write", name, path, "uneven" if uneven else "")
                row, most = _aside("measure", path, planner, str(share), str(limit))
            except Unfinished as why:
                print(f"{name}: no proven plan, {why}", file=sys.stderr, flush=True)
                unfinished.append(name)
                continue
        shown = name + (", uneven" if uneven else "")
        rows.append({"graph": shown, "limit": limit, **json.loads(row), "gib_at_once": most})
        print(json.dumps(rows[-1]), flush=True)
        if results is not None:
            results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print()
    print_table(
        ("graph", "cNodes", "s", "processor s", "of which", "overhead %", "GiB", "at once"),
        [
            (
                row["graph"],
                str(row["cnodes"]),
                str(row["s"]),
                " + ".join(map(str, row["cpu_s"])),
                ", ".join(f"{name} {s}" for name, s in row["phases"].items()),
                str(row["overhead"]),
                " + ".join(map(str, row["gib"])),
                str(row.get("gib_at_once") or "-"),
            )
            for row in rows
        ],
    )
    if plotted is not None:
        plotted.write_text(plot(rows))
    if unfinished:
        raise typer.Exit(1)


if __name__ == "__main__":
    try:
        match sys.argv[1:]:
            case ["write", name, path, uneven]:
                Path(path).write_text(format_program(graph(name, uneven=bool(uneven))))
            case ["measure", path, planner, share, limit]:
                print(json.dumps(measured(Path(path), planner, float(share), float(limit))))
            case _:
                app()
    except (FBError, MemoryError, typer.BadParameter) as error:
        sys.exit(str(error) or "there is not enough memory")
