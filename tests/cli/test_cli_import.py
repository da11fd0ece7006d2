"""`remat-compile import-plan` on texts: what is refused, and how."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.cli import Cli

NAMES = ["--from", "jax-names"]

BAD: dict[str, tuple[list[str], str, int]] = {
    "no tool": ([], "FB0707", 2),
    "unknown tool": (["--from", "rockmate"], "FB0707", 2),
    "a share above one": (["--from", "partitioner", "--memory-budget", "2"], "FB0707", 2),
    "no number for a share": (["--from", "partitioner", "--memory-budget", "nan"], "FB0707", 2),
    "unknown solver": (["--from", "partitioner", "--solver", "best"], "FB0707", 2),
    "option of another tool": (["--from", "sac", "--segments", "*"], "FB0707", 2),
    "a name without a name": ([*NAMES, "--save", "=blocks.*"], "FB0707", 2),
    "an empty name": ([*NAMES, "--save", ""], "FB0707", 2),
    "a name that nothing has": ([*NAMES, "--save", "nix"], "FB0481", 1),
    "a module that is not there": ([*NAMES, "--segments", "["], "FB0481", 1),
    "a text without a joint graph": (["--from", "partitioner"], "FB0711", 2),
    "a text without regions": (["--from", "sac"], "FB0711", 2),
    "two budgets": ([*NAMES, "--budget", "1MB", "--activation-budget", "1MB"], "FB0452", 2),
    "a budget that it breaks": ([*NAMES, "--budget", "10B"], "FB0485", 1),
    "no time": ([*NAMES, "--time-limit", "0"], "FB0485", 1),
    "time without an end": ([*NAMES, "--time-limit", "inf"], "FB0707", 2),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options(case: str, cli: Cli, chain: Path) -> None:
    words, code, exit_code = BAD[case]
    ran = cli("import-plan", chain, "-o", chain.with_name("out.fbir"), "-q", *words)
    assert (ran.code, ran.out) == (exit_code, ""), ran.err
    assert f"error[{code}]" in ran.err
    assert all(line == line.strip("\t") for line in ran.err.splitlines())
    assert [p.name for p in chain.parent.iterdir()] == ["chain.fbir"]


def test_what_is_not_decided_points_at_the_time(cli: Cli, chain: Path) -> None:
    ran = cli("import-plan", chain, *NAMES, "--time-limit", "1e-9", "-q")
    assert ran.code == 1
    assert "is not decided: " in ran.err
    assert "give more time with --time-limit" in ran.err
