"""Small models for random plans: together they have every kind of step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from helpers.networks.convolutions import ResBlock
from helpers.networks.linear import TwoInTwoOut
from helpers.networks.llama import Llama
from helpers.networks.transformers import GPT

Sample = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


class ConvNormDrop(nn.Module):
    """A convolution, BatchNorm with buffers, dropout twice, tied layers, a split, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.drop1, self.drop2 = nn.Dropout(0.3), nn.Dropout(0.5)
        self.first, self.last = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.last.weight = self.first.weight
        self.layer_norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.drop1(torch.relu(self.norm(self.conv(x)))).mean((2, 3))
        a, b = self.drop2(torch.tanh(self.layer_norm(self.first(h)))).chunk(2, -1)
        h = torch.cat([b, a * b], -1)
        h = self.last(h) + h
        return torch.log_softmax(h, -1), h.sigmoid()


class SmallResNet(nn.Module):
    """A residual block with stride: [batch, 3, 8, 8] to [batch, 5]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = nn.Conv2d(3, 4, 3, 1, 1, bias=False), ResBlock(4, 6, 2)
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.flatten(self.pool(self.block(self.stem(x))), 1))
        return out


def _made(
    make: Callable[[], nn.Module],
    inputs: Callable[[], tuple[Tensor, ...]],
    dtype: torch.dtype = torch.float32,
) -> Sample:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        module, args = make(), inputs()
    cast = tuple(a.to(dtype) if a.is_floating_point() else a for a in args)
    return module.to(dtype).train(), cast, {}


def _ids() -> tuple[Tensor, ...]:
    return (torch.randint(0, 17, (2, 6)),)


_GPT = partial(GPT, layers=1, width=8, vocab=17, seq=6)

RANDOM_MODELS: dict[str, Callable[..., Sample]] = {
    "conv-bn-dropout-tied": partial(_made, ConvNormDrop, lambda: (torch.randn(3, 2, 5, 5),)),
    "resnet": partial(_made, SmallResNet, lambda: (torch.randn(2, 3, 8, 8),)),
    "gpt-dropout-tied": partial(_made, partial(_GPT, attn_drop=0.1, drop=0.1), _ids),
    "gpt-fused": partial(_made, partial(_GPT, drop=0.1), _ids),
    "llama": partial(
        _made, partial(Llama, layers=1, width=8, heads=2, kv_heads=1, vocab=17, seq=6), _ids
    ),
    "two-towers": partial(
        _made,
        partial(TwoInTwoOut, width=8, depth=2),
        lambda: (torch.randn(8, 12).requires_grad_(), torch.randn(8, 20)),
    ),
}
"""`RANDOM_MODELS[name]()` gives a module in train mode with its arguments; also `dtype=`."""
