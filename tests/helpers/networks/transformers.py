"""Transformers: GPT-2, an encoder with a decoder, a vision transformer."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
