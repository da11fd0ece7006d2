"""Plans a Llama of 7 B parameters for a device that is not there, on the `meta` device.

    python benchmarks/seven_billion.py [--layers 32] [--budget 50%] [--planner auto] [--json FILE]
    python benchmarks/seven_billion.py --by-file    # through a .pt2 file, written first
    python benchmarks/seven_billion.py --check      # exit code 1 over 180 s or 4 GB

Times are seconds by the clock and of the processor (this process and those it started),
memory is the largest resident set of this process, and the largest of one that it started.
No plan is taken from the cache.
"""

from __future__ import annotations

import json
import resource
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
import torch.nn.functional as F
import typer
from torch import Tensor, nn

import remat_compile

LIMIT_S, LIMIT_BYTES = 180.0, 4_000_000_000


class Block(nn.Module):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        h = self.norm1(x)
        q, k, v = (
            f(h).view(batch, length, self.heads, -1).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        out = F.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True
        )
        x = x + self.o(out.transpose(1, 2).reshape(batch, length, width))
        h = self.norm2(x)
        made: Tensor = x + self.down(F.silu(self.gate(h)) * self.up(h))
        return made


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Llama(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, layers: int, width: int, inner: int, vocab: int, length: int) -> None:
        super().__init__()
        heads = width // 128
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width, heads, inner) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocab, bias=False)
        self.register_buffer("cos", torch.empty(length, width // heads))
        self.register_buffer("sin", torch.empty(length, width // heads))

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), labels.flatten())


@dataclass(frozen=True)
class Outcome:
    parameters: int
    cnodes: int
    phase_s: dict[str, float]
    clock_s: float
    processor_s: float
    resident_bytes: int
    activations_unplanned_bytes: int
    activations_bytes: int
    proven_bytes: int
    overhead: float
    planner: str


def processor_s() -> float:
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def resident_bytes() -> int:
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(resource.getrusage(w).ru_maxrss for w in who) * 1024


def measure(
    layers: int, budget: str, planner: str, batch: int, length: int, by_file: bool
) -> Outcome:
    with torch.device("meta"):
        model = Llama(layers, 4096, 11008, 32000, length).to(torch.bfloat16)
        ids = torch.zeros(batch, length, dtype=torch.long)
    source: nn.Module | Path = model
    args: tuple[Tensor, ...] = (ids, ids.clone())
    if by_file:
        source = Path(tempfile.mkdtemp()) / "llama.pt2"
        torch.export.save(torch.export.export(model, args, strict=False), source)
        args = ()
    began, used = time.monotonic(), processor_s()
    plan = remat_compile.plan(
        source,
        args,
        cache=False,
        activation_budget=budget,
        planner=planner,
        costs="roofline",
        device="h200",
        progress=lambda line: print(f"{time.monotonic() - began:6.1f} s  {line}", flush=True),
    )
    assert plan.proven is not None
    return Outcome(
        sum(p.numel() for p in model.parameters()),
        len(plan.graph.cnodes),
        dict(plan.phase_s),
        time.monotonic() - began,
        processor_s() - used,
        resident_bytes(),
        plan.baseline.activation_peak_bytes,
        plan.activation_peak_bytes,
        plan.proven.device_bytes,
        plan.time_s * 1e9 / plan.baseline.time_ns - 1,
        plan.planner,
    )


def main(
    layers: int = 32,
    budget: str = "50%",
    planner: str = "auto",
    batch: int = 4,
    length: int = 2048,
    by_file: Annotated[bool, typer.Option(help="Through a .pt2 file.")] = False,
    check: Annotated[bool, typer.Option(help="Fail over 180 s or 4 GB.")] = False,
    out: Annotated[Path | None, typer.Option("--json", help="Write the figures.")] = None,
) -> None:
    """Plans a Llama of 7 B parameters for an H200, on `meta`."""
    made = measure(layers, budget, planner, batch, length, by_file)
    for name, value in asdict(made).items():
        print(f"{name:28} {value}")
    if out is not None:
        out.write_text(json.dumps(asdict(made)))
    if check and (made.clock_s > LIMIT_S or made.resident_bytes > LIMIT_BYTES):
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
