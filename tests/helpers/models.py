"""The models that the tests train: small, seeded, and of every shape that matters.

`MODELS[name](dtype)` builds a module in train mode with its sample arguments. A name
with `-loss` returns a scalar; without it the caller computes the loss from the outputs.
Every factory seeds itself and leaves the caller's random state alone, so two calls give
equal parameters and inputs. Sizes are chosen so that a step takes a few milliseconds and
activations, not parameters, are most of the memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "BASE",
    "FACTORIES",
    "LOSS_INSIDE",
    "MODELS",
    "SMALL",
    "VARIANTS",
    "Factory",
    "export_onnx",
    "no_dropout",
]

Sample = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
Factory = Callable[[torch.dtype], Sample]


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


class SelfAttention(nn.Module):
    """Fused query-key-value projection, `scaled_dot_product_attention`, dropout on weights."""

    def __init__(self, width: int, heads: int, dropout: float, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.attn_drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=-1)
        )
        p = self.attn_drop.p if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=self.causal)
        joined: Tensor = self.proj(out.transpose(1, 2).reshape(batch, length, width))
        return joined


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(
        self, width: int, heads: int, *, causal: bool, attn_drop: float = 0.0, drop: float = 0.0
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = SelfAttention(width, heads, attn_drop, causal=causal)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop1, self.drop2 = nn.Dropout(drop), nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop1(self.attn(self.norm1(x)))
        out: Tensor = x + self.drop2(self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")))
        return out


class GPT(nn.Module):
    """GPT-2's shape, the embedding tied to the head; maps [batch, seq] ids to logits."""

    def __init__(
        self,
        *,
        layers: int = 3,
        width: int = 32,
        heads: int = 2,
        vocab: int = 61,
        seq: int = 16,
        attn_drop: float = 0.0,
        drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(vocab, width), nn.Embedding(seq, width)
        self.drop = nn.Dropout(drop)
        self.blocks = nn.ModuleList(
            Block(width, heads, causal=True, attn_drop=attn_drop, drop=drop) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, ids: Tensor) -> Tensor:
        place = torch.arange(ids.shape[1], device=ids.device)
        x = self.drop(self.tok(ids) + self.pos(place))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x))
        return out


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of [batch, heads, seq, head_dim] by tables [seq, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class LlamaBlock(nn.Module):
    """Grouped-query attention with rotary embedding, and a gated feed-forward part."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, width // heads
        self.norm1, self.norm2 = RMSNorm(width), RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.v = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def _attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        q = rotate(self.q(x).view(batch, length, self.heads, -1).transpose(1, 2), cos, sin)
        k = rotate(self.k(x).view(batch, length, self.kv_heads, -1).transpose(1, 2), cos, sin)
        v = self.v(x).view(batch, length, self.kv_heads, -1).transpose(1, 2)
        groups = self.heads // self.kv_heads
        k, v = (
            t[:, :, None].expand(-1, -1, groups, -1, -1).reshape(batch, self.heads, length, -1)
            for t in (k, v)
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        joined: Tensor = self.o(out.transpose(1, 2).reshape(batch, length, width))
        return joined

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self._attend(self.norm1(x), cos, sin)
        h = self.norm2(x)
        out: Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return out


class Llama(nn.Module):
    """Llama's shape; the rotary tables are buffers that every block reads."""

    cos: Tensor
    sin: Tensor

    def __init__(
        self,
        *,
        layers: int = 2,
        width: int = 32,
        heads: int = 4,
        kv_heads: int = 2,
        vocab: int = 61,
        seq: int = 16,
    ) -> None:
        super().__init__()
        self.tok = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, heads, kv_heads) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        head_dim = width // heads
        rate = 1.0 / 10000.0 ** (torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        angle = torch.outer(torch.arange(seq, dtype=torch.float64), rate).repeat(1, 2)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tok(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        out: Tensor = self.head(self.norm(x))
        return out


class ResBlock(nn.Module):
    """Two 3×3 convolutions with BatchNorm and a shortcut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.short: nn.Module = nn.Identity()
        if inner != outer or stride != 1:
            self.short = nn.Sequential(
                nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer)
            )

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        h += self.short(x)
        out: Tensor = self.relu(h)
        return out


class ResNet(nn.Module):
    """A small ResNet in train mode: [batch, 3, 32, 32] to [batch, 10]."""

    def __init__(self, width: int = 8, blocks: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        widths = [(width, width, 1), (width, 2 * width, 2), (2 * width, 2 * width, 1)][:blocks]
        self.stages = nn.Sequential(*(ResBlock(*block) for block in widths))
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(widths[-1][1], 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(torch.flatten(self.pool(self.stages(self.stem(x))), 1))
        return out


def double_conv(inner: int, outer: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inner, outer, 3, padding=1),
        nn.GroupNorm(2, outer),
        nn.SiLU(),
        nn.Conv2d(outer, outer, 3, padding=1),
        nn.GroupNorm(2, outer),
        nn.SiLU(),
    )


class UNet(nn.Module):
    """Two levels down and up, with skip connections: [batch, 3, 16, 16] to [batch, 2, 16, 16]."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1, self.down2 = double_conv(3, width), double_conv(width, 2 * width)
        self.middle = double_conv(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.join2 = double_conv(4 * width, 2 * width)
        self.up1 = nn.Upsample(scale_factor=2, mode="nearest")
        self.join1 = double_conv(3 * width, width)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skip1 = self.down1(x)
        skip2 = self.down2(F.max_pool2d(skip1, 2))
        x = self.middle(F.max_pool2d(skip2, 2))
        x = self.join2(torch.cat((self.up2(x), skip2), dim=1))
        x = self.join1(torch.cat((self.up1(x), skip1), dim=1))
        out: Tensor = self.head(x)
        return out


class EncoderDecoder(nn.Module):
    """`nn.Transformer` between two embeddings: (source ids, target ids) to logits."""

    mask: Tensor

    def __init__(self, width: int = 32, vocab: int = 61, seq: int = 12, drop: float = 0.0) -> None:
        super().__init__()
        self.src, self.tgt = nn.Embedding(vocab, width), nn.Embedding(vocab, width)
        self.body = nn.Transformer(width, 2, 1, 2, 2 * width, dropout=drop, batch_first=True)
        self.head = nn.Linear(width, vocab)
        self.scale = math.sqrt(width)
        blocked = torch.triu(torch.full((seq, seq), -math.inf), diagonal=1)
        self.register_buffer("mask", blocked, persistent=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory = self.body.encoder(self.src(source) * self.scale)
        hidden = self.body.decoder(
            self.tgt(target) * self.scale, memory, tgt_mask=self.mask, tgt_is_causal=True
        )
        out: Tensor = self.head(hidden)
        return out


class ViT(nn.Module):
    """Patches, a class token, pre-norm blocks: [batch, 3, 16, 16] to [batch, 10]."""

    def __init__(self, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.cls = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.pos = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, 2, causal=False) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(x.shape[0], -1, -1), x), dim=1) + self.pos
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.head(self.norm(x)[:, 0])
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


LossFn = Callable[..., Tensor]


class WithLoss(nn.Module):
    """The model and its loss; the last argument is the target."""

    def __init__(self, model: nn.Module, loss: LossFn) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, *args: Tensor) -> Tensor:
        return self.loss(self.model(*args[:-1]), args[-1])


def token_loss(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def pair_loss(outputs: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    return F.smooth_l1_loss(outputs[0], target) + outputs[1].exp().mean()


def _ids(*shape: int) -> Tensor:
    return torch.randint(0, 61, shape)


def _build(
    make: Callable[[], nn.Module],
    inputs: Callable[[], tuple[Tensor, ...]],
    dtype: torch.dtype,
    *,
    loss: LossFn | None = None,
    target: Callable[[], Tensor] | None = None,
    seed: int = 7,
) -> Sample:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = make()
        args = inputs()
        if loss is not None and target is not None:
            module = WithLoss(module, loss)
            args = (*args, target())
    cast = tuple(a.to(dtype) if a.is_floating_point() else a for a in args)
    return module.to(dtype).train(), cast, {}


def _image(batch: int, side: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.randn(batch, 3, side, side),)


def _classes(batch: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, 10, (batch,))


_GPT_DROP = partial(GPT, attn_drop=0.1, drop=0.1)
_TABLE: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "mlp": (MLP, lambda: (torch.randn(64, 16),)),
    "gpt": (_GPT_DROP, lambda: (_ids(4, 16),)),
    "llama": (Llama, lambda: (_ids(4, 16),)),
    "resnet": (ResNet, _image(4, 32)),
    "unet": (UNet, _image(2, 16)),
    "encdec": (partial(EncoderDecoder, drop=0.1), lambda: (_ids(8, 10), _ids(8, 12))),
    "vit": (ViT, _image(4, 16)),
    "two": (TwoInTwoOut, lambda: (torch.randn(64, 12), torch.randn(64, 20))),
}
_LOSSES: dict[str, tuple[LossFn, Callable[[], Tensor]]] = {
    "mlp": (F.mse_loss, lambda: torch.randn(64, 8)),
    "gpt": (token_loss, lambda: _ids(4, 16)),
    "llama": (token_loss, lambda: _ids(4, 16)),
    "resnet": (F.cross_entropy, _classes(4)),
    "unet": (F.binary_cross_entropy_with_logits, lambda: torch.rand(2, 2, 16, 16)),
    "encdec": (token_loss, lambda: _ids(8, 12)),
    "vit": (F.cross_entropy, _classes(4)),
    "two": (pair_loss, lambda: torch.randn(64, 6)),
}


def _two_with_input_grad(dtype: torch.dtype) -> Sample:
    """The first input requires a gradient; the second goes by keyword."""
    module, (x, y), _ = _build(*_TABLE["two"], dtype)
    return module, (x.requires_grad_(),), {"y": y}


BASE: tuple[str, ...] = tuple(_TABLE)
"""The eight models, the loss computed by the caller."""

LOSS_INSIDE: tuple[str, ...] = tuple(f"{name}-loss" for name in _TABLE)
"""The same eight, each returning its loss."""

MODELS: Mapping[str, Factory] = {
    **{name: partial(_build, *_TABLE[name]) for name in _TABLE},
    **{
        f"{name}-loss": partial(_build, *_TABLE[name], loss=loss, target=target)
        for name, (loss, target) in _LOSSES.items()
    },
    # Attention without dropout runs another kernel than attention with it.
    "gpt-p0": partial(_build, GPT, _TABLE["gpt"][1]),
    "gpt-flash": partial(_build, partial(GPT, drop=0.1), _TABLE["gpt"][1]),
    "two-inputgrad": _two_with_input_grad,
}

SMALL: Mapping[str, Factory] = {
    "mlp": partial(_build, partial(MLP, depth=3), _TABLE["mlp"][1]),
    "gpt": partial(_build, partial(_GPT_DROP, layers=1), _TABLE["gpt"][1]),
    "gpt-p0": partial(_build, partial(GPT, layers=1), _TABLE["gpt"][1]),
    "gpt-flash": partial(_build, partial(GPT, layers=1, drop=0.1), _TABLE["gpt"][1]),
    "llama": partial(_build, partial(Llama, layers=1), _TABLE["llama"][1]),
    "vit": partial(_build, partial(ViT, layers=1), _TABLE["vit"][1]),
    "resnet": partial(_build, partial(ResNet, blocks=1), _TABLE["resnet"][1]),
    "resnet-loss": partial(
        _build,
        partial(ResNet, blocks=1),
        _TABLE["resnet"][1],
        loss=F.cross_entropy,
        target=_classes(4),
    ),
    "two": partial(_build, partial(TwoInTwoOut, depth=2), _TABLE["two"][1]),
}
"""The same with one block: for what does not depend on how many there are."""

FACTORIES: Mapping[str, Factory] = {
    **MODELS,
    **{f"small-{name}": make for name, make in SMALL.items()},
}
"""Both, those with one block as `small-NAME`."""

VARIANTS: tuple[str, ...] = tuple(n for n in MODELS if n not in BASE + LOSS_INSIDE)


def no_dropout(module: nn.Module) -> nn.Module:
    """Sets every dropout probability to 0, in place: what an ONNX file can reproduce."""
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        elif isinstance(part, nn.MultiheadAttention):
            part.dropout = 0.0
    return module


def export_onnx(name: str, path: Path, dtype: torch.dtype = torch.float32) -> Sample:
    """Writes the model without dropout to `path` as ONNX, every parameter an initialiser.

    Returns the module that was exported (in train mode) with its sample arguments.
    `optimize=False` keeps the exporter from folding, transposing and merging weights.
    """
    module, args, kwargs = FACTORIES[name](dtype)
    no_dropout(module)
    names = [f"input_{i}" for i in range(len(args))] + list(kwargs)
    torch.onnx.export(
        module,
        args,
        str(path),
        kwargs=kwargs,
        input_names=names,
        dynamo=True,
        optimize=False,
        external_data=False,
        verbose=False,
    )
    return module.train(), args, kwargs
