"""Training with lossy codecs on the CPU: what they do to the loss, beside the exact step.

    python benchmarks/lossy.py [--steps 300] [--seeds 2] [--only int8]

A character GPT (3 layers of 96, 64 characters, batch 8, dropout 0.1, attention weights kept,
cross entropy inside) is trained on sources of Python's standard library by AdamW. Every value is
packed that the family of codecs allows; nothing is recomputed. Per row: the validation loss of
each seed over that of the exact step; the error of the gradient of the first step; the bytes kept
at the loss over those kept without; the numbers of packed values and of approximate gradients. The
loss of the first step must be that of the exact one, to the bit.

`unbiased` packs by 256 seeds: of how many elements of the gradient, summed over blocks of 64, is
the mean farther from the exact one than four standard errors?
"""

from __future__ import annotations

import argparse
import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean
from typing import Annotated

import torch
import typer
from _common import machine
from _tables import print_table
from torch import Tensor, nn
from torch.nn import functional

from remat_compile.backends.torch import PlannedModule, build
from remat_compile.capture.torch import export, lower
from remat_compile.ir.codecs import pairs
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.operators.codecs import lossy as kernels
from remat_compile.plans.options import Errors
from remat_compile.plans.packed import packed
from remat_compile.plans.request import read_request
from remat_compile.report.subject import store_all
from remat_compile.verifier import ProvenPlan, verify
from remat_compile.verifier.read.lossy import read_lossy

ROWS = (
    ("none", None),
    ("lossless", None),
    ("linear", "int8_random"),
    ("linear", "int4"),
    ("all", "int8"),
    ("all", "int4"),
    ("all", "int4_nearest"),
    ("all", "int4_outliers"),
    ("all", "fp8"),
)
LENGTH, BATCH, BLOCK = 64, 8, 64


class Layer(nn.Module):
    """Pre-norm, attention that keeps its weights, dropout in the places of GPT-2."""

    def __init__(self, width: int, heads: int, drop: float) -> None:
        super().__init__()
        self.heads, self.drop = heads, nn.Dropout(drop)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).split(width, dim=-1)
        )
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = (q @ k.mT / (width // self.heads) ** 0.5).masked_fill(mask, float("-inf"))
        out = self.drop(scores.softmax(-1)) @ v
        x = x + self.drop(self.proj(out.transpose(1, 2).reshape(batch, length, width)))
        y: Tensor = x + self.drop(self.down(functional.gelu(self.up(self.norm2(x)))))
        return y


class CharacterGPT(nn.Module):
    """Its loss of a batch of characters and of the ones that follow."""

    def __init__(
        self, characters: int, width: int = 96, layers: int = 3, drop: float = 0.1
    ) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(characters, width), nn.Embedding(LENGTH, width)
        self.layers = nn.ModuleList(Layer(width, 4, drop) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.embed(x) + self.place(torch.arange(x.shape[1]))
        for layer in self.layers:
            h = layer(h)
        return functional.cross_entropy(self.head(self.norm(h)).flatten(0, 1), y.flatten())


def characters() -> tuple[Tensor, int]:
    text = "".join(inspect.getsource(module) for module in (argparse, ast, inspect, textwrap))
    known = sorted({*text})
    numbers = {character: number for number, character in enumerate(known)}
    return torch.tensor([numbers[character] for character in text]), len(known)


def batches(text: Tensor, seed: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        at = torch.randint(0, len(text) - LENGTH - 1, (size,), generator=generator).tolist()
        yield (
            torch.stack([text[i : i + LENGTH] for i in at]),
            torch.stack([text[i + 1 : i + LENGTH + 1] for i in at]),
        )


@dataclass(frozen=True)
class Step:
    """The planned module of a family of codecs, and what is told of it."""

    module: PlannedModule
    values: int
    approximate: str
    kept_bytes: int


def step_of(net: nn.Module, args: tuple[Tensor, ...], family: str, codec: str | None) -> Step:
    errors = Errors()
    asked = read_request(errors, codecs=family, lossy=codec)  # type: ignore[typeddict-item]
    errors.raise_if_any()
    assert asked is not None
    with lower(export(net, args)) as lowered:
        small = packed(lowered, asked)
        program, schedule = small.program, store_all(small.program)
        assert isinstance(verify(program, schedule, allow_lossy=codec is not None), ProvenPlan)
        module = build(small, schedule)
    trace, told = simulate(program, schedule), read_lossy(program)
    gradients = f"{len(told.gradients)} of {told.number_of_gradients}"
    values = len({pair.source for pair in pairs(program.graph)})
    return Step(module, values, gradients, trace.during_activation[trace.loss_step])


def gradient(net: nn.Module) -> Tensor:
    return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]).clone()


@dataclass(frozen=True)
class Trained:
    loss: float
    first_loss: Tensor
    first_gradient: Tensor
    step: Step


def trained(family: str, codec: str | None, seed: int, steps: int) -> Trained:
    text, number = characters()
    torch.manual_seed(seed)
    net = CharacterGPT(number)
    given = batches(text[:-20000], seed + 1, BATCH)
    step = step_of(net, next(given), family, codec)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    torch.manual_seed(seed)
    first: tuple[Tensor, Tensor] | None = None
    for _ in range(steps):
        optimizer.zero_grad()
        loss = step.module(*next(given))
        loss.backward()
        first = first or (loss.detach().clone(), gradient(net))
        optimizer.step()
    assert first is not None
    net.eval()
    held_out = batches(text[-20000:], 9, 32)
    with torch.no_grad():
        loss = mean(net(*next(held_out)).item() for _ in range(8))
    return Trained(loss, *first, step)


def unbiased(family: str, codec: str, seeds: int = 256) -> tuple[int, int, int, float]:
    """The elements of the gradient in sums of BLOCK; those whose mean over the seeds is farther
    than four standard errors from the exact one; and seeds. One layer, without dropout."""
    text, number = characters()
    torch.manual_seed(0)
    net = CharacterGPT(number, width=32, layers=1, drop=0.0)
    args = next(batches(text, 1, 4))
    grads: list[Tensor] = []
    exact = gradient_of(step_of(net, args, "none", None).module, net, args)
    step = step_of(net, args, family, codec)
    plain = kernels.generator
    for seed in range(seeds):
        # As plans by as many seeds would, without making them.
        kernels.generator = lambda x, _, seed=seed: plain(x, seed)  # type: ignore[misc]
        grads.append(gradient_of(step.module, net, args))
    kernels.generator = plain
    found = torch.stack(grads).double()
    changed = (found != exact).any(0)
    error = found.std(0) / seeds**0.5
    off = (found.mean(0) - exact.double()).abs()
    far = off > 4 * error + 1e-6 * exact.double().abs().max()
    return (
        int(changed.sum()),
        int((far & changed).sum()),
        seeds,
        float((off / error)[changed].max()),
    )


def gradient_of(module: nn.Module, net: nn.Module, args: tuple[Tensor, ...]) -> Tensor:
    net.zero_grad()
    module(*args).backward()
    return gradient(net)


def main(
    steps: Annotated[int, typer.Option(help="Steps of training.")] = 300,
    seeds: Annotated[int, typer.Option(help="Seeds of training.")] = 2,
    only: Annotated[str, typer.Option(help="One codec.")] = "",
) -> None:
    torch.set_num_threads(1)
    print(machine())
    rows: list[list[str]] = []
    exact: list[Trained] = []
    for family, codec in ROWS:
        if only and family != "none" and codec != only:
            continue
        made = [trained(family, codec, seed, steps) for seed in range(seeds)]
        exact = exact or made
        for ours, plain in zip(made, exact, strict=True):
            assert torch.equal(ours.first_loss, plain.first_loss)
        over = [f"{100 * (a.loss / b.loss - 1):+.3f} %" for a, b in zip(made, exact, strict=True)]
        off = [
            (a.first_gradient - b.first_gradient).norm() / b.first_gradient.norm()
            for a, b in zip(made, exact, strict=True)
        ]
        step = made[0].step
        kept = step.kept_bytes / exact[0].step.kept_bytes
        told = [f"{kept:.3f}", str(step.values), step.approximate]
        losses = [f"{a.loss:.4f}" for a in made]
        rows.append([family, codec or "", *losses, *over, f"{max(off):.4f}", *told])
        print(rows[-1], flush=True)
    heads = [f"seed {n}" for n in range(seeds)]
    print_table(
        [
            "codecs",
            "lossy",
            *heads,
            *(f"{h} over exact" for h in heads),
            "gradient",
            "kept",
            "packed",
            "approximate",
        ],
        rows,
    )
    for family, codec in (("linear", "int4"), ("linear", "int8_random"), ("all", "int4")):
        number, far, of, most = unbiased(family, codec)
        print(
            f"{family} {codec}: {far} of {number} elements are farther than 4 standard errors "
            f"over {of} seeds; the farthest {most:.2f}"
        )


if __name__ == "__main__":
    typer.run(main)
