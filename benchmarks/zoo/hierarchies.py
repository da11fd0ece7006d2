"""Networks on which hierarchical planners are compared (Zhao 2024, ch. 3), in full size: chains of
equal and of unequal layers, and graphs that are no chain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .published import GptBlock, Heads, attended

Example = tuple[nn.Module, tuple[Tensor, ...]]


class Layers(nn.Module):
    """One after the other; the loss is of their result."""

    def __init__(self, blocks: Sequence[nn.Module], width: int):
        super().__init__()
        self.blocks, self.norm = nn.Sequential(*blocks), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.blocks(x)).float().square().mean()


def _gpt2(layers: int, width: int, batch: int, *, uneven: bool = False) -> Example:
    """The layers of GPT-2, with heads of 64; the vocabulary's, whose bytes would hide theirs, is
    left out. `uneven`: no two layers have perceptrons of one width."""
    blocks = [GptBlock(width, width // 64) for _ in range(layers)]
    if uneven:
        for i, block in enumerate(blocks):
            inner = 4 * width + 64 * (i * 7 % layers - layers // 2)
            block.up, block.down = nn.Linear(width, inner), nn.Linear(inner, width)
    x = torch.zeros(batch, 1024, width, dtype=torch.bfloat16)
    return Layers(blocks, width).to(torch.bfloat16), (x,)


class _Crossed(nn.Module):
    """A layer of a decoder: attention to itself, to the encoder's result and, over a long skip,
    a sum with the encoder's layer of the same height; a perceptron."""

    def __init__(self, width: int):
        super().__init__()
        self.heads = Heads(width // 64, width // 64, 64)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.kv = nn.Linear(width, 3 * width), nn.Linear(width, 2 * width)
        self.q, self.skip = nn.Linear(width, width), nn.Linear(2 * width, width)
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, encoded: Tensor, beside: Tensor) -> Tensor:
        x = self.skip(torch.cat((x, beside), 2))
        q, k, v = self.qkv(self.norms[0](x)).chunk(3, dim=2)
        x = x + self.outs[0](attended(q, k, v, self.heads))
        k, v = self.kv(encoded).chunk(2, dim=2)
        x = x + self.outs[1](attended(self.q(self.norms[1](x)), k, v, self.heads, is_causal=False))
        return x + self.down(F.gelu(self.up(self.norms[2](x))))


class EncoderDecoder(nn.Module):
    """As many layers of either; every layer of the decoder reads the encoder's result and the
    encoder's layer that lies as far from the middle."""

    def __init__(self, layers: int, width: int):
        super().__init__()
        self.encoder = nn.ModuleList(GptBlock(width, width // 64) for _ in range(layers))
        self.decoder = nn.ModuleList(_Crossed(width) for _ in range(layers))
        self.head = nn.Linear(width, width)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        kept = []
        for layer in self.encoder:
            x = layer(x)
            kept.append(x)
        for layer in self.decoder:
            y = layer(y, x, kept.pop())
        return self.head(y).float().square().mean()


def _encoder_decoder(layers: int) -> Example:
    texts = (torch.zeros(8, 512, 512, dtype=torch.bfloat16) for _ in range(2))
    return EncoderDecoder(layers, 512).to(torch.bfloat16), tuple(texts)


def _twice(inner: int, outer: int) -> nn.Sequential:
    return nn.Sequential(
        *(
            layer
            for i in (inner, outer)
            for layer in (
                nn.Conv2d(i, outer, 3, padding=1, bias=False),
                nn.BatchNorm2d(outer),
                nn.ReLU(),
            )
        )
    )


class UNet(nn.Module):
    """Ronneberger et al. 2015, with batch norms and padded convolutions."""

    def __init__(self, inner: int, outer: int, widths: Sequence[int]):
        super().__init__()
        pairs = list(pairwise(widths))
        self.first = _twice(inner, widths[0])
        self.downs = nn.ModuleList(_twice(a, b) for a, b in pairs)
        self.ups = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs))
        self.joins = nn.ModuleList(_twice(2 * a, a) for a, _ in reversed(pairs))
        self.last = nn.Conv2d(widths[0], outer, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        skips = []
        for down in self.downs:
            skips.append(x)
            x = down(F.max_pool2d(x, 2))
        for up, join in zip(self.ups, self.joins, strict=True):
            x = join(torch.cat((up(x), skips.pop()), 1))
        made: Tensor = self.last(x)
        return made


class Fourier(nn.Module):
    """A layer of U-FNO, Wen et al. 2022: lowest frequencies mixed, beside a pointwise convolution
    and, where `deep`, a small U-Net."""

    def __init__(self, width: int, modes: int, *, deep: bool):
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.zeros(width, width, modes, modes, 2))
        self.beside = nn.Conv2d(width, width, 1)
        self.net = UNet(width, width, (width, 2 * width, 4 * width)) if deep else None

    def forward(self, x: Tensor) -> Tensor:
        m, (high, wide) = self.modes, x.shape[2:]
        freqs = torch.view_as_real(torch.fft.rfft2(x))[:, :, :m, :m]
        real, imag = freqs.unbind(-1)
        a, b = self.weight.unbind(-1)
        mix = "bixy,ioxy->boxy"
        made = torch.stack(
            (
                torch.einsum(mix, real, a) - torch.einsum(mix, imag, b),
                torch.einsum(mix, real, b) + torch.einsum(mix, imag, a),
            ),
            -1,
        )
        padded = F.pad(made, (0, 0, 0, wide // 2 + 1 - m, 0, high - m))
        y = torch.fft.irfft2(torch.view_as_complex(padded), s=(high, wide)) + self.beside(x)
        return F.relu(y if self.net is None else y + self.net(x))


def _ufno() -> Example:
    layers = [Fourier(36, 10, deep=i >= 3) for i in range(6)]
    lift, drop = nn.Conv2d(12, 36, 1), nn.Sequential(nn.Conv2d(36, 128, 1), nn.ReLU())
    model = nn.Sequential(lift, *layers, *drop, nn.Conv2d(128, 1, 1))
    return model, (torch.zeros(8, 12, 96, 200),)


class RegNetBlock(nn.Module):
    """Of RegNetX, Radosavovic et al. 2020: a bottleneck of grouped convolutions."""

    def __init__(self, inner: int, outer: int, group: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, outer, 1, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(),
            nn.Conv2d(outer, outer, 3, stride, 1, groups=outer // group, bias=False),
            nn.BatchNorm2d(outer),
            nn.ReLU(),
            nn.Conv2d(outer, outer, 1, bias=False),
            nn.BatchNorm2d(outer),
        )
        self.beside: nn.Module = nn.Identity()
        if stride > 1 or inner != outer:
            self.beside = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.beside(x) + self.body(x))


def _regnet() -> Example:
    """RegNetX-32GF."""
    blocks: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
    inner = 32
    for depth, width in zip((2, 7, 13, 1), (336, 672, 1344, 2520), strict=True):
        for i in range(depth):
            blocks.append(RegNetBlock(inner, width, 168, 1 if i else 2))
            inner = width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 1000)]
    return nn.Sequential(*blocks, *head), (torch.zeros(32, 3, 224, 224),)


class MixerBlock(nn.Module):
    """Tolstikhin et al. 2021: a perceptron over places, and one over channels."""

    def __init__(self, places: int, width: int, inner: int, outer: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.places = nn.Sequential(nn.Linear(places, inner), nn.GELU(), nn.Linear(inner, places))
        self.widths = nn.Sequential(nn.Linear(width, outer), nn.GELU(), nn.Linear(outer, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.places(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        made: Tensor = x + self.widths(self.norm2(x))
        return made


class Mixer(nn.Module):
    """MLP-Mixer B/16 of 224 × 224 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, 16)
        self.blocks = nn.Sequential(*(MixerBlock(196, 768, 384, 3072) for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(768), nn.Linear(768, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.patches(x).flatten(2).transpose(1, 2))
        made: Tensor = self.head(self.norm(x).mean(1))
        return made


def _unet() -> Example:
    return UNet(3, 2, (64, 128, 256, 512, 1024)), (torch.zeros(8, 3, 256, 256),)


CHAINS: Mapping[str, Callable[[], Example]] = {
    "gpt2-4": lambda: _gpt2(4, 768, 8),
    "gpt2-4-uneven": lambda: _gpt2(4, 768, 8, uneven=True),
    "gpt2-12": lambda: _gpt2(12, 768, 8),
    "gpt2-12-uneven": lambda: _gpt2(12, 768, 8, uneven=True),
    "gpt2-48": lambda: _gpt2(48, 1600, 2),
    "gpt2-48-uneven": lambda: _gpt2(48, 1600, 2, uneven=True),
}
"""One value crosses between layers."""

HIERARCHIES: Mapping[str, Callable[[], Example]] = {
    **CHAINS,
    "unet": _unet,
    "u-fno": _ufno,
    "regnet": _regnet,
    "mixer": lambda: (Mixer(), (torch.zeros(32, 3, 224, 224),)),
    "encoder-decoder-6": lambda: _encoder_decoder(6),
    "encoder-decoder-24": lambda: _encoder_decoder(24),
}


def make(name: str) -> Example:
    """The network in training mode and what it is called with, on the `meta` device."""
    with torch.device("meta"):
        module, args = HIERARCHIES[name]()
        return module.train(), args
