"""What `jax-names` says is saved is what `jax.checkpoint` saves, byte for byte."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from remat_compile.capture.decisions import decide_names
from remat_compile.capture.torch import export, lower

jax = pytest.importorskip("jax")

BATCH, WIDTH, INNER, DEPTH = 8, 4, 16, 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = (
            nn.Linear(WIDTH, INNER, bias=False),
            nn.Linear(INNER, WIDTH, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(torch.tanh(self.up(x)))
        return out


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def bytes_saved_by_jax(names: list[str], capsys: pytest.CaptureFixture[str]) -> int:
    """Bytes of the residuals that are no arguments, as `print_saved_residuals` tells them."""
    from jax.ad_checkpoint import checkpoint_name, print_saved_residuals

    def block(x: Any, up: Any, down: Any) -> Any:
        hidden = checkpoint_name(x @ up, "up")
        return x + checkpoint_name(jax.numpy.tanh(hidden), "act") @ down

    policy = jax.checkpoint_policies.save_only_these_names(*names)
    wrapped = jax.checkpoint(block, policy=policy)

    def net(x: Any, weights: list[tuple[Any, Any]]) -> Any:
        for up, down in weights:
            x = wrapped(x, up, down)
        return x

    weights = [(jax.numpy.ones((WIDTH, INNER)), jax.numpy.ones((INNER, WIDTH)))] * DEPTH
    print_saved_residuals(net, jax.numpy.ones((BATCH, WIDTH)), weights)
    total = 0
    for line in capsys.readouterr().out.splitlines():
        shape = re.match(r"f32\[([0-9,]*)\]", line)
        assert shape is not None, line
        if "from the argument" not in line:
            total += 4 * prod(int(n) for n in shape[1].split(","))
    return total


def bytes_saved_here(names: list[str]) -> int:
    with lower(export(Net(), (torch.randn(BATCH, WIDTH),))) as lowered:
        chosen = ["up=blocks.*.up"] if "up" in names else []
        if "act" in names:
            cnodes = lowered.program.graph.cnodes
            tanhs = [c.results[0] for c in cnodes if c.call.op == "aten.tanh.default"]
            assert len(tanhs) == DEPTH
            chosen += [f"act={name}" for name in tanhs]
        claimed = decide_names(lowered.program, chosen, ["blocks.*"]).claimed_bytes
        assert claimed is not None
        return claimed


@pytest.mark.parametrize("names", [[], ["up"], ["act"]], ids=str)
def test_saved_bytes_are_those_of_jax(names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bytes_saved_here(names) == bytes_saved_by_jax(names, capsys)


def test_what_nothing_needs_is_not_saved(capsys: pytest.CaptureFixture[str]) -> None:
    """The backward of tanh needs its result alone. JAX saves both, since both are named."""
    both = ["up", "act"]
    assert bytes_saved_here(both) == bytes_saved_here(["act"])
    assert bytes_saved_by_jax(both, capsys) == bytes_saved_here(both) + 4 * BATCH * INNER * DEPTH
