"""Llama's shape: rotary embedding, grouped queries, gated feed-forward parts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
