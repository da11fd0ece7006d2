"""Networks at their published sizes, written by hand: those that Shilova 2021 compares planners on,
and transformers. Nothing is computed with them, so they may be made on the `meta` device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 1000
Kernel = int | tuple[int, int]


def conv(
    inner: int, outer: int, kernel: Kernel, stride: int = 1, pad: Kernel | None = None
) -> nn.Sequential:
    """Convolution, batch normalisation, ReLU; as large as before at a stride of 1."""
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    around = (height // 2, width // 2) if pad is None else pad
    return nn.Sequential(
        nn.Conv2d(inner, outer, kernel, stride, around, bias=False),
        nn.BatchNorm2d(outer),
        nn.ReLU(),
    )


def head(width: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)]


class Bottleneck(nn.Module):
    """Two 3 x 3 convolutions, or a bottleneck of three; the input is added."""

    def __init__(self, inside: int, outside: int, stride: int, *, deep: bool):
        super().__init__()
        plain = [inside, outside, outside]
        width = [inside, outside // 4, outside // 4, outside] if deep else plain
        kernels = [1, 3, 1] if deep else [3, 3]
        strides = [1, stride, 1] if deep else [stride, 1]
        layers: list[nn.Module] = []
        for i, (kernel, step) in enumerate(zip(kernels, strides, strict=True)):
            layers += conv(width[i], width[i + 1], kernel, step)
        self.body = nn.Sequential(*layers[:-1])
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            projection = nn.Conv2d(inside, outside, 1, stride, bias=False)
            self.short = nn.Sequential(projection, nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.short(x))


def resnet(blocks: Sequence[int], *, deep: bool) -> nn.Module:
    """He et al. 2016 with this many blocks in its four stages."""
    layers: list[nn.Module] = [*conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for stage, count in enumerate(blocks):
        outside = (256 if deep else 64) << stage
        for i in range(count):
            stride = 2 if stage and not i else 1
            layers.append(Bottleneck(inside, outside, stride, deep=deep))
            inside = outside
    return nn.Sequential(*layers, *head(inside))


class DenseLayer(nn.Module):
    """Adds `growth` channels to all that came before."""

    def __init__(self, inner: int, growth: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inner),
            nn.ReLU(),
            *conv(inner, 4 * growth, 1),
            nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, self.body(x)), 1)


def densenet(blocks: Sequence[int], growth: int = 32) -> nn.Module:
    """Huang et al. 2017; every layer joins what it adds to all before it, in new memory."""
    layers: list[nn.Module] = [*conv(3, 2 * growth, 7, 2), nn.MaxPool2d(3, 2, 1)]
    width = 2 * growth
    for i, count in enumerate(blocks):
        for _ in range(count):
            layers.append(DenseLayer(width, growth))
            width += growth
        if i < len(blocks) - 1:
            narrow = nn.Conv2d(width, width // 2, 1, bias=False)
            layers += [nn.BatchNorm2d(width), nn.ReLU(), narrow, nn.AvgPool2d(2)]
            width //= 2
    return nn.Sequential(*layers, nn.BatchNorm2d(width), nn.ReLU(), *head(width))


class Beside(nn.Module):
    """The results of several branches, joined by channels."""

    def __init__(self, *branches: nn.Module):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _mixed_a(inner: int, pooled: int) -> nn.Module:
    return Beside(
        conv(inner, 64, 1),
        nn.Sequential(conv(inner, 48, 1), conv(48, 64, 5)),
        nn.Sequential(conv(inner, 64, 1), conv(64, 96, 3), conv(96, 96, 3)),
        nn.Sequential(nn.AvgPool2d(3, 1, 1), conv(inner, pooled, 1)),
    )


def _mixed_b(inner: int) -> nn.Module:
    return Beside(
        conv(inner, 384, 3, 2, 0),
        nn.Sequential(conv(inner, 64, 1), conv(64, 96, 3), conv(96, 96, 3, 2, 0)),
        nn.MaxPool2d(3, 2),
    )


def _mixed_c(width: int) -> nn.Module:
    row, column = (1, 7), (7, 1)
    return Beside(
        conv(768, 192, 1),
        nn.Sequential(conv(768, width, 1), conv(width, width, row), conv(width, 192, column)),
        nn.Sequential(
            conv(768, width, 1),
            conv(width, width, column),
            conv(width, width, row),
            conv(width, width, column),
            conv(width, 192, row),
        ),
        nn.Sequential(nn.AvgPool2d(3, 1, 1), conv(768, 192, 1)),
    )


def _mixed_d() -> nn.Module:
    row, column = (1, 7), (7, 1)
    around = (conv(192, 192, row), conv(192, 192, column), conv(192, 192, 3, 2, 0))
    return Beside(
        nn.Sequential(conv(768, 192, 1), conv(192, 320, 3, 2, 0)),
        nn.Sequential(conv(768, 192, 1), *around),
        nn.MaxPool2d(3, 2),
    )


def _mixed_e(inner: int) -> nn.Module:
    def both() -> nn.Module:
        return Beside(conv(384, 384, (1, 3)), conv(384, 384, (3, 1)))

    return Beside(
        conv(inner, 320, 1),
        nn.Sequential(conv(inner, 384, 1), both()),
        nn.Sequential(conv(inner, 448, 1), conv(448, 384, 3), both()),
        nn.Sequential(nn.AvgPool2d(3, 1, 1), conv(inner, 192, 1)),
    )


def inception() -> nn.Module:
    """Inception v3, Szegedy et al. 2016, without its auxiliary classifier."""
    stem = (conv(3, 32, 3, 2, 0), conv(32, 32, 3, 1, 0), conv(32, 64, 3), nn.MaxPool2d(3, 2))
    more = (conv(64, 80, 1, 1, 0), conv(80, 192, 3, 1, 0), nn.MaxPool2d(3, 2))
    small = (_mixed_a(192, 32), _mixed_a(256, 64), _mixed_a(288, 64), _mixed_b(288))
    middle = (*(_mixed_c(width) for width in (128, 160, 160, 192)), _mixed_d())
    last = (_mixed_e(1280), _mixed_e(2048))
    return nn.Sequential(*stem, *more, *small, *middle, *last, *head(2048))


class Gpt(nn.Module):
    """Blocks of attention and a perceptron, without embeddings."""

    def __init__(self, layers: int, width: int, heads: int):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Decoder(nn.Module):
    """A decoder of causal blocks between an embedding and a head, with its loss."""

    def __init__(self, blocks: Sequence[nn.Module], norm: nn.Module, width: int, vocab: int):
        super().__init__()
        self.embed, self.blocks, self.norm = nn.Embedding(vocab, width), nn.ModuleList(blocks), norm
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), labels.flatten())


@dataclass(frozen=True)
class Heads:
    """Of attention: how many ask, how many are asked, how wide each is."""

    queries: int
    keys: int
    width: int


def attended(q: Tensor, k: Tensor, v: Tensor, heads: Heads, *, is_causal: bool = True) -> Tensor:
    parts = [
        t.unflatten(2, (n, heads.width)).transpose(1, 2)
        for t, n in ((q, heads.queries), (k, heads.keys), (v, heads.keys))
    ]
    made = F.scaled_dot_product_attention(
        *parts, is_causal=is_causal, enable_gqa=heads.queries > heads.keys
    )
    return made.transpose(1, 2).flatten(2)


class GptBlock(nn.Module):
    """Of GPT-2, Radford et al. 2019: LayerNorm before each part, GELU, dropout of 0.1."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = Heads(heads, heads, width // heads)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=2)
        x = x + self.drop(self.out(attended(q, k, v, self.heads)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")))


class LlamaBlock(nn.Module):
    """Of Llama 3.2: RMSNorm, grouped queries, a gated perceptron. Positions are left out: turning
    queries and keys costs next to nothing."""

    def __init__(self, width: int, heads: Heads, inner: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q = nn.Linear(width, heads.queries * heads.width, bias=False)
        self.k, self.v = (nn.Linear(width, heads.keys * heads.width, bias=False) for _ in range(2))
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.out(attended(self.q(h), self.k(h), self.v(h), self.heads))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


def gpt2(layers: int, width: int, heads: int) -> nn.Module:
    blocks = [GptBlock(width, heads) for _ in range(layers)]
    return Decoder(blocks, nn.LayerNorm(width), width, 50257)


def llama_1b() -> nn.Module:
    """Llama 3.2 of 1.24 B parameters."""
    blocks = [LlamaBlock(2048, Heads(32, 8, 64), 8192) for _ in range(16)]
    return Decoder(blocks, nn.RMSNorm(2048), 2048, 128256)


NETWORKS: Mapping[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: resnet((2, 2, 2, 2), deep=False),
    "resnet34": lambda: resnet((3, 4, 6, 3), deep=False),
    "resnet50": lambda: resnet((3, 4, 6, 3), deep=True),
    "resnet101": lambda: resnet((3, 4, 23, 3), deep=True),
    "resnet152": lambda: resnet((3, 8, 36, 3), deep=True),
    "densenet121": lambda: densenet((6, 12, 24, 16)),
    "densenet169": lambda: densenet((6, 12, 32, 32)),
    "densenet201": lambda: densenet((6, 12, 48, 32)),
    "inception3": inception,
    "gpt": lambda: Gpt(4, 256, 4),
    "gpt2-small": lambda: gpt2(12, 768, 12),
    "gpt2-medium": lambda: gpt2(24, 1024, 16),
    "gpt2-large": lambda: gpt2(36, 1280, 20),
    "llama-1b": llama_1b,
}


def make(name: str, size: int, batch: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The network in training mode and what it is called with, on the `meta` device: images of
    `size` pixels, or 1024 tokens for each of `batch`; decoders in bfloat16."""
    with torch.device("meta"):
        module = NETWORKS[name]().train()
        if isinstance(module, Decoder):
            ids = torch.zeros(batch, 1024, dtype=torch.long)
            return module.to(torch.bfloat16), (ids, ids.clone())
        if isinstance(module, Gpt):
            return module, (torch.zeros(batch, 256, 256),)
        return module, (torch.zeros(batch, 3, size, size),)
