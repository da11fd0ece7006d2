"""Pipelined steps on processes of gloo: bits, bytes, refusals, and a peer that dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

ROOT = Path(__file__).parents[4]
SCRIPT = ROOT / "tests/helpers/distributed/pipelines.py"
HANGS_S = 900
"""Nobody is late before; a process that hangs ends here."""


@cache
def ran(size: int, *cases: str) -> tuple[tuple[int, list[dict[str, Any]], str], ...]:
    """Exit code, answers and errors of each rank."""
    path = os.pathsep.join(str(ROOT / part) for part in ("src", "tests"))
    env = os.environ | {"PYTHONPATH": path, "REMAT_COMPILE_CACHE": "off", "OMP_NUM_THREADS": "1"}
    with TemporaryDirectory() as folder:
        words = [sys.executable, str(SCRIPT)]
        processes = [
            subprocess.Popen(
                [*words, str(rank), str(size), f"{folder}/store", *cases],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=env,
            )
            for rank in range(size)
        ]
        try:
            said = [process.communicate(timeout=HANGS_S) for process in processes]
        finally:
            for process in processes:
                process.kill()
    answers = []
    for process, (out, err) in zip(processes, said, strict=True):
        lines = [json.loads(x.partition("JSON")[2]) for x in out.splitlines() if "JSON{" in x]
        answers.append((process.returncode, lines, err))
    return tuple(answers)


def check_equal(size: int, cases: tuple[str, ...]) -> None:
    """Gradients and buffers of all parameters have eager's bits, measured bytes are proven ones."""
    ranks = ran(size, *cases)
    for code, _, err in ranks:
        assert code == 0, err[-2000:]
    for n, case in enumerate(cases):
        seen: list[str] = []
        for _, answers, _ in ranks:
            answer = answers[n]
            assert answer["equal"], (case, answer)
            assert answer["ranks"] == size
            assert answer["measured"] + answer["entry"] <= max(answer["proven"], 64), answer
            seen += answer["gradients"]
        assert len(set(seen)) == len(seen) > 3
        losses = [answers[n]["losses"] for _, answers, _ in ranks]
        assert sum(loss[0] is not None for loss in losses) == 1


def test_two_ranks_have_the_bits_of_the_step_on_one() -> None:
    check_equal(2, ("mlp:4:one-f-one-b", "cnn:4:one-f-one-b", "gpt:4:one-f-one-b"))


def test_what_cannot_run_is_refused_on_every_rank_and_a_dead_peer_is_told() -> None:
    first, second = ran(2, "refusals", "dies")
    for _, answers, err in (first, second):
        assert answers, err[-2000:]
        codes = ["FB1033", "FB1020", "FB1034", "FB1034", "FB1031", "FB1033"]
        assert answers[0]["codes"] == codes
    assert second[0] == 7  # it ended itself in its row
    told = first[1][1]
    assert "FB1030" in told["refused"]
    assert "rank 0 fails at" in told["refused"]
    assert "peer 1" in told["refused"]
    assert told["untouched"]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3])
def test_more_ranks_planners_and_microbatches(size: int) -> None:
    check_equal(
        size,
        (
            "mlp:1:one-f-one-b",
            "mlp:16:madpipe",
            "cnn:2:madpipe",
            "gpt:8:gpipe",
            "gpt:4:pipedream",
            "tied:2:one-f-one-b",
        ),
    )
