"""Writes a model of GPT-2's shape as an ONNX file, with random weights.

    python examples/gpt2_onnx.py -o gpt2.onnx
    python examples/gpt2_onnx.py -o big.onnx --layers 12 --width 768 --heads 12 \
        --vocab 50257 --seq 256

The file takes token ids and targets, both int64[batch, seq], and returns the mean
cross-entropy; with --no-loss it takes the ids and returns the logits. Every weight stays
an initialiser of its own (`optimize=False`), so that it can be trained: what the default
optimising export writes cannot be, because it folds, transposes and merges weights.
"""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn


class Block(nn.Module):
    """One pre-norm transformer block with causal attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x: Tensor) -> Tensor:
        batch, seq, width = x.shape
        q, k, v = (
            part.view(batch, seq, self.heads, -1).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        joined: Tensor = self.proj(y.transpose(1, 2).reshape(batch, seq, width))
        return joined

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.ln_1(x))
        out: Tensor = x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))
        return out


class GPT2(nn.Module):
    """Token and position embeddings, blocks, and a head tied to the token embedding."""

    def __init__(self, layers: int, width: int, heads: int, vocab: int, seq: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(seq, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.wte.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.ln_f(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def write(model: GPT2, path: Path, *, batch: int, seq: int, loss: bool) -> None:
    """Exports `model` with sample arguments of the given shape."""
    ids = torch.zeros(batch, seq, dtype=torch.int64)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.train(),
            (ids, ids) if loss else (ids,),
            str(path),
            input_names=["ids", "targets"] if loss else ["ids"],
            output_names=["loss"] if loss else ["logits"],
            dynamo=True,
            optimize=False,
            external_data=False,
            verbose=False,
        )


def main(
    out: Annotated[Path, typer.Option("-o", "--out", help="The file to write.")],
    layers: int = 6,
    width: int = 128,
    heads: int = 4,
    vocab: int = 512,
    seq: int = 128,
    batch: int = 4,
    loss: Annotated[bool, typer.Option(help="Return the loss, or the logits.")] = True,
    seed: int = 0,
) -> None:
    """Writes a GPT-2-shaped ONNX file with random weights."""
    if width % heads:
        raise typer.BadParameter(f"{heads} heads do not divide a width of {width}")
    if not out.parent.is_dir():
        raise typer.BadParameter(f"there is no directory {out.parent}")
    torch.manual_seed(seed)
    model = GPT2(layers, width, heads, vocab, seq)
    write(model, out, batch=batch, seq=seq, loss=loss)
    count = sum(p.numel() for p in model.parameters())
    print(f"{out}: {layers} layers, {count / 1e6:.2f} M parameters", file=sys.stderr)


if __name__ == "__main__":
    typer.run(main)
