"""Architectures written by hand, as a user would without a model library, small and seeded.

The names say after which published network the blocks are made; widths and depths are cut.
The loss is computed by the caller, as in a training loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, CLASSES = 4, 5


def conv(inner: int, outer: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, batch normalisation, ReLU in place."""
    return nn.Sequential(
        nn.Conv2d(inner, outer, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outer),
        nn.ReLU(inplace=True),
    )


def head(width: int) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


class DropPath(nn.Module):
    """Stochastic depth: drops the branch of whole samples."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        kept = x.new_empty(x.shape[0], *(1,) * (x.ndim - 1)).bernoulli_(1 - self.p)
        return x * kept.div_(1 - self.p)


class Residual(nn.Module):
    """`x + f(x)`, with a projection of `x` where shapes differ, and a last activation."""

    def __init__(self, f: nn.Module, short: nn.Module | None = None, last: bool = True) -> None:
        super().__init__()
        self.f, self.short, self.last = f, short or nn.Identity(), last

    def forward(self, x: Tensor) -> Tensor:
        y = self.f(x)
        y += self.short(x)
        return F.relu_(y) if self.last else y


def _bottleneck(inner: int, outer: int, stride: int = 1, groups: int = 1) -> Residual:
    width = outer // 2
    body = nn.Sequential(
        conv(inner, width, 1),
        conv(width, width, 3, stride, groups),
        *(nn.Conv2d(width, outer, 1, bias=False), nn.BatchNorm2d(outer)),
    )
    short = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
    return Residual(body, short if stride > 1 or inner != outer else None)


def resnet50() -> nn.Module:
    blocks = (_bottleneck(8, 16), _bottleneck(16, 16), _bottleneck(16, 32, 2), _bottleneck(32, 32))
    return nn.Sequential(conv(3, 8, 7, 2), nn.MaxPool2d(3, 2, 1), *blocks, head(32))


def resnext() -> nn.Module:
    blocks = (_bottleneck(8, 16, 1, 4), _bottleneck(16, 32, 2, 4))
    return nn.Sequential(conv(3, 8), *blocks, head(32))


def wide_resnet() -> nn.Module:
    def block(inner: int, outer: int, stride: int) -> Residual:
        body = nn.Sequential(
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False),
            nn.Dropout(0.3),
            nn.BatchNorm2d(outer),
            nn.ReLU(inplace=True),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False),
        )
        return Residual(body, nn.Conv2d(inner, outer, 1, stride, bias=False), last=False)

    blocks = (block(8, 16, 1), block(16, 32, 2))
    return nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1), *blocks, nn.BatchNorm2d(32), nn.ReLU(), head(32))


def vgg() -> nn.Module:
    layers: list[nn.Module] = []
    inner = 3
    for outer in (8, 16, 32):
        layers += [conv(inner, outer), conv(outer, outer), nn.MaxPool2d(2)]
        inner = outer
    top = (nn.Linear(32 * 4 * 4, 32), nn.ReLU(True), nn.Dropout(), nn.Linear(32, CLASSES))
    return nn.Sequential(*layers, nn.Flatten(), *top)


def alexnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 5, 2, 2),
        nn.ReLU(inplace=True),
        nn.LocalResponseNorm(5),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d((3, 3)),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(16 * 9, 32),
        nn.ReLU(inplace=True),
        nn.Linear(32, CLASSES),
    )


class DenseBlock(nn.Module):
    def __init__(self, inner: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(inner + i * growth),
                nn.ReLU(inplace=True),
                nn.Conv2d(inner + i * growth, growth, 3, padding=1, bias=False),
            )
            for i in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = [x]
        for layer in self.layers:
            parts.append(layer(torch.cat(parts, 1)))
        return torch.cat(parts, 1)


def densenet() -> nn.Module:
    between = (nn.BatchNorm2d(20), nn.ReLU(True), nn.Conv2d(20, 10, 1), nn.AvgPool2d(2))
    return nn.Sequential(conv(3, 8), DenseBlock(8, 4, 3), *between, DenseBlock(10, 4, 3), head(22))


def _inverted(inner: int, outer: int, stride: int, squeeze: bool = False) -> nn.Module:
    wide = 3 * inner
    body = nn.Sequential(
        *(nn.Conv2d(inner, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.Hardswish(inplace=True)),
        nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
        *(nn.BatchNorm2d(wide), nn.Hardswish(inplace=True)),
        SqueezeExcite(wide) if squeeze else nn.Identity(),
        *(nn.Conv2d(wide, outer, 1, bias=False), nn.BatchNorm2d(outer)),
    )
    return Residual(body, last=False) if stride == 1 and inner == outer else body


class SqueezeExcite(nn.Module):
    def __init__(self, width: int, gate: Callable[[Tensor], Tensor] = F.hardsigmoid) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, width // 4, 1), nn.Conv2d(width // 4, width, 1)
        self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        seen = F.relu(self.down(x.mean((2, 3), keepdim=True)), inplace=True)
        return x * self.gate(self.up(seen))


def mobilenet_v3() -> nn.Module:
    blocks = (_inverted(8, 8, 1), _inverted(8, 16, 2, True), _inverted(16, 16, 1, True))
    return nn.Sequential(conv(3, 8, 3, 2), *blocks, head(16))


class MBConv(nn.Module):
    """EfficientNet's block: inverted bottleneck with SiLU, squeeze and drop path."""

    def __init__(self, inner: int, outer: int, stride: int, drop: float) -> None:
        super().__init__()
        wide = 4 * inner
        self.expand = nn.Sequential(
            nn.Conv2d(inner, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU(inplace=True)
        )
        self.depth = nn.Sequential(
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
            *(nn.BatchNorm2d(wide), nn.SiLU(inplace=True)),
        )
        self.squeeze = SqueezeExcite(wide, torch.sigmoid)
        self.project = nn.Sequential(
            nn.Conv2d(wide, outer, 1, bias=False), nn.BatchNorm2d(outer, momentum=0.01)
        )
        self.drop, self.adds = DropPath(drop), stride == 1 and inner == outer

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.squeeze(self.depth(self.expand(x))))
        return x + self.drop(y) if self.adds else y


def efficientnet() -> nn.Module:
    blocks = (MBConv(8, 16, 2, 0.0), MBConv(16, 16, 1, 0.2), MBConv(16, 16, 1, 0.2))
    return nn.Sequential(conv(3, 8), *blocks, nn.Dropout(0.2), head(16))


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int, drop: float = 0.1) -> None:
        super().__init__()
        self.depth = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma, self.drop = nn.Parameter(torch.full((width,), 1e-2)), DropPath(drop)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        y = self.gamma * self.down(F.gelu(self.up(y)))
        return x + self.drop(y.permute(0, 3, 1, 2))


def convnext() -> nn.Module:
    stem = nn.Conv2d(3, 8, 4, 4)
    down = nn.Sequential(nn.GroupNorm(1, 8), nn.Conv2d(8, 16, 2, 2))
    return nn.Sequential(
        stem, ConvNeXtBlock(8), ConvNeXtBlock(8), down, ConvNeXtBlock(16), head(16)
    )


class ShuffleUnit(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.body = nn.Sequential(
            conv(half, half, 1),
            *(nn.Conv2d(half, half, 3, 1, 1, groups=half, bias=False), nn.BatchNorm2d(half)),
            conv(half, half, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        joined = torch.cat((left, self.body(right)), 1)
        batch, width, height, length = joined.shape
        mixed = joined.view(batch, 2, width // 2, height, length).transpose(1, 2)
        return mixed.reshape(batch, width, height, length)


def shufflenet() -> nn.Module:
    return nn.Sequential(conv(3, 16, 3, 2), ShuffleUnit(16), ShuffleUnit(16), head(16))


class Inception(nn.Module):
    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        self.paths = nn.ModuleList(
            (
                conv(inner, width, 1),
                nn.Sequential(conv(inner, width, 1), conv(width, width)),
                nn.Sequential(conv(inner, width, 1), conv(width, width, 5)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), conv(inner, width, 1)),
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([path(x) for path in self.paths], 1)


class GoogLeNet(nn.Module):
    """With its second, auxiliary classifier, whose loss counts in training."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.first = conv(3, 8, 3, 2), Inception(8, 4)
        self.second, self.third = Inception(16, 4), Inception(16, 4)
        self.head, self.extra = head(16), head(16)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        middle = self.second(self.first(self.stem(x)))
        return self.head(self.third(middle)), self.extra(middle)


class Fire(nn.Module):
    def __init__(self, inner: int, squeezed: int, wide: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inner, squeezed, 1)
        self.one, self.three = nn.Conv2d(squeezed, wide, 1), nn.Conv2d(squeezed, wide, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.squeeze(x), inplace=True)
        return torch.cat((F.relu(self.one(x)), F.relu(self.three(x))), 1)


def squeezenet() -> nn.Module:
    last = (nn.Dropout(0.5), nn.Conv2d(32, CLASSES, 1), nn.ReLU(True), nn.AdaptiveAvgPool2d(1))
    stem = (nn.Conv2d(3, 8, 3, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, ceil_mode=True))
    return nn.Sequential(*stem, Fire(8, 4, 8), Fire(16, 4, 16), *last, nn.Flatten())


class MixerBlock(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.widths = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.first(x).transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + self.widths(self.second(x))
        return out


class Mixer(nn.Module):
    def __init__(self, width: int = 32, depth: int = 3) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, 8)
        self.blocks = nn.Sequential(*(MixerBlock(16, width) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.patch(x).flatten(2).transpose(1, 2))
        out: Tensor = self.head(self.norm(x).mean(1))
        return out


class GatedMLPBlock(nn.Module):
    """gMLP's block: half of the channels gate the other half, across positions."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm, self.gate_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.mix = nn.Conv1d(tokens, tokens, 1)
        nn.init.ones_(self.mix.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        u, v = F.gelu(self.up(self.norm(x))).chunk(2, -1)
        out: Tensor = x + self.down(u * self.mix(self.gate_norm(v)))
        return out


class TokenModel(nn.Module):
    """Token ids through an embedding, blocks, and a head tied to the embedding."""

    def __init__(self, *blocks: nn.Module, width: int = 32, vocab: int = 61) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(vocab, width), nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        return F.linear(self.norm(self.blocks(self.embed(ids))), self.embed.weight)


class RNNBlock(nn.Module):
    """An Elman network over the sequence, batch first, with a residual."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.rnn = nn.RNN(width, width, num_layers=2, batch_first=True, dropout=0.1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.rnn(x)[0]
        return out


class LSTMCells(nn.Module):
    """An LSTM as a loop over cells, as in code that changes the cell."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(width, width)

    def forward(self, x: Tensor) -> Tensor:
        state, made = None, []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            made.append(state[0])
        return torch.stack(made, 1)


class LSTMBlock(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.lstm(x)[0]
        return out


class CausalConv(nn.Module):
    """A block of a temporal convolutional network (WaveNet's gate, dilated)."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.pad = dilation
        self.both = nn.utils.parametrizations.weight_norm(
            nn.Conv1d(width, 2 * width, 2, dilation=dilation)
        )
        self.out = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.both(F.pad(x.transpose(1, 2), (self.pad, 0)))
        value, gate = y.chunk(2, 1)
        out: Tensor = self.out(torch.tanh(value) * torch.sigmoid(gate)).transpose(1, 2)
        return x + out


class UNet(nn.Module):
    """Two levels with skips, bilinear upsampling and instance normalisation."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()

        def twice(inner: int, outer: int) -> nn.Sequential:
            layers = [
                layer
                for i in (inner, outer)
                for layer in (
                    nn.Conv2d(i, outer, 3, padding=1),
                    nn.InstanceNorm2d(outer, affine=True),
                    nn.LeakyReLU(0.1, inplace=True),
                )
            ]
            return nn.Sequential(*layers)

        self.down1, self.down2 = twice(3, width), twice(width, 2 * width)
        self.middle = twice(2 * width, 4 * width)
        self.join2, self.join1 = twice(6 * width, 2 * width), twice(3 * width, width)
        self.out = nn.Conv2d(width, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        x = self.middle(F.max_pool2d(two, 2))
        for skip, join in ((two, self.join2), (one, self.join1)):
            x = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
            x = join(torch.cat((x, skip), 1))
        out: Tensor = self.out(x)
        return out


class FPN(nn.Module):
    """A feature pyramid: three maps of one width, each with its own prediction."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList((conv(3, 8, 3, 2), conv(8, 16, 3, 2), conv(16, 32, 3, 2)))
        self.lateral = nn.ModuleList(nn.Conv2d(w, 8, 1) for w in (8, 16, 32))
        self.smooth = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3))
        self.head = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = []
        for stage, lateral in zip(self.stages, self.lateral, strict=True):
            x = stage(x)
            maps.append(lateral(x))
        for low in (1, 0):
            maps[low] = maps[low] + F.interpolate(maps[low + 1], size=maps[low].shape[-2:])
        return [self.head(s(m)) for s, m in zip(self.smooth, maps, strict=True)]


class DiffusionUNet(nn.Module):
    """A denoiser: time embedding, group normalisation, attention at the bottom."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        self.attend = nn.MultiheadAttention(width, 4, batch_first=True)
        self.leave = nn.Conv2d(2 * width, 3, 3, padding=1)

    def _block(self, i: int, x: Tensor, time: Tensor) -> Tensor:
        out: Tensor = x + self.convs[i](F.silu(self.norms[i](x))) + time[:, :, None, None]
        return out

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        half = 8
        rate = torch.exp(-math.log(1000.0) * torch.arange(half, device=t.device) / half)
        angle = t[:, None].float() * rate
        time = self.time(torch.cat((angle.sin(), angle.cos()), 1))
        first = self._block(0, self.enter(x), time)
        low = self._block(1, F.avg_pool2d(first, 2), time)
        flat = low.flatten(2).transpose(1, 2)
        low = low + self.attend(flat, flat, flat)[0].transpose(1, 2).reshape(low.shape)
        low = self._block(2, low, time)
        high = F.interpolate(low, scale_factor=2.0, mode="nearest")
        out: Tensor = self.leave(torch.cat((high, first), 1))
        return out


class VAE(nn.Module):
    """A convolutional variational autoencoder; returns the image, mean and log variance."""

    def __init__(self, latent: int = 8) -> None:
        super().__init__()
        self.encode = nn.Sequential(conv(3, 8, 3, 2), conv(8, 16, 3, 2), nn.Flatten())
        self.mean, self.spread = nn.Linear(16 * 64, latent), nn.Linear(16 * 64, latent)
        self.enter = nn.Linear(latent, 16 * 64)
        self.decode = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.ELU(), nn.ConvTranspose2d(8, 3, 4, 2, 1)
        )

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        seen = self.encode(x)
        mean, spread = self.mean(seen), self.spread(seen)
        drawn = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        image = torch.sigmoid(self.decode(self.enter(drawn).view(-1, 16, 8, 8)))
        return {"image": image, "mean": mean, "spread": spread}


class PointNet(nn.Module):
    """Points through shared layers, a transform that is learnt, and a maximum over points."""

    def __init__(self) -> None:
        super().__init__()
        self.transform = nn.Sequential(nn.Conv1d(3, 16, 1), nn.ReLU(), nn.Conv1d(16, 32, 1))
        self.matrix = nn.Linear(32, 9)
        self.shared = nn.Sequential(
            nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 1)
        )
        self.head = nn.Linear(32, CLASSES)

    def forward(self, points: Tensor) -> Tensor:
        seen = self.transform(points).max(-1).values
        matrix = self.matrix(seen).view(-1, 3, 3) + torch.eye(3)
        out: Tensor = self.head(self.shared(matrix @ points).amax(-1))
        return out


class GraphConv(nn.Module):
    """A graph network: gathers along edges, adds up by `index_add`."""

    def __init__(self, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(8, width), nn.Linear(width, CLASSES)
        self.layers = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(depth))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.enter(x)
        for layer in self.layers:
            total = torch.zeros_like(x).index_add_(0, edges[1], x[edges[0]])
            x = F.relu(layer(torch.cat((x, total), -1)))
        out: Tensor = self.head(x)
        return out


class DLRM(nn.Module):
    """Recommendation: dense features, three tables, pairwise products."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(50, width, mode="sum") for _ in range(3))
        self.bottom = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + 6, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: Tensor, bags: Tensor) -> Tensor:
        x = self.bottom(dense)
        all_ = torch.stack((x, *(t(b) for t, b in zip(self.tables, bags, strict=True))), 1)
        left, right = torch.triu_indices(4, 4, 1)
        pairs = (all_ @ all_.transpose(1, 2))[:, left, right]
        out: Tensor = self.top(torch.cat((x, pairs), 1)).squeeze(-1)
        return out


class NeRF(nn.Module):
    """Positions through sines and a deep perceptron with a skip; density and colour."""

    def __init__(self, width: int = 32, bands: int = 4) -> None:
        super().__init__()
        self.bands, inner = bands, 3 * 2 * bands
        self.first = nn.ModuleList(nn.Linear(a, width) for a in (inner, width, width))
        self.second = nn.ModuleList(nn.Linear(a, width) for a in (width + inner, width))
        self.density, self.colour = nn.Linear(width, 1), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        angles = (x[..., None] * 2.0 ** torch.arange(self.bands)).flatten(-2)
        h = seen = torch.cat((angles.sin(), angles.cos()), -1)
        for layer in self.first:
            h = F.relu(layer(h))
        h = torch.cat((h, seen), -1)
        for layer in self.second:
            h = F.relu(layer(h))
        return F.softplus(self.density(h)), torch.sigmoid(self.colour(h))


class Discriminator(nn.Module):
    """With spectral normalisation, whose power iteration writes buffers at every forward."""

    def __init__(self) -> None:
        super().__init__()
        spectral = nn.utils.parametrizations.spectral_norm
        self.body = nn.Sequential(
            spectral(nn.Conv2d(3, 8, 4, 2, 1)),
            nn.LeakyReLU(0.2, inplace=True),
            spectral(nn.Conv2d(8, 16, 4, 2, 1)),
            nn.LeakyReLU(0.2, inplace=True),
        )
        self.head = spectral(nn.Linear(16 * 64, 1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x).flatten(1))
        return out


class Transformer(nn.Module):
    """`nn.Transformer` itself with dropout, between embeddings, and a causal mask."""

    def __init__(self, width: int = 32, vocab: int = 61) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(vocab, width), nn.Embedding(vocab, width)
        self.body = nn.Transformer(width, 4, 2, 2, 64, batch_first=True)
        self.head = nn.Linear(width, vocab)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        hidden = self.body(self.source(source), self.target(target), tgt_mask=mask)
        out: Tensor = self.head(hidden)
        return out


Made = tuple[nn.Module, tuple[Tensor, ...]]


def _images(side: int = 32) -> tuple[Tensor, ...]:
    return (torch.randn(BATCH, 3, side, side),)


def _ids(length: int = 12) -> tuple[Tensor, ...]:
    return (torch.randint(0, 61, (BATCH, length)),)


def _noised() -> tuple[Tensor, ...]:
    return torch.randn(BATCH, 3, 16, 16), torch.randint(0, 1000, (BATCH,))


def _graph() -> tuple[Tensor, ...]:
    return torch.randn(20, 8), torch.randint(0, 20, (2, 60))


def _clicks() -> tuple[Tensor, ...]:
    return torch.randn(8, 6), torch.randint(0, 50, (3, 8, 4))


def _gated() -> nn.Module:
    return TokenModel(*(GatedMLPBlock(12, 32) for _ in range(2)))


ARCHITECTURES: Mapping[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "alexnet": (alexnet, lambda: _images(64)),
    "convnext": (convnext, _images),
    "densenet": (densenet, _images),
    "diffusion-unet": (DiffusionUNet, _noised),
    "discriminator": (Discriminator, _images),
    "dlrm": (DLRM, _clicks),
    "efficientnet": (efficientnet, _images),
    "fpn": (FPN, _images),
    "gmlp": (_gated, _ids),
    "googlenet": (GoogLeNet, _images),
    "graph-conv": (GraphConv, _graph),
    "lstm": (lambda: TokenModel(LSTMBlock()), _ids),
    "lstm-cells": (lambda: TokenModel(LSTMCells()), _ids),
    "mixer": (Mixer, _images),
    "mobilenet-v3": (mobilenet_v3, _images),
    "nerf": (NeRF, lambda: (torch.rand(128, 3),)),
    "pointnet": (PointNet, lambda: (torch.randn(BATCH, 3, 64),)),
    "resnet50": (resnet50, _images),
    "resnext": (resnext, _images),
    "rnn": (lambda: TokenModel(RNNBlock()), _ids),
    "shufflenet": (shufflenet, _images),
    "squeezenet": (squeezenet, lambda: _images(64)),
    "transformer": (Transformer, lambda: (*_ids(), *_ids(10))),
    "unet": (UNet, _images),
    "vae": (VAE, _images),
    "vgg": (vgg, _images),
    "wavenet": (lambda: TokenModel(*(CausalConv(32, d) for d in (1, 2, 4))), _ids),
    "wide-resnet": (wide_resnet, _images),
}


def make(name: str) -> tuple[nn.Module, tuple[Any, ...]]:
    """The model in train mode, and its arguments."""
    model, values = ARCHITECTURES[name]
    return model().train(), values()
