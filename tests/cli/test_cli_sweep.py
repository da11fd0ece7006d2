"""`remat-compile sweep` and `remat_compile.sweep`."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import remat_compile
from helpers.cli import Cli
from helpers.clock import HANGS_S
from helpers.planners.plugin import install_module
from remat_compile import FBError
from remat_compile.plans.budget import Baseline
from remat_compile.plans.run_planner import Attempt
from remat_compile.plans.sweep import sweep as _sweep
from remat_compile.plans.sweep.cells import Cell, quoted, read_cells
from remat_compile.report.charts.frontier import GIB, Frontier, Point, frontier_spec, knee

QUICK = ("--planners", "store-all,periodic{segments=2, by=count},dtr{rounds=0}")
RANGE = ("--activation-budgets", "40%..100%:4")


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


def test_a_frontier_in_csv(cli: Cli, chain: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep.csv"
    ran = cli("sweep", chain, *RANGE, *QUICK, "-o", out)
    assert ran.code == 0, ran.err
    cells = rows(out.read_text())
    assert len(cells) == 12
    assert [row["budget"] for row in cells[:4]] == ["40%", "60%", "80%", "100%"]
    assert [row["budget_bytes"] for row in cells[:4]] == ["4000", "6000", "8000", "10000"]
    by = {(row["planner"], row["budget"]): row for row in cells}
    assert by["store-all", "100%"]["status"] == "optimal"
    assert by["store-all", "80%"]["status"] == "infeasible"
    assert by["store-all", "80%"]["least_bytes"] == "10000"
    dtr = by["dtr{rounds=0}", "40%"]
    assert dtr["status"] in ("feasible", "optimal")
    assert int(dtr["activation_peak_bytes"]) <= 4000
    assert float(dtr["overhead"]) > 0
    assert "[12/12] dtr{rounds=0} at 100%: 1.000*" in ran.err
    assert "periodic{segments=2, by=count}" in ran.out
    assert "infeasible" in ran.out


def test_a_page_with_the_frontier(
    cli: Cli, chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers are the sweep's, it can be gone on with, and no name acts in it."""
    monkeypatch.setattr("remat_compile.report.document.vega", lambda: "/* vega */")
    out, points = tmp_path / "sweep.html", tmp_path / "peers.csv"
    points.write_text("name,bytes,ratio\n</script><script>bad(),5000,1.25\n")
    ran = cli("sweep", chain, *RANGE, *QUICK, "-o", out, "--points", points, "--knee")
    assert ran.code == 0, ran.err
    text = out.read_text()
    assert "<script>bad" not in text
    data = json.loads(text.split('id="data">')[1].split("</script>")[0])
    cells = json.loads(data["sweep"])["cells"]
    layers = data["charts"]["activation"]["layer"]
    drawn = {(row["planner"], row["bytes"], row["ratio"]) for row in layers[0]["data"]["values"]}
    planned = [c for c in cells if c["overhead"] is not None]
    assert drawn == {(c["planner"], c["activation_peak_bytes"], 1 + c["overhead"]) for c in planned}
    assert layers[2]["data"]["values"][0]["bytes"] == 5000
    assert "activations: " in ran.out
    again = cli("sweep", chain, *RANGE, *QUICK, "-o", out, "--resume")
    assert again.code == 0, again.err
    assert len(read_cells(out.read_text())) == 12


def test_a_page_without_the_library(
    cli: Cli, chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    ran = cli("sweep", chain, *RANGE, *QUICK, "-o", tmp_path / "sweep.html")
    assert ran.code != 0
    assert "FB0712" in ran.err
    assert "[1/" not in ran.err
    assert not (tmp_path / "sweep.html").exists()


def test_the_knee_of_a_frontier() -> None:
    """Worked out by hand: hull (4, 2), (6, 1.2), (10, 1); (8, 1.9) is above it, (4, 3) worse."""
    points = tuple(
        Point("p", "", n, "feasible", n * GIB, ratio)
        for n, ratio in ((4, 3.0), (4, 2.0), (6, 1.2), (8, 1.9))
    )
    frontier = Frontier("device", 10 * GIB, 10**9, 0, points)
    bend = knee(frontier)
    assert bend is not None
    assert (bend.bytes, bend.ratio) == (6 * GIB, 1.2)
    assert bend.below_s_per_gib == pytest.approx(0.4)
    assert bend.above_s_per_gib == pytest.approx(0.05)
    bounds = tuple(replace(p, budget_bytes=p.bytes or 0, least_ratio=1.1) for p in points[2:3])
    layers = frontier_spec(replace(frontier, points=(*points, *bounds)))["layer"]
    assert layers[1]["data"]["values"] == [{"bytes": 6 * GIB, "ratio": 1.1}]
    line = replace(frontier, points=tuple(replace(p, ratio=2.0) for p in points[1:2]))
    assert knee(line) is None


def counting(to: list[str]) -> Callable[..., Cell]:
    """`_cell`, which also keeps the names of the planners that it ran."""
    real = _sweep._cell

    def count(attempt: Attempt, *rest: Any) -> Cell:
        to.append(attempt.name)
        return real(attempt, *rest)

    return count


def test_resume_takes_over_what_is_there(
    cli: Cli, chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("sweep.csv", "sweep.json"):
        out = tmp_path / name
        assert cli("sweep", chain, *RANGE, "--planners", "dtr", "-o", out, "-q").code == 0
        before = out.read_text()
        asked: list[str] = []
        monkeypatch.setattr(_sweep, "_cell", counting(asked))
        again = cli("sweep", chain, *RANGE, "--planners", "dtr,chen", "-o", out, "--resume")
        assert again.code == 0, again.err
        assert set(asked) == {"chen"}
        monkeypatch.undo()
        assert before.splitlines()[:3] == out.read_text().splitlines()[:3]
        # Another graph, another time limit: nothing is taken over.
        limited = cli("sweep", chain, *RANGE, *QUICK, "-o", out, "--resume", "--time-limit", "9")
        assert limited.code == 0


def test_failures_are_cells(
    cli: Cli, chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = (
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "@dataclass(frozen=True)\n"
        "class Broken:\n"
        "    name: ClassVar[str] = 'broken'\n"
        "    def plan(self, program, budget, *, time_limit_s=60.0, progress=None):\n"
        "        raise KeyError('nix')\n"
    )
    install_module(tmp_path, "broken_plug", broken, "broken = broken_plug:Broken")
    monkeypatch.syspath_prepend(str(tmp_path))
    ran = cli("sweep", chain, "--budgets", "80%,100%", "--planners", "broken,dtr", "-o", "-")
    assert ran.code == 0, ran.err
    cells = rows(ran.out)
    assert [row["status"] for row in cells[:2]] == ["failed", "failed"]
    assert all(row["overhead"] for row in cells[2:])
    assert "KeyError: 'nix' [FB0460]" in cells[0]["message"]
    assert "broken, 80%: planner broken failed" in ran.err


def test_from_python(chain: Path) -> None:
    swept = remat_compile.sweep(
        chain, activation_budgets=["50%", 7000], planners=["dtr", "chen"], progress=None
    )
    assert [(c.planner, c.budget_bytes) for c in swept.cells] == [
        ("dtr", 5000),
        ("dtr", 7000),
        ("chen", 5000),
        ("chen", 7000),
    ]
    assert read_cells(swept.to_csv()) == swept.cells
    assert read_cells(swept.to_json()) == swept.cells
    with pytest.raises(FBError) as caught:
        remat_compile.sweep(chain, budgets="8", planners=["nix"], time_limit_s=-1)
    assert {d.code for d in caught.value.diagnostics} == {"FB0450", "FB0401", "FB0707"}


def test_ctrl_c_keeps_what_was_done(chain: Path, tmp_path: Path) -> None:
    slow = (
        "import time\n"
        "from dataclasses import dataclass\n"
        "from typing import ClassVar\n"
        "@dataclass(frozen=True)\n"
        "class Slow:\n"
        "    name: ClassVar[str] = 'slow'\n"
        "    def plan(self, program, budget, *, time_limit_s=60.0, progress=None):\n"
        "        progress('asleep')\n"
        "        time.sleep(600)\n"
    )
    environment = install_module(tmp_path, "slow_plug", slow, "slow = slow_plug:Slow")
    out = tmp_path / "sweep.csv"
    code = (
        # A process of a shell's background job is born with the signal ignored.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "import sys; from remat_compile.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["sweep", str(chain), "--budgets", "100%", "--planners", "dtr,slow", "-o", str(out)]
    with subprocess.Popen(
        [sys.executable, "-c", code, *words],
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "asleep" in line:
                break
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=HANGS_S)
    assert process.returncode == 130
    assert "--resume goes on" in said
    assert "dtr" in printed
    assert [row["planner"] for row in rows(out.read_text())] == ["dtr"]


def test_cells_are_no_formulas_for_a_spreadsheet() -> None:
    words = ("=1+1", "+1", "-1", "@x", "\tx", "'x", "x=1")
    cells = tuple(
        Cell("chen", "50%", "activation", 12, "failed", 0.5, overhead=-0.5, message=word)
        for word in words
    )
    swept = _sweep.Sweep(Baseline(1, 1, 1, 1, "F1", 1, "F1"), cells)
    rows = list(csv.DictReader(StringIO(swept.to_csv())))
    assert [row["message"] for row in rows] == [f"'{word}" for word in words[:-1]] + ["x=1"]
    assert {row["overhead"] for row in rows} == {"-0.5"}
    assert read_cells(swept.to_csv()) == cells
    assert quoted("\r=x") == " =x"
