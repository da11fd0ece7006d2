"""Our plans beside what a user would pick: bytes and time of one step, and whether it is right.

    python benchmarks/compare.py -o compared.md --html compared.html
    python benchmarks/compare.py --layers 2 --width 32 --seq 32 --rounds 1 --no-jax

A GPT-2 on this machine. In PyTorch: ordinary autograd, `torch.utils.checkpoint` around every block
and around every √L blocks, `save_on_cpu`, `torch.compile` with PyTorch's activation memory budget
(its partitioner, with eager's kernels), and our planners under shares of the activations. Bytes are
those of a step over what the caller holds, by one instrument for all; times are medians of
interleaved steps (of the processor with --processor-time, for a machine that does other things).
In JAX: the same shape with `jax.checkpoint` around every block and its policies; bytes are XLA's
temporary ones. Gradients are held against ordinary autograd, in each framework.
"""

from __future__ import annotations

import copy
import html
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from _common import gpt2, interleave, machine
from executed import budgeted_step, checkpointed
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import remat_compile
from remat_compile.capture.torch import export
from remat_compile.ir.diagnostics import FBError
from remat_compile.plans.budget import format_bytes
from remat_compile.plans.compare.step import StepRunner

SHARES = (0.7, 0.5, 0.3)
"""Of PyTorch's activation memory budget, and of the activations for our planners."""
POLICIES = ("dots_with_no_batch_dims_saveable", "dots_saveable")
KEPT = {"xla_disable_hlo_passes": "cse_barrier_expander"}
"""Without it XLA:CPU drops the barriers of `jax.checkpoint`, and merges what runs again."""
GRADIENTS_ALIKE = 1e-3
"""The largest difference of gradients, relative to the largest value of one, that another order
of float32 sums may make."""


@dataclass(frozen=True)
class Row:
    """`bytes` of a step, its median time over that of ordinary autograd (or of JAX without
    checkpoints), seconds to plan or compile it, and the largest difference of a gradient (0: equal
    bits), relative to its largest value."""

    group: str
    name: str
    bytes: int
    time_s: float
    time: float
    plan_s: float
    difference: float

    @property
    def is_right(self) -> bool:
        return self.difference <= GRADIENTS_ALIKE


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    heads: int
    vocab: int
    seq: int
    batch: int

    def __str__(self) -> str:
        return (
            f"GPT-2 of {self.layers} layers, width {self.width}, {self.vocab} tokens, "
            f"batch {self.batch} × {self.seq}"
        )


Clock = Callable[[], float]
Contender = tuple[str, Callable[[], nn.Module]]


def torch_rows(
    shape: Shape, planners: Sequence[str], limit_s: float, rounds: int, clock: Clock
) -> list[Row]:
    """Every way in PyTorch. One that fails is named and left out."""
    model = gpt2(**{k: v for k, v in asdict(shape).items() if k != "batch"})
    ids = torch.randint(0, shape.vocab, (shape.batch, shape.seq))
    args = (ids, torch.roll(ids, -1, 1))
    exported = export(model, args)
    graph = remat_compile.plan(model, args, planner="store-all")
    runners: dict[str, StepRunner] = {}
    planned_s: dict[str, float] = {}
    for name, make in _contenders(model, args, planners, limit_s):
        begun = time.perf_counter()
        try:
            runners[name] = StepRunner(make(), exported, graph.program.binding)
            planned_s[name] = time.perf_counter() - begun
            runners[name].run()
        except FBError as error:
            print(f"{name}: {error.diagnostics[0].message}")
            runners.pop(name, None)
    expected = runners["ordinary autograd"].run()
    steps = {name: partial(_step, runner) for name, runner in runners.items()}
    times = interleave(steps, rounds=rounds, warmup=1, clock=clock)
    base_s = median(times["ordinary autograd"])
    return [
        Row(
            "PyTorch",
            name,
            runner.peak_bytes(),
            median(times[name]),
            median(times[name]) / base_s,
            planned_s[name],
            _difference(runner.run(), expected),
        )
        for name, runner in runners.items()
    ]


def _step(runner: StepRunner) -> None:
    runner.run()


def _contenders(
    model: nn.Module, args: tuple[Tensor, ...], planners: Sequence[str], limit_s: float
) -> Iterable[Contender]:
    yield "ordinary autograd", lambda: model
    yield "checkpoint per block", lambda: checkpointed(model)
    yield "checkpoint per √L blocks", lambda: _segments(model)
    yield "save_on_cpu", lambda: _SavedOnHost(copy.deepcopy(model))
    for share in SHARES:
        name = f"torch.compile, activation_memory_budget={share}"
        yield name, partial(budgeted_step, model, args, share)
    for planner in planners:
        for share in SHARES:
            plan = partial(_planned, model, args, planner, f"{share:.0%}", limit_s)
            yield f"remat-compile {planner}, {share:.0%} of activations", plan


def _planned(
    model: nn.Module, args: tuple[Tensor, ...], planner: str, budget: str, limit_s: float
) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return remat_compile.compile(
            copy.deepcopy(model),
            args,
            activation_budget=budget,
            planner=planner,
            time_limit_s=limit_s,
        )


def _segments(model: nn.Module) -> nn.Module:
    """A copy with every √L blocks, one after another, under one checkpoint."""
    made = copy.deepcopy(model)
    blocks = list(made.blocks)  # type: ignore[arg-type]
    size = math.isqrt(len(blocks)) or 1
    parts = [_Segment(blocks[i : i + size]) for i in range(0, len(blocks), size)]
    # The parameters keep their names; only the loop over the blocks goes over the segments.
    made.forward = partial(_forward_in_segments, made, parts)  # type: ignore[method-assign]
    return made


class _Segment:
    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self.blocks = blocks

    def __call__(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def _forward_in_segments(made: Any, parts: Sequence[_Segment], ids: Tensor, targets: Tensor) -> Any:
    x = made.wte(ids) + made.wpe(torch.arange(ids.shape[1], device=ids.device))
    for part in parts:
        x = checkpoint(part, x, use_reentrant=False)
    logits = made.head(made.ln_f(x))
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class _SavedOnHost(nn.Module):
    """Saved tensors wait on the host, under the parameter names of `module`."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._modules = dict(module._modules)
        self._parameters = dict(module._parameters)
        object.__setattr__(self, "call", module)

    def forward(self, *args: Any) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return self.call(*args)


def _difference(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    if actual.keys() != expected.keys():
        return float("inf")
    worst = 0.0
    for name, wanted in expected.items():
        scale = float(wanted.detach().abs().max()) or 1.0
        worst = max(worst, float((actual[name].detach() - wanted.detach()).abs().max()) / scale)
    return worst


def jax_rows(shape: Shape, rounds: int, clock: Clock) -> list[Row]:
    """The same shape in JAX, with what `jax.checkpoint` offers around each block."""
    here = Path(__file__).parent
    # `jax.py` lies beside this file.
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != here]
    import jax
    import jax.numpy as jnp

    policies = jax.checkpoint_policies
    wraps: dict[str, Callable[[Any], Any]] = {
        "no checkpoint": lambda f: f,
        "jax.checkpoint per block": jax.checkpoint,
    }
    for name in POLICIES:
        wraps[f"jax.checkpoint, {name}"] = partial(jax.checkpoint, policy=getattr(policies, name))
    weights, ids, targets = _jax_weights(jax, jnp, shape)
    made: dict[str, Any] = {}
    plan_s: dict[str, float] = {}
    for name, wrap in wraps.items():
        for suffix, options in (("", {}), (", barriers kept", KEPT)):
            if options and name == "no checkpoint":
                continue
            begun = time.perf_counter()
            step = jax.jit(jax.value_and_grad(partial(_jax_loss, jax, jnp, shape, wrap)))
            lowered = step.lower(weights, ids, targets)
            made[name + suffix] = lowered.compile(compiler_options=options)
            plan_s[name + suffix] = time.perf_counter() - begun
    expected = made["no checkpoint"](weights, ids, targets)
    runs = {
        name: lambda step=step: jax.block_until_ready(step(weights, ids, targets))
        for name, step in made.items()
    }
    times = interleave(runs, rounds=rounds, warmup=1, clock=clock)
    base_s = median(times["no checkpoint"])

    def difference(actual: Any) -> float:
        pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
        return max(float(abs(a - b).max() / (abs(b).max() + 1e-30)) for a, b in pairs)

    return [
        Row(
            "JAX",
            name,
            int(step.memory_analysis().temp_size_in_bytes),
            median(times[name]),
            median(times[name]) / base_s,
            plan_s[name],
            difference(step(weights, ids, targets)),
        )
        for name, step in made.items()
    ]


def _jax_weights(jax: Any, jnp: Any, shape: Shape) -> tuple[Any, Any, Any]:
    width, keys = shape.width, iter(jax.random.split(jax.random.key(0), 8 * shape.layers + 4))

    def normal(*size: int) -> Any:
        return 0.02 * jax.random.normal(next(keys), size)

    blocks = [
        {
            "qkv": normal(width, 3 * width),
            "proj": normal(width, width),
            "up": normal(width, 4 * width),
            "down": normal(4 * width, width),
        }
        for _ in range(shape.layers)
    ]
    weights = {"wte": normal(shape.vocab, width), "wpe": normal(shape.seq, width), "blocks": blocks}
    ids = jax.random.randint(next(keys), (shape.batch, shape.seq), 0, shape.vocab)
    return weights, ids, jnp.roll(ids, -1, 1)


def _jax_loss(
    jax: Any, jnp: Any, shape: Shape, wrap: Any, weights: Any, ids: Any, targets: Any
) -> Any:
    def norm(x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)

    def block(w: Any, x: Any) -> Any:
        parts = jnp.split(norm(x) @ w["qkv"], 3, -1)
        q, k, v = (p.reshape(*x.shape[:2], shape.heads, -1) for p in parts)
        y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + y.reshape(x.shape) @ w["proj"]
        return x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"]

    x = weights["wte"][ids] + weights["wpe"]
    for w in weights["blocks"]:
        x = wrap(block)(w, x)
    scores = jax.nn.log_softmax(norm(x) @ weights["wte"].T)
    return -jnp.take_along_axis(scores, targets[..., None], -1).mean()


def markdown(rows: Sequence[Row], shape: Shape, day: str) -> str:
    parts = [f"Measured on {day}: {shape}; {machine()}.\n"]
    for group in dict.fromkeys(row.group for row in rows):
        what = "temporary bytes" if group == "JAX" else "bytes of a step"
        parts.append(f"| {group} | {what} | time | planned or compiled in | gradients |")
        parts.append("|---|--:|--:|--:|---|")
        parts += [
            f"| {r.name} | {format_bytes(r.bytes)} | {r.time:.2f} × | {r.plan_s:.1f} s | "
            f"{_gradients(r)} |"
            for r in rows
            if r.group == group
        ]
        parts.append("")
    return "\n".join(parts)


def _gradients(row: Row) -> str:
    if row.difference == 0:
        return "bit-equal"
    return f"within {row.difference:.0e}" if row.is_right else f"DIFFER by {row.difference:.0e}"


def as_html(rows: Sequence[Row], shape: Shape, day: str) -> str:
    """One page that needs nothing else; drawn where the extra [report] is installed."""
    from remat_compile.report.document import chart, document, table

    values = [{"group": r.group, "name": r.name, "bytes": r.bytes, "time": r.time} for r in rows]
    x = {"field": "bytes", "type": "quantitative", "axis": {"format": "~s"}}
    y = {"field": "time", "type": "quantitative", "scale": {"zero": False}}
    spec = {
        "width": "container",
        "height": 380,
        "data": {"values": values},
        "mark": {"type": "point", "size": 90, "filled": True, "tooltip": True},
        "encoding": {"x": x, "y": y, "color": {"field": "name", "type": "nominal"}},
        "transform": [{"filter": "datum.group == 'PyTorch'"}],
    }
    cells = [
        (r.group, r.name, r.bytes, f"{r.time:.3f}", f"{r.plan_s:.1f} s", _gradients(r))
        for r in rows
    ]
    head = ("", "", "bytes", "time, times", "planned in", "gradients")
    body = (
        f"<h1>Tools compared</h1><main><p>{html.escape(f'{day}: {shape}; {machine()}')}</p>"
        + chart("compared", "Time of a step over its bytes, a point for each tool")
        + table("Every tool", head, cells)
        + "</main>"
    )
    return document("Tools compared", body, {"charts": {"compared": spec}})


def main(
    layers: int = 6,
    width: int = 128,
    heads: int = 4,
    vocab: int = 512,
    seq: int = 128,
    batch: int = 4,
    planners: Annotated[str, typer.Option(help="With commas between.")] = "auto,dtr",
    time_limit: Annotated[float, typer.Option(help="Seconds for each plan.")] = 10.0,
    rounds: int = 7,
    processor_time: Annotated[
        bool, typer.Option("--processor-time", help="Time the processor and not the clock.")
    ] = False,
    with_jax: Annotated[bool, typer.Option("--jax/--no-jax")] = True,
    out: Annotated[Path | None, typer.Option("-o", help="Markdown.")] = None,
    page: Annotated[Path | None, typer.Option("--html", help="A page.")] = None,
    figures: Annotated[Path | None, typer.Option("--json", help="The figures.")] = None,
) -> None:
    """Runs every tool; exit code 1 where the gradients of one differ."""
    shape, day = Shape(layers, width, heads, vocab, seq, batch), date.today().isoformat()
    clock = time.process_time if processor_time else time.perf_counter
    rows = torch_rows(shape, planners.split(",") if planners else (), time_limit, rounds, clock)
    if with_jax:
        rows += jax_rows(shape, rounds, clock)
    text = markdown(rows, shape, day)
    print(text)
    if out is not None:
        out.write_text(text, encoding="utf-8")
    if page is not None:
        page.write_text(as_html(rows, shape, day), encoding="utf-8")
    if figures is not None:
        data = {"machine": machine(), "day": day, "shape": asdict(shape)}
        figures.write_text(json.dumps(data | {"rows": [asdict(r) for r in rows]}, indent=1))
    if not all(row.is_right for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
