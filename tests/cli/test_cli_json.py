"""`--format json`: one object with the keys of `docs/reference/cli.md` and the plan's numbers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.cli import Cli
from helpers.paths import ROOT
from remat_compile import load
from remat_compile.cli.shared.terminal import print_object
from remat_compile.ir.text.parser import parse_program
from remat_compile.ir.text.printer import format_program
from remat_compile.plans.compare.step import StepReport

GPT = ROOT / "tests/verifier/mutants/plans/gpt.fbir"
OFFLOAD = ROOT / "spec/conformance/valid/offload.fbir"


def documented() -> dict[str, set[str]]:
    """Keys by command, of the table in the docs."""
    text = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)(?: [^`]*)?` \| (.+?) \|", text, re.MULTILINE)
    keys: dict[str, set[str]] = {}
    for command, cell in rows:
        if command in ("devices", "planners", "show", "run", "diff", "explain", "fit"):
            keys.setdefault(command, set()).update(re.findall(r"`(\w+)`", cell))
    return keys


def answer(cli: Cli, *words: object) -> dict[str, Any]:
    ran = cli(*words, "--format", "json")
    assert ran.code in (0, 1), ran.err
    made: dict[str, Any] = json.loads(ran.out)
    assert made.pop("version")
    assert made.pop("command") == words[0]
    assert made.keys() <= documented()[str(words[0])]
    return made


def test_planners_and_devices(cli: Cli) -> None:
    names = [p["name"] for p in answer(cli, "planners")["planners"]]
    assert {"auto", "dtr", "rotor"} <= {*names}
    a100 = next(d for d in answer(cli, "devices")["devices"] if d["name"] == "a100-80gb")
    assert a100["memory_bytes"] == 79 * 2**30


def test_explain(cli: Cli) -> None:
    plan = load(GPT)
    made = answer(cli, "explain", GPT)
    assert made["peak_bytes"] == plan.peak_bytes
    assert made["peak"]["step"] == plan.trace.peak_step
    held = sum(h["holding"]["bytes"] for h in made["peak"]["held"])
    assert held == plan.peak_bytes
    tensor = answer(cli, "explain", GPT, "%addmm_2")["tensor"]
    assert (tensor["node"], tensor["treatment"]) == ("%addmm_2", "recomputed")
    assert answer(cli, "explain", GPT, "blocks.0")["module"]["path"] == "blocks.0"


def test_show(cli: Cli) -> None:
    plan = load(OFFLOAD)
    made = answer(cli, "show", OFFLOAD)
    assert max(made["bytes_of_steps"]) == made["peak_bytes"] == plan.peak_bytes
    assert sum(h["bytes"] for h in made["held_at_peak"]) == plan.peak_bytes
    assert made["time_ns"] == plan.trace.time_ns
    assert len(made["copies"]) == len(plan.trace.copies) > 0
    assert made.keys() == documented()["show"]


def test_fit(cli: Cli) -> None:
    made = answer(cli, "fit", OFFLOAD, "--device", "t4", "--batch", "1..8")
    assert made.keys() == documented()["fit"]
    assert made["size"]["size"] == 8
    assert sum(row["now_bytes"] for row in made["rows"]) == made["now_bytes"]


def test_run(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET, encoding="utf-8")
    plan, spec = tmp_path / "plan.fbir", f"{tmp_path}/net.py:make"
    made = cli(spec, "-o", plan, "--planner", "store-all", "--quiet")
    assert made.code == 0, made.err
    ran = answer(cli, "run", plan, "--model", spec, "--repeats", "1", "--quiet")
    assert ran["report"]["bit_equal"] is True
    assert ran["report"]["measured_bytes"] <= ran["proven_bytes"] == load(plan).peak_bytes
    refused = cli("run", plan, "--backend", "jax", "--format", "json")
    assert refused.code == 2
    assert "FB0707" in refused.err


NET = """
import torch
from torch import nn


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh()), (torch.rand(2, 4),)
"""


def test_numbers_that_json_has_not(capsys: pytest.CaptureFixture[str]) -> None:
    report = StepReport(1, 2, 0.5, 0.5, False, float("nan"), 3)
    print_object("run", report=report, most=float("inf"))
    made = json.loads(capsys.readouterr().out)
    assert (made["report"]["max_difference"], made["most"]) == ("nan", "inf")
    assert made["report"]["time_s"] == 0.5


def test_diff(cli: Cli, tmp_path: Path) -> None:
    assert answer(cli, "diff", GPT, GPT)["same"] is True
    made = answer(cli, "diff", GPT, OFFLOAD)
    assert made["same"] is False
    assert [p["peak_bytes"] for p in made["plans"]] == [
        load(path).peak_bytes for path in (GPT, OFFLOAD)
    ]


def test_hostile_names_act_in_no_terminal(cli: Cli, tmp_path: Path) -> None:
    """A name in a plan comes out as the JSON escapes of its characters."""
    program = parse_program(OFFLOAD.read_text(encoding="utf-8"), "x")
    hostile = "\x1b]0;x\x07\u202e"
    schedules = tuple(replace(s, planner=hostile) for s in program.schedules)
    path = tmp_path / "x.fbir"
    path.write_text(format_program(replace(program, schedules=schedules)), encoding="utf-8")
    ran = cli("diff", path, OFFLOAD, "--format", "json")
    assert json.loads(ran.out)["plans"][0]["planner"] == hostile
    assert not re.search(r"[^\x20-\x7e\n]", ran.out)
