"""The default command: `remat-compile MODEL -o PLAN.fbir --budget B`."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from helpers.cli import Cli, chain_text
from remat_compile.api import load
from remat_compile.verifier import ProvenPlan


def test_plans_proves_and_writes(cli: Cli, chain: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.fbir"
    ran = cli(chain, "-o", plan, "--activation-budget", "70%", "--time-limit", "5")
    assert ran.code == 0, ran.err
    assert "activations" in ran.out
    assert f"wrote {plan}" in ran.out
    assert "planning with auto" in ran.err
    made = load(plan)
    assert isinstance(made.verify(), ProvenPlan)
    assert made.proven is not None
    assert made.activation_peak_bytes <= 0.7 * made.baseline.activation_peak_bytes
    assert made.proven.activation_bytes <= 0.7 * made.baseline.activation_peak_bytes


def test_without_output_nothing_is_written(cli: Cli, chain: Path) -> None:
    ran = cli(chain)
    assert ran.code == 0
    assert "nothing was written" in ran.out
    assert [p.name for p in chain.parent.iterdir()] == ["chain.fbir"]


def test_streams(cli: Cli) -> None:
    ran = cli("-", "-o", "-", "--budget", "70%", "--planner", "dtr", stdin=chain_text())
    assert ran.code == 0, ran.err
    assert ran.out.startswith("fbir 1")
    assert "nothing recomputed" in ran.err
    again = cli("verify", "-", stdin=ran.out)
    assert again.code == 0, again.err


def test_quiet_says_nothing(cli: Cli, chain: Path, tmp_path: Path) -> None:
    ran = cli(chain, "-o", tmp_path / "p.fbir", "--quiet")
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_options_may_come_first(cli: Cli, chain: Path, tmp_path: Path) -> None:
    ran = cli("-o", tmp_path / "p.fbir", "--planner", "store-all", chain)
    assert ran.code == 0
    assert load(tmp_path / "p.fbir").planner == "store-all"


def test_planning_again_replaces_the_plan(cli: Cli, planned: Path) -> None:
    ran = cli(planned, "-o", planned, "--planner", "store-all")
    assert ran.code == 0, ran.err
    made = load(planned)
    assert [s.planner for s in made.program.schedules] == ["store-all"]


def test_roofline_for_another_device(cli: Cli, chain: Path, tmp_path: Path) -> None:
    ran = cli(chain, "-o", tmp_path / "p.fbir", "--device", "h200")
    assert ran.code == 0, ran.err
    program = load(tmp_path / "p.fbir").program
    assert (program.target.name, program.header.costs) == ("h200", "roofline")
    assert program.target.granularity_bytes == 512


def test_existing_gradients_count(cli: Cli, chain: Path, tmp_path: Path) -> None:
    for grads in ("fresh", "accumulate"):
        assert cli(chain, "-o", tmp_path / grads, "--grads", grads).code == 0
    fresh, accumulate = (load(tmp_path / name) for name in ("fresh", "accumulate"))
    assert accumulate.peak_bytes - fresh.peak_bytes == 800


BAD: dict[str, tuple[list[str], str, int]] = {
    "budget of zero": (["--budget", "0"], "FB0451", 2),
    "budget of zero bytes": (["--budget", "0GiB"], "FB0451", 2),
    "negative budget": (["--budget", "-8GiB"], "FB0451", 2),
    "negative percentage": (["--activation-budget", "-50%"], "FB0451", 2),
    "budget without a unit": (["--budget", "8"], "FB0450", 2),
    "unknown unit": (["--budget", "8Gb"], "FB0450", 2),
    "no number": (["--budget", "much"], "FB0450", 2),
    "bad range": (["--budget", "range:x"], "FB0450", 2),
    "negative range": (["--budget", "range:-1"], "FB0451", 2),
    "two budgets": (["--budget", "8GiB", "--activation-budget", "8GiB"], "FB0452", 2),
    "unreachable budget": (["--activation-budget", "10B"], "FB0466", 1),
    "unknown planner": (["--planner", "dtrr"], "FB0401", 2),
    "unreadable planner": (["--planner", "dtr{"], "FB0402", 2),
    "unknown planner option": (["--planner", "periodic{segment=4}"], "FB0403", 2),
    "planner option of the wrong type": (["--planner", "periodic{segments=x}"], "FB0404", 2),
    "unknown device": (["--device", "h20"], "FB0906", 2),
    "roofline without device": (["--costs", "roofline"], "FB0707", 2),
    "measured for a device": (["--costs", "measured", "--device", "h200"], "FB0707", 2),
    "measured without a model": (["--costs", "measured"], "FB0713", 2),
    "unknown costs": (["--costs", "guess"], "FB0707", 2),
    "unknown option": (["--planer", "dtr"], "FB0707", 2),
    "negative time": (["--time-limit", "-1"], "FB0707", 2),
    "no number of seconds": (["--time-limit", "nan"], "FB0707", 2),
    "time without an end": (["--time-limit", "inf"], "FB0707", 2),
    "more time than a clock has": (["--time-limit", "1e10"], "FB0707", 2),
    "more digits than a size has": (["--budget", f"{'9' * 5000}B"], "FB0450", 2),
    "share of the host": (["--host-budget", "50%"], "FB0450", 2),
    "range of the host": (["--host-budget", "range:0.5"], "FB0450", 2),
    "host budget without a unit": (["--host-budget", "64"], "FB0450", 2),
    "host budget of less than a byte": (["--host-budget", "0.5B"], "FB0451", 2),
    "negative host budget": (["--host-budget", "-1GiB"], "FB0451", 2),
    "host budget of many digits": (["--host-budget", f"{'9' * 5000}B"], "FB0450", 2),
    "link without a unit": (["--link", "25"], "FB0472", 2),
    "link of zero": (["--link", "0GB/s"], "FB0472", 2),
    "link of one way": (["--link", "d2h=25GB/s"], "FB0472", 2),
    "unknown part of a link": (["--link", "d2h=1GB/s,h2d=1GB/s,b2b=1GB/s"], "FB0472", 2),
    "link with a latency that is none": (["--link", "d2h=1GB/s,h2d=1GB/s,latency=1"], "FB0472", 2),
    "link with an issue that is no time": (["--link", "d2h=1GB/s,h2d=1GB/s,issue=1"], "FB0472", 2),
    "link with less than no time": (["--link", "d2h=1GB/s,h2d=1GB/s,issue=-1us"], "FB0472", 2),
    "link with a latency below 0": (["--link", "d2h=1GB/s,h2d=1GB/s,latency=-1us"], "FB0472", 2),
    "link with half an hour": (["--link", "d2h=1GB/s,h2d=1GB/s,issue=1800s"], "FB0472", 2),
    "link beyond 64 bits": (["--link", "99999999TB/s"], "FB0472", 2),
    "link beyond all numbers": (["--link", "9" * 400 + "GB/s"], "FB0472", 2),
    "both ways slower than one": (["--link", "d2h=2GB/s,h2d=1GB/s,both=1GB/s"], "FB0477", 2),
    "workers at no address": (["--workers", "host:8786"], "FB0404", 2),
    "workers for nothing": (["--planner", "dtr", "--workers", "dask://h:1"], "FB0729", 2),
    "offload without a link": (["--planner", "offload-greedy"], "FB0473", 2),
    "offload that is switched off": (
        ["--planner", "pofo", "--link", "1GB/s", "--no-offload"],
        "FB0474",
        2,
    ),
    "host too small": (
        [
            "--planner",
            "offload-greedy",
            "--link",
            "1GB/s",
            "--host-budget",
            "1B",
            "--activation-budget",
            "80%",
        ],
        "FB0475",
        1,
    ),
    "unknown backend": (["--emit", "jaxx"], "FB0707", 2),
    "bad dimension": (["--dim", "batch"], "FB0707", 2),
    "dimension given twice": (["--dim", "batch=8", "--dim", "batch=9"], "FB0707", 2),
    "dimension of a text": (["--dim", "batch=8"], "FB0711", 2),
    "training part of a text": (["--trainable", "w*"], "FB0711", 2),
    "no threads": (["--threads", "0"], "FB0707", 2),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options(case: str, cli: Cli, chain: Path) -> None:
    words, code, exit_code = BAD[case]
    ran = cli(chain, "-o", chain.with_name("out.fbir"), *words)
    assert ran.code == exit_code
    assert f"error[{code}]" in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""
    assert [p.name for p in chain.parent.iterdir()] == ["chain.fbir"]


def test_all_errors_come_at_once(cli: Cli, tmp_path: Path) -> None:
    ran = cli(
        "no.onnx", "-o", tmp_path / "no" / "p", "--budget", "8", "--planner", "x", "--device", "y"
    )
    assert ran.code == 2
    for code in ("FB0450", "FB0401", "FB0906", "FB0701", "FB0703"):
        assert f"error[{code}]" in ran.err


def test_names_that_are_nearly_right(cli: Cli, chain: Path) -> None:
    assert 'Did you mean "dtr"?' in cli(chain, "--planner", "dtrr").err
    assert 'Did you mean "segments"?' in cli(chain, "--planner", "periodic{segment=4}").err
    assert 'Did you mean "h200"?' in cli(chain, "--device", "h20").err
    assert 'Did you mean "GB"?' in cli(chain, "--budget", "8Gb").err
    assert 'Did you mean "verify"?' in cli("verfy", chain).err


def test_unreachable_budget_says_what_is_possible(cli: Cli, chain: Path, tmp_path: Path) -> None:
    ran = cli(chain, "-o", tmp_path / "p.fbir", "--activation-budget", "10B")
    assert ran.code == 1
    assert "the least it found is" in ran.err
    assert "no plan of any planner needs less than" in ran.err
    assert "(toy.op.default) works on %x" in ran.err
    # The hint is a command that works.
    words = ran.err.partition("give --activation-budget ")[2].split()
    assert cli(chain, "-o", tmp_path / "p.fbir", "--activation-budget", words[0]).code == 0


def test_missing_and_foreign_models(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "model.txt").write_text("hello")
    (tmp_path / "net.py").write_text("")
    (tmp_path / "bytes.fbir").write_bytes(b"\xff\xfe\x00")
    cases = {
        "missing.onnx": "FB0701",
        "missing": "FB0701",
        "missing.py:make": "FB0701",
        "model.txt": "FB0702",
        "net.py": "FB0702",
        "bytes.fbir": "FB0701",
    }
    for name, code in cases.items():
        ran = cli(tmp_path / name, "-o", tmp_path / "out.fbir")
        assert (ran.code, f"error[{code}]" in ran.err) == (2, True), (name, ran.err)
        assert not (tmp_path / "out.fbir").exists()


def test_text_with_errors_shows_the_line(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "bad.fbir"
    path.write_text(chain_text().replace("toy.op.default(%x3, %w3)", "toy.op.default(%x3, %w33)"))
    ran = cli(path)
    assert ran.code == 1
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if "%w33" in text)
    assert f"{path}:{line}:" in ran.err
    assert "^^^^" in ran.err


def test_unwritable_output(cli: Cli, chain: Path, tmp_path: Path) -> None:
    cases = [tmp_path, tmp_path / "no" / "p.fbir"]
    if os.geteuid() != 0:
        locked = tmp_path / "locked"
        locked.mkdir(mode=0o500)
        cases.append(locked / "p.fbir")
    for output in cases:
        ran = cli(chain, "-o", output)
        assert (ran.code, "error[FB0703]" in ran.err) == (2, True)


def test_the_model_is_not_written_over(cli: Cli, tmp_path: Path) -> None:
    net, link = tmp_path / "net.py", tmp_path / "link.py"
    net.write_text("def make(): ...\n")
    link.symlink_to(net)
    for output in (net, link):
        for words in ([], ["--emit", "torch"], ["--emit", "jax"]):
            ran = cli(f"{net}:make", "-o", output, *words)
            assert (ran.code, ran.err.count("error[")) == (2, 1)
            assert "error[FB0703]" in ran.err
            assert "it is the model itself" in ran.err
    assert net.read_text() == "def make(): ...\n"


def test_a_plan_may_be_planned_again_in_its_place(cli: Cli, planned: Path) -> None:
    assert cli(planned, "-o", planned, "--planner", "store-all").code == 0
    assert [s.planner for s in load(planned).program.schedules] == ["store-all"]
    assert cli(planned, "-o", planned, "--emit", "torch").code == 2


def test_a_second_model_is_refused_before_any_work(cli: Cli, chain: Path, tmp_path: Path) -> None:
    net, out = tmp_path / "net.py", tmp_path / "step.py"
    net.write_text("raise RuntimeError('run')\n")
    cases = (
        (f"{net}:make", f"{net}:other", "FB0707"),
        (chain, chain, "FB0702"),
        (chain, "", "FB0702"),
        (chain, net, "FB0702"),
        (chain, tmp_path / "no.py:make", "FB0701"),
    )
    for model, second, code in cases:
        ran = cli(model, "--emit", "jax", "-o", out, "--model", second)
        assert (ran.code, ran.err.count("error[")) == (2, 1), ran.err
        assert f"error[{code}]" in ran.err
    assert not out.exists()


def test_emit_writes_code(cli: Cli, tmp_path: Path) -> None:
    one_result = chain_text().replace("toy.op.default", "aten.cat.default")
    ran = cli("-", "--emit", "torch", "-o", tmp_path / "step.py", stdin=one_result)
    place = f"{one_result[: one_result.index('  B7: bwd')].count(chr(10)) + 1}:3"
    assert (ran.code, f"{place}: error[FB0944]: B7: 2 results of aten.cat" in ran.err) == (1, True)
    source = re.sub(r"(bwd %dw\d, %d\d =) aten.cat", r"\1 aten.aminmax", one_result)
    ran = cli("-", "--emit", "torch", "-o", tmp_path / "step.py", stdin=source)
    assert ran.code == 0, ran.err
    assert "def forward(" in (tmp_path / "step.py").read_text()
    assert cli("-", "--emit", "torch", stdin=source).code == 2


def test_the_link_stands_in_the_target_and_its_planners_plan(
    cli: Cli, chain: Path, tmp_path: Path
) -> None:
    out = tmp_path / "p.fbir"
    words = ["-o", out, "--link", "d2h=2GB/s,h2d=1GB/s,both=2500MB/s,latency=10ns,issue=3ns"]
    ran = cli(chain, *words, "--planner", "offload-greedy", "--activation-budget", "80%")
    assert ran.code == 0, ran.err
    assert "d2h 2GB/s h2d 1GB/s both 2500MB/s copy_latency 10ns copy_issue 3ns" in out.read_text()
    plan = load(out)
    assert plan.schedule.has_copies
    assert cli("verify", out).code == 0
    shown = cli("show", out)
    assert shown.code == 0
    assert all(part in shown.out for part in ("moved:", "to the host", "the step waits"))
    assert all(part in shown.out for part in ("to issue them", "at a quarter", "1.05 x from"))
    facts = json.loads(cli("show", out, "--format", "json").out)
    assert facts["issuing_ns"] == 3 * len(facts["copies"]) > 0
    slower = cli("show", out, "--link", "1MB/s")
    assert slower.code == 0
    assert "warning[FB0478]" in slower.err
    same = cli("show", out, "--link", "d2h=2GB/s,h2d=1GB/s,both=2500MB/s,latency=10ns,issue=3ns")
    assert same.err == ""
    # Without it the same command copies nothing.
    ran = cli(chain, *words, "--no-offload", "--activation-budget", "80%", "--time-limit", "2")
    assert ran.code == 0, ran.err
    assert not load(out).schedule.has_copies


def test_the_host_budget_stands_in_the_target(cli: Cli, chain: Path, tmp_path: Path) -> None:
    out = tmp_path / "plan.fbir"
    assert cli(chain, "-o", out, "--planner", "store-all", "--host-budget", "3GiB").code == 0
    assert "granularity 1 host 3GiB }" in out.read_text()
    ran = cli(chain, "-o", out, "--host-budget", "50%")
    assert (ran.code, "error[FB0450]" in ran.err) == (2, True)
