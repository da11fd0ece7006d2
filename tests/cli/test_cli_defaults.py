"""Defaults of options from a file: the nearest counts, the command line wins, nothing else acts."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from helpers.cli import Cli
from helpers.paths import ROOT
from remat_compile.cli.shared.defaults import SETTINGS, read_defaults
from remat_compile.plans.options import OPTIONS

PLAN = ROOT / "spec/conformance/valid/offload.fbir"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a folder in it, in which the command runs."""
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    return tmp_path


def test_the_nearest_file_and_its_tables(project: Path) -> None:
    (project / "pyproject.toml").write_text(
        '[project]\nname = "x"\n\n[tool.remat-compile]\nplanner = "dtr"\ntime-limit = 5\n\n'
        "[tool.remat-compile.verify]\ntime-limit = 9.5\n"
    )
    defaults = read_defaults("plan", [])
    assert defaults.values == {"planner": "dtr", "time_limit": 5}
    assert str(defaults.places["time_limit"]) == f"{project / 'pyproject.toml'}:6:1"
    assert read_defaults("verify", []).values == {"time_limit": 9.5}
    assert read_defaults("show", []).values == {}
    (project / "inner" / "pyproject.toml").write_text('[tool.other]\nx = "remat-compile"\n')
    assert read_defaults("plan", []).values["planner"] == "dtr"  # that one says nothing
    (project / "inner" / "remat-compile.toml").write_text("")
    assert read_defaults("plan", []).values == {}


def test_the_command_line_wins_and_verbose_says_what_does(
    cli: Cli, chain: Path, project: Path
) -> None:
    (project / "remat-compile.toml").write_text(
        'planner = "store-all"\nactivation-budget = "100%"\nquiet = true\n'
    )
    ran = cli(chain, "-v", "--planner", "periodic", "-o", project / "x.fbir")
    assert ran.code == 0, ran.err
    assert "by periodic" not in ran.out  # quiet
    assert "--planner" not in ran.err
    place = f"{project / 'remat-compile.toml'}:2:1"
    assert f"--activation-budget 100% (default of {place})" in ran.err
    assert '"periodic"' in (project / "x.fbir").read_text()


def test_none_are_taken(
    cli: Cli, chain: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "remat-compile.toml").write_text("no such thing")
    assert cli("show", chain).code == 2
    refused = cli("show", PLAN, "--no-config")
    assert (refused.code, refused.err) == (0, "")
    monkeypatch.setenv("REMAT_COMPILE_NO_CONFIG", "1")
    assert cli("show", PLAN).code == 0


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ('planer = "dtr"', "1:1", 'planer is no setting. Did you mean "planner"?'),
        ('\n  "time-limit" = "5"', "2:3", "time-limit must be a number"),
        ("quiet = 1", "1:1", "quiet must be true or false"),
        ("threads = true", "1:1", "threads must be a whole number"),
        ('costs = "guessed"', "1:1", "costs must be one of measured, roofline"),
        ("[swep]\nplanners = 'auto'", "1:1", 'there is no command swep. Did you mean "sweep"?'),
        ("[verify]\nplanner = 'dtr'", "2:1", "planner is no setting of verify"),
        ("solver = 'z3'", "1:1", "solver stands in the table of a command, such as [verify]"),
        ("planner = dtr", "1:11", "no TOML: Invalid value"),
        ("model = 'net.py:make'", "1:1", "model is no setting."),
        ("workers = 'dask://h:1'", "1:1", "workers is no setting."),
        (
            """quiet = true\nplanner = 'polish{of=hiremate{workers="dask://h:1"}}'""",
            "2:1",
            "planner names workers, which only the command line may",
        ),
        (
            """[sweep]\nplanners = 'dtr, auto{planners=[rockmate{workers="dask://h:1"}]}'""",
            "2:1",
            "planners names workers, which only the command line may",
        ),
    ],
)
def test_what_is_no_setting(
    text: str, place: str, says: str, cli: Cli, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    (project / "remat-compile.toml").write_text(text)
    ran = cli("show", PLAN)
    assert ran.code == 2
    assert ran.err.startswith(f"remat-compile.toml:{place}: error[FB0726]: {says}")
    assert "help: mend the file, or give --no-config" in ran.err


def test_all_mistakes_at_once(cli: Cli, project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool.remat-compile]\na = 1\nb = 2\n")
    ran = cli("devices")
    assert [line for line in ran.err.splitlines() if "pyproject.toml:" in line] == [
        f"{project}/pyproject.toml:{line}:1: error[FB0726]: {key} is no setting."
        for line, key in ((2, "a"), (3, "b"))
    ]


def test_a_file_of_other_tools_may_be_broken(cli: Cli, project: Path) -> None:
    (project / "pyproject.toml").write_text("[tool.other\n")
    assert cli("devices").code == 0
    (project / "pyproject.toml").write_text("[tool.remat-compile\n")
    assert cli("devices").code == 2


def test_no_file_to_be_read(cli: Cli, project: Path) -> None:
    (project / "remat-compile.toml").write_bytes(b"\xff")
    ran = cli("devices")
    assert (ran.code, "error[FB0726]: cannot read" in ran.err) == (2, True)


def test_a_refused_value_says_where_it_is_from(cli: Cli, chain: Path, project: Path) -> None:
    (project / "remat-compile.toml").write_text('planner = "nope"\n')
    ran = cli(chain)
    assert ran.code == 2
    assert "FB0401" in ran.err
    assert f"note: --planner nope (default of {project}/remat-compile.toml:1:1)" in ran.err


def test_nothing_that_runs_or_is_written_is_a_setting() -> None:
    """`docs/reference/security.md`: a folder sets figures, and loads and writes nothing."""
    acting = {
        "model",
        "workers",
        "output",
        "emit",
        "trust-source",
        "values",
        "smt-lib",
        "proofs",
        "sample",
    }
    weaker = {"require-certificate", "at", "no-config", "schedule", "resume", "points"}
    assert not SETTINGS.keys() & (acting | weaker)
    assert "verify" not in SETTINGS["budget"].commands


def test_the_docs_list_the_options_and_settings() -> None:
    text = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    for name, option in OPTIONS.items():
        flag = (option.parameter or name).replace("_", "-")
        assert not option.help or f"`--{flag}" in text, flag
    section = text[text.index("## Defaults from a file") :].partition("\n## ")[0]
    assert {key for key in SETTINGS if f"`{key}`" in section} == set(SETTINGS)


def test_a_device_file_is_named_from_the_folder_of_the_file(project: Path) -> None:
    (project / "remat-compile.toml").write_text('device = "mine.toml"\n')
    assert read_defaults("plan", []).values["device"] == str(project / "mine.toml")


def test_a_plan_is_written_as_code_as_it_is(cli: Cli, planned: Path, project: Path) -> None:
    """A planner in a file is for planning; it plans nothing anew that is only written."""
    (project / "remat-compile.toml").write_text('planner = "store-all"\n')
    ran = cli(planned, "--emit", "trace", "-o", project / "t.json")
    assert ran.code == 0, ran.err
    events = json.loads((project / "t.json").read_text())["traceEvents"]
    assert any(e["args"].get("execution") == 2 for e in events)


def test_json_for_a_command(cli: Cli, project: Path) -> None:
    (project / "remat-compile.toml").write_text('[show]\nformat = "json"\n')
    assert json.loads(cli("show", PLAN).out)["command"] == "show"
    assert cli("show", PLAN, "--format", "text").out.startswith("model")
    assert os.environ.get("REMAT_COMPILE_NO_CONFIG") is None
