"""Steps whose parameters are sharded over two processes have the bits of FSDP2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from helpers.distributed.shards import Net

RANK = Path(__file__).parents[1] / "helpers/distributed/shards.py"

SAID = {
    "states paged": "FB0555",
    "no budget": "FB0555",
    "clipped": "FB0556",
    "replicated": "FB0556",
    "another model": "FB0557",
    "one rank fails": "FB0466",
    "no optimizer": "FB0556",
    "wrong checkpoint": "FB0554",
}


def ranks_of(tmp_path: Path, size: int = 2) -> list[dict[str, Any]]:
    """The report of each rank."""
    torch.manual_seed(0)
    values = {k: v.contiguous() for k, v in Net(1).state_dict().items() if k != "head.weight"}
    save_file(values, tmp_path / "net.safetensors")
    path = os.pathsep.join([str(RANK.parents[2]), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"}
    given = str(size), str(tmp_path / "store"), str(tmp_path / "net.safetensors")
    ranks = [
        subprocess.Popen(
            [sys.executable, str(RANK), str(rank), *given],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        for rank in range(size)
    ]
    try:
        ended = [rank.communicate(timeout=300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode == 0 for rank in ranks), "\n".join(error for _, error in ended)
    lines = [next(line for line in out.splitlines() if line[:4] == "JSON") for out, _ in ended]
    return [json.loads(line[4:]) for line in lines]


@pytest.mark.slow
def test_two_ranks_train_as_fsdp2_does(tmp_path: Path) -> None:
    first, second = ranks_of(tmp_path)
    values = [t.double().sum().item() for t in dict(Net(1).named_parameters()).values()]
    for said in (first, second):
        zero = said["zero"]
        # Losses, parameters, buffers and states of five steps, and an evaluation.
        assert zero["equal"] == [True] * 6
        assert zero["measured"] == zero["proven"]
        assert said["blocks"] == [True, True]
        total = float(said["refusals"].pop("sum of the checkpoint"))
        assert total == pytest.approx(sum(values), abs=1e-4)
        assert said["refusals"] == SAID
    assert first["zero"]["text"] == second["zero"]["text"]
    assert first["zero"]["own"] + second["zero"]["own"] == first["zero"]["parameters"]
