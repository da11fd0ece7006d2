"""Models that are spread over two processes train to the bits of eager, or are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

TESTS = Path(__file__).parents[1]


WAYS = {
    "DDP": True,
    "DDP(compile)": True,
    "compile(DDP)": True,
    "in(DDP)": "FB0956",
    "FSDP": True,
    "FSDP(compile)": True,
    "FSDP(compile), freed": True,
    "FSDP(compile), in parts": "FB0956",
    "compile(FSDP)": "FB0956",
}


@pytest.mark.slow
def test_two_processes(tmp_path: Path) -> None:
    assert dist.is_available()
    path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
    runner = str(TESTS / "runners/train_in_two_processes.py")
    done = subprocess.run(
        [sys.executable, runner, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == WAYS
