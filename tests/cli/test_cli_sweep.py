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
from helpers.planners.plugin import install_module
from remat_compile import FBError
from remat_compile.driver import sweep as _sweep
from remat_compile.driver.run_planner import Attempt
from remat_compile.driver.sweep_cells import Cell, read_cells
from remat_compile.report.frontier import GIB, Frontier, Point, frontier_spec, knee

QUICK = ("--planners", "store-all,periodic{segments=2, by=count},dtr{rounds=0}")
RANGE = ("--activation-budgets", "40%..100%:4")


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(text)))


def test_a_frontier_in_csv(cli: Cli, chain: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep.csv"
    ran = cli("sweep", chain, *RANGE, *QUICK, "-o", out)
    assert ran.code == 0, ran.err
    found = rows(out.read_text())
    assert len(found) == 12
    assert [row["budget"] for row in found[:4]] == ["40%", "60%", "80%", "100%"]
    assert [row["budget_bytes"] for row in found[:4]] == ["4000", "6000", "8000", "10000"]
    by = {(row["planner"], row["budget"]): row for row in found}
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("planner,bytes\nx,3\n", "no column"),
        ("name,bytes,ratio\nx,-3,1\n", "no bytes"),
        ("name,bytes,ratio\nx,3,nan\n", "no time"),
        ("name,bytes,ratio\nx,much,1\n", "much"),
    ],
)
def test_points_that_are_none(cli: Cli, chain: Path, tmp_path: Path, text: str, said: str) -> None:
    points = tmp_path / "peers.csv"
    points.write_text(text)
    ran = cli("sweep", chain, *RANGE, *QUICK, "--points", points)
    assert ran.code == 2
    assert "FB0724" in ran.err
    assert said in ran.err


def test_points_are_not_written_over(cli: Cli, chain: Path, tmp_path: Path) -> None:
    points = tmp_path / "peers.csv"
    points.write_text("name,bytes,ratio\nx,3,1\n")
    ran = cli("sweep", chain, *RANGE, *QUICK, "--points", points, "-o", points)
    assert "FB0703" in ran.err
    assert points.read_text() == "name,bytes,ratio\nx,3,1\n"


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


def test_json_on_standard_output(cli: Cli, chain: Path) -> None:
    ran = cli(
        "sweep", chain, "--budgets", "10KB,12KB", "--planners", "dtr", "--format", "json", "-o", "-"
    )
    assert ran.code == 0, ran.err
    data = json.loads(ran.out)
    assert [cell["budget_bytes"] for cell in data["cells"]] == [10000, 12000]
    assert {cell["kind"] for cell in data["cells"]} == {"device"}
    assert data["baseline"]["peak_bytes"] == 11900
    assert "dtr" in ran.err


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
    found = rows(ran.out)
    assert [row["status"] for row in found[:2]] == ["failed", "failed"]
    assert all(row["overhead"] for row in found[2:])
    assert "KeyError: 'nix' [FB0460]" in found[0]["message"]
    assert "broken, 80%: planner broken failed" in ran.err


BAD: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "unknown planner": (["--planners", "dtrr,nix"], ("FB0401", "FB0401")),
    "no planner": (["--planners", ""], ("FB0402",)),
    "no comma": (["--planners", "dtr chen"], ("FB0402",)),
    "one budget in a range": (["--budgets", "20%..100%:1"], ("FB0450",)),
    "no count": (["--budgets", "20%..100%"], ("FB0450",)),
    "mixed range": (["--budgets", "20%..8GiB:3"], ("FB0450",)),
    "bad ends": (["--budgets", "x..8GiB:3"], ("FB0450",)),
    "endless count": (["--budgets", f"20%..100%:{'9' * 5000}"], ("FB0450",)),
    "more digits than a size has": (["--budgets", f"50%,{'9' * 5000}B"], ("FB0450",)),
    "time without an end": (["--time-limit", "inf"], ("FB0707",)),
    "unknown format": (["--format", "xml"], ("FB0707",)),
    "zero": (["--budgets", "0%..100%:3"], ("FB0451",)),
    "two lists": (["--budgets", "50%", "--activation-budgets", "50%"], ("FB0452",)),
    "nothing to resume": (["--resume"], ("FB0707",)),
    "everything at once": (
        ["--planners", "nix", "--budgets", "8", "--device", "y", "--time-limit", "-1"],
        ("FB0401", "FB0450", "FB0906", "FB0707"),
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options(case: str, cli: Cli, chain: Path) -> None:
    words, codes = BAD[case]
    ran = cli("sweep", chain, *words)
    assert ran.code == 2
    for code in set(codes):
        assert ran.err.count(f"error[{code}]") == codes.count(code), ran.err


def test_resume_refuses_another_file(cli: Cli, chain: Path, tmp_path: Path) -> None:
    cell = '"planner": "dtr", "kind": "device", "budget_bytes": 1, "plan_s": 0'
    texts = {
        "a.csv": "a,b\n1,2\n",
        "notes.txt": "one line of another file\n",
        "short.csv": "planner,budget\ndtr,50%\n",
        "a.json": "{",
        "b.json": '{"cells": [{}]}',
        "list.json": f'{{"cells": [{{{cell}, "budget": [], "status": "optimal"}}]}}',
        "none.json": f'{{"cells": [{{{cell}, "budget": null, "status": "optimal"}}]}}',
        "deep.json": '{"cells": ' + "[" * 100_000,
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        ran = cli("sweep", chain, "-o", tmp_path / name, "--resume")
        assert (ran.code, "error[FB0716]" in ran.err) == (2, True), ran.err
        assert (tmp_path / name).read_text() == text


def test_a_wrong_planner_is_shown_in_its_own_text(cli: Cli, chain: Path) -> None:
    ran = cli("sweep", chain, "--planners", "dtr,chenn")
    assert ran.code == 2
    assert "| dtr,chenn\n" in ran.err


def test_the_model_is_not_written_over(cli: Cli, chain: Path) -> None:
    before = chain.read_text()
    ran = cli("sweep", chain, "--planners", "dtr", "-o", chain)
    assert (ran.code, "error[FB0703]" in ran.err) == (2, True)
    assert chain.read_text() == before


def test_from_python(chain: Path) -> None:
    found = remat_compile.sweep(
        chain, activation_budgets=["50%", 7000], planners=["dtr", "chen"], progress=None
    )
    assert [(c.planner, c.budget_bytes) for c in found.cells] == [
        ("dtr", 5000),
        ("dtr", 7000),
        ("chen", 5000),
        ("chen", 7000),
    ]
    assert read_cells(found.to_csv()) == found.cells
    assert read_cells(found.to_json()) == found.cells
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
        printed, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "--resume goes on" in said
    assert "dtr" in printed
    assert [row["planner"] for row in rows(out.read_text())] == ["dtr"]
