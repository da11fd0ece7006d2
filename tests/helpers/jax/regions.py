"""A gated network with dropout, and plans of it with regions for XLA."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

import remat_compile
from remat_compile import Plan


class _GatedLayer(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.gate = nn.Linear(width, 2 * width), nn.Linear(width, 2 * width)
        self.down, self.drop = nn.Linear(2 * width, width), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        hidden = nn.functional.silu(self.gate(y)) * self.up(y)
        out: Tensor = x + self.drop(self.down(hidden))
        return out


class GatedNet(nn.Module):
    """Two layers: chains of pointwise operators between products, reductions, dropout, views."""

    def __init__(self, width: int = 24, layers: int = 2):
        super().__init__()
        self.layers = nn.ModuleList(_GatedLayer(width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


@cache
def fused_plan(dtype: torch.dtype, fuse: str = "xla") -> Plan:
    """Of a batch of 16: each layer runs again before its backward."""
    torch.manual_seed(3)
    module, x = GatedNet().to(dtype), torch.randn(16, 24, dtype=dtype)
    return remat_compile.plan(
        module,
        (x,),
        planner="periodic{segments=2}",
        costs="roofline",
        device="cpu",
        cache=False,
        fuse=fuse,  # type: ignore[arg-type]
    )
