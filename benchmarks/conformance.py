"""The whole conformance matrix, planner x graph x budget; writes its results with their date.

    python benchmarks/conformance.py            # about 50 minutes; `make matrix`
    python benchmarks/conformance.py --planners rotor,dtr --graphs chain,unet

With --planners or --graphs the other cells keep what the file says of them. A cell that breaks
its word (`tests/helpers/planners/matrix.py` says what that is) is told, has no row, and makes the
exit status 1; the other cells run all the same.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from remat_compile.ir.diagnostics import FBError

TESTS = Path(__file__).parents[1] / "tests"
RESULTS = Path(__file__).parent / "results"
MOST_GAP = 0.10
"""The median gap of plans to their bounds on graphs of at most 70 cNodes."""


def main(
    output: Annotated[Path, typer.Option("-o", "--output")] = RESULTS / "matrix.csv",
    time_limit: Annotated[float, typer.Option(help="Seconds for each cell.")] = 4.0,
    planners: Annotated[str, typer.Option(help="With commas between (all).")] = "",
    graphs: Annotated[str, typer.Option(help="With commas between (all).")] = "",
) -> None:
    """Runs every planner, the example plug-in included, on every graph."""
    sys.path.insert(0, str(TESTS))
    from helpers.planners import matrix
    from helpers.planners.kept_processes import kept_processes
    from helpers.planners.plugin import NAME, install
    from remat_compile.planners import available

    with tempfile.TemporaryDirectory() as folder, kept_processes():
        sys.path.insert(0, str(install(Path(folder))))
        names = planners.split(",") if planners else sorted({*available(), NAME})
        all_graphs = (*matrix.SMALL, *matrix.LARGER, *matrix.models())
        chosen = graphs.split(",") if graphs else all_graphs
        partly = bool(planners or graphs)
        broken: list[str] = []
        outcomes = [o for o in matrix.read(output) if o.graph in all_graphs] if partly else []
        for graph in chosen:
            for name in names:
                row = _row(matrix, name, graph, time_limit, broken)
                outcomes = [o for o in outcomes if (o.graph, o.planner) != (graph, name)] + row
                matrix.write(output, outcomes)
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    if partly:
        when += f" ({', '.join([*names, *chosen])}; other cells are of earlier runs)"
    text = matrix.summary(outcomes, when)
    output.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    print(*broken, sep="\n")
    if broken or median(matrix.gaps(outcomes)) > MOST_GAP:
        raise SystemExit(1)


def _row(matrix: Any, planner: str, graph: str, time_limit: float, broken: list[str]) -> list[Any]:
    """One planner on one graph under all budgets; one cell where it does not apply.

    What breaks its word is said and added to `broken`.
    """
    cells = []
    for share in matrix.SHARES:
        try:
            cell = matrix.outcome(planner, graph, share, time_limit)
        except (AssertionError, FBError) as error:
            broken.append(f"{graph} {share:.2f} {planner}: {error}")
            print(broken[-1], flush=True)
            continue
        time = "" if cell.time is None else f" {cell.time:.4f}"
        print(f"{graph:16} {share:.2f} {planner:16} {cell.status}{time}", flush=True)
        cells.append(cell)
        if cell.status == "refused":
            break
    return cells


if __name__ == "__main__":
    typer.run(main)
