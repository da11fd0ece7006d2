"""Models of linear layers: a chain, and two towers that read each other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLP(nn.Module):
    """Linear layers with GELU; maps [batch, 16] to [batch, 8]."""

    def __init__(self, width: int = 48, depth: int = 6) -> None:
        super().__init__()
        widths = [16] + [width] * (depth - 1)
        self.layers = nn.ModuleList(nn.Linear(a, width) for a in widths)
        self.head = nn.Linear(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x))
        out: Tensor = self.head(x)
        return out


class TwoInTwoOut(nn.Module):
    """Two towers that share a layer and read each other: [b, 12], [b, 20] to [b, 6], [b]."""

    def __init__(self, width: int = 24, depth: int = 4) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(12, width), nn.Linear(20, width)
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.shared = nn.Linear(width, width)
        self.out1, self.out2 = nn.Linear(width, 6), nn.Linear(width, 1)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a, b = torch.tanh(self.left(x)), F.softplus(self.right(y))
        for layer in self.own:
            a, b = a + torch.sigmoid(self.shared(a * b)), F.relu(layer(b)) + torch.tanh(a)
        return self.out1(F.gelu(self.shared(a))), self.out2(b).squeeze(-1)
