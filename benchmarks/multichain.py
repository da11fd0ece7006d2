"""Figures 1.8 and 1.9 of Shilova 2021: makespan against memory, for joins of chains.

    python benchmarks/multichain.py --out figures
    python benchmarks/multichain.py --lengths 5,10 --most 10

Three graphs of 6L steps: CM (cross-modal, branches L and 5L), SNN (siamese, three of 2L)
and RNN (one chain of 6L, a lower bound for the others). Writes `figure_1_8.csv` and
`figure_1_9.csv`, and pictures beside them where matplotlib is installed; otherwise the
same curves as text.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from _tables import text_plot

from remat_compile.planners.chains.recurrences.homogeneous import MultiChain, least_slots

Curves = dict[str, list[tuple[float, float]]]


def branches(length: int) -> dict[str, tuple[int, ...]]:
    return {
        "CM": (length, 5 * length),
        "SNN": (2 * length,) * 3,
        "RNN": (6 * length,),
    }


def least_makespan(length: int) -> int:
    """Span*(L): every step once, with enough memory."""
    return 12 * length + 1


def against_memory(length: int) -> Curves:
    """Figure 1.8: (memory over the least for Span*, makespan over Span*)."""
    curves: Curves = {}
    for name, lengths in branches(length).items():
        table = MultiChain(lengths)
        enough = 6 * length + len(lengths)
        curves[name] = [
            (slots / enough, table.time(slots) / least_makespan(length))
            for slots in range(least_slots(lengths, table.kept), enough + 1)
        ]
    return curves


def against_length(slots: int, most: int) -> Curves:
    """Figure 1.9: (L, makespan over Span*) for a fixed memory."""
    curves: Curves = {name: [] for name in branches(1)}
    for length in range(1, most + 1):
        for name, lengths in branches(length).items():
            if slots >= least_slots(lengths, (False,) * len(lengths)):
                makespan = MultiChain(lengths, slots=slots).time(slots)
                curves[name].append((length, makespan / least_makespan(length)))
    return {name: curve for name, curve in curves.items() if curve}


def rows(key: str, plots: Mapping[int, Curves]) -> Iterator[dict[str, object]]:
    for value, curves in plots.items():
        for name, curve in curves.items():
            for x, y in curve:
                yield {key: value, "graph": name, "x": round(x, 6), "makespan": round(y, 6)}


def write(out: Path, name: str, key: str, plots: Mapping[int, Curves]) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with (out / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, (key, "graph", "x", "makespan"), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows(key, plots))


def draw(out: Path, name: str, key: str, label: str, plots: Mapping[int, Curves]) -> None:
    """A picture of all plots side by side, or the plots as text."""
    if find_spec("matplotlib") is None:
        for value, curves in plots.items():
            print(text_plot(f"{name}: {key} = {value}, makespan / Span* over {label}", curves))
            print()
        return
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(plots), figsize=(5 * len(plots), 4), squeeze=False)
    for axis, (value, curves) in zip(axes[0], plots.items(), strict=True):
        for graph, curve in curves.items():
            axis.plot(*zip(*curve, strict=True), marker=".", label=graph)
        axis.set(title=f"{key} = {value}", xlabel=label, ylabel="makespan / Span*")
        axis.legend()
    figure.tight_layout()
    figure.savefig(out / f"{name}.png")


def numbers(text: str) -> Sequence[int]:
    return [int(part) for part in text.split(",")]


def main(
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("figures"),
    lengths: Annotated[str, typer.Option(help="L of figure 1.8.")] = "5,10,15",
    slots: Annotated[str, typer.Option(help="Memory slots of figure 1.9.")] = "7,9,11,13",
    most: Annotated[int, typer.Option(help="Largest L of figure 1.9.")] = 20,
) -> None:
    """Makespans of joins of chains."""
    first = {length: against_memory(length) for length in numbers(lengths)}
    second = {count: against_length(count, most) for count in numbers(slots)}
    write(out, "figure_1_8", "L", first)
    write(out, "figure_1_9", "m", second)
    draw(out, "figure_1_8", "L", "memory / least memory for Span*", first)
    draw(out, "figure_1_9", "m", "L", second)


if __name__ == "__main__":
    typer.run(main)
