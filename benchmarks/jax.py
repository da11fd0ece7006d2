"""Plans in JAX beside hand-written code: emission, compilation, step time, bytes.

    python benchmarks/jax.py                     # GPT-2 shape: 12 layers of width 128
    python benchmarks/jax.py --width 256 --seq 128 --json out.json
    python benchmarks/jax.py --check             # exit code 1 where emission takes over 5 s
    python benchmarks/jax.py bytes               # XLA's bytes along the budget, ten models
    python benchmarks/jax.py regions --check     # predicted bytes with and without regions

`hand` is the same model written in JAX, `hand, checkpoint` has a `jax.checkpoint` around
each block. Bytes are XLA's temporary bytes; all are compiled with the options that keep
recomputation. Times are of this machine, medians of interleaved rounds. `bytes` ends with
exit code 1 where XLA's bytes rise as the budget falls, or are not as predicted; `regions --check`
where a ratio is beyond 0.9 to 1.1.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

# This file would shadow the package of the same name.
sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != Path(__file__).parent]

import jax
import jax.numpy as jnp
import typer

sys.path.append(str(Path(__file__).parent))

from _common import gpt2, interleave, machine
from _jax_bytes import MODELS, report, runnable
from _jax_regions import report as report_regions
from _tables import print_table

import remat_compile
from remat_compile.backends.jax.kernels import Shapes, XlaPrice
from remat_compile.backends.jax.observe.predict import predicted_temp_bytes

LIMIT_S = 5.0
app = typer.Typer(add_completion=False)
Params = dict[str, Any]


def hand_written(layers: int, heads: int, checkpoint: bool) -> Callable[..., Any]:
    """Loss and gradients of `examples/gpt2_onnx.py`'s model, by its parameter names."""

    def norm(p: Params, name: str, x: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
        return (x - mean) * scale * p[f"{name}.weight"] + p[f"{name}.bias"]

    def linear(p: Params, name: str, x: Any) -> Any:
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    def block(p: Params, x: Any) -> Any:
        batch, length, width = x.shape
        qkv = linear(p, "qkv", norm(p, "ln_1", x)).reshape(batch, length, 3, heads, -1)
        q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
        scores = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
        seen = jnp.tril(jnp.ones((length, length), bool))
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1)
        out = (weights @ v).transpose(0, 2, 1, 3).reshape(batch, length, width)
        x = x + linear(p, "proj", out)
        return x + linear(p, "down", jax.nn.gelu(linear(p, "up", norm(p, "ln_2", x))))

    def loss(p: Params, ids: Any, target: Any) -> Any:
        x = p["wte.weight"][ids] + p["wpe.weight"][: ids.shape[1]]
        run = jax.checkpoint(block) if checkpoint else block
        for i in range(layers):
            prefix = f"blocks.{i}."
            own = {n.removeprefix(prefix): a for n, a in p.items() if n.startswith(prefix)}
            x = run(own, x)
        logits = norm(p, "ln_f", x) @ p["wte.weight"].T
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), target[..., None], -1)
        return -picked.mean()

    return jax.value_and_grad(loss)


@dataclass(frozen=True)
class Measured:
    """Seconds and bytes of one way to run the step; None where it does not apply."""

    name: str
    emit_s: float | None
    compile_s: float
    predicted_bytes: int | None
    temp_bytes: int
    run: Callable[[], None]


def measure(
    name: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    options: dict[str, str],
    emit_s: float | None = None,
    predicted: int | None = None,
) -> Measured:
    start = time.perf_counter()
    compiled = jax.jit(function).lower(*arguments).compile(compiler_options=options)
    compile_s = time.perf_counter() - start
    temp_bytes = compiled.memory_analysis().temp_size_in_bytes
    return Measured(
        name,
        emit_s,
        compile_s,
        predicted,
        temp_bytes,
        lambda: jax.block_until_ready(compiled(*arguments)) and None,
    )


def planned(model: Any, args: tuple[Any, ...], planner: str, budget: str | None) -> Measured:
    plan = remat_compile.plan(
        model, args, planner=planner, activation_budget=budget, costs="roofline", device="cpu"
    )
    start = time.process_time()
    plan.emit("jax")
    emit_s = time.process_time() - start
    step = remat_compile.jax_step(plan)
    arguments = (step.params, *(jnp.asarray(a.numpy()) for a in args))
    figures = XlaPrice(Shapes(plan.program)).figures()
    predicted = predicted_temp_bytes(plan.program, plan.schedule, figures=figures)
    name = f"{planner} {budget or ''}".strip()
    return measure(name, step, arguments, step.compiler_options, emit_s, predicted)


@app.command("bytes")
def bytes_(
    model: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(MODELS)}.")] = None,
) -> None:
    """XLA's temporary bytes beside the predicted ones as the budget falls."""
    print(machine(), "jax", jax.__version__)
    if not report(tuple(model or runnable())):
        raise typer.Exit(1)


@app.command()
def regions(
    model: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(MODELS)}.")] = None,
    check: Annotated[bool, typer.Option(help="Fail beyond 0.9 to 1.1.")] = False,
    annotated: Annotated[bool, typer.Option(help="With the form of jax.checkpoint.")] = True,
) -> None:
    """XLA's temporary bytes beside those predicted at three budgets, with and without regions."""
    print(machine(), "jax", jax.__version__)
    if not report_regions(tuple(model or runnable()), annotated=annotated) and check:
        raise typer.Exit(1)


@app.callback(invoke_without_command=True)
def main(
    context: typer.Context,
    layers: int = 12,
    width: int = 128,
    heads: int = 4,
    vocab: int = 512,
    seq: int = 64,
    batch: int = 4,
    rounds: int = 5,
    check: Annotated[bool, typer.Option(help=f"Fail above {LIMIT_S:.0f} s of emission.")] = False,
    out: Annotated[Path | None, typer.Option("--json", help="Write the figures.")] = None,
) -> None:
    """Compares planned steps with hand-written ones."""
    if context.invoked_subcommand is not None:
        return
    import torch

    print(machine(), "jax", jax.__version__)
    model = gpt2(layers=layers, width=width, heads=heads, vocab=vocab, seq=seq)
    args = tuple(torch.randint(0, vocab, (batch, seq)) for _ in range(2))
    made = [
        planned(model, args, "store-all", None),
        planned(model, args, f"periodic{{segments={layers}}}", None),
        planned(model, args, "dtr", "range:0.5"),
    ]
    step = remat_compile.jax_step(
        remat_compile.plan(model, args, planner="store-all", costs="roofline", device="cpu")
    )
    assert step.params is not None
    arrays = (step.params, *(jnp.asarray(a.numpy()) for a in args))
    for name, checkpoint in (("hand", False), ("hand, checkpoint", True)):
        function = hand_written(layers, heads, checkpoint)
        assert_same(function(*arrays)[0], step(*arrays)[0])
        made.append(measure(name, function, arrays, step.compiler_options))
    times = interleave({m.name: m.run for m in made}, rounds=rounds, warmup=1)
    rows = [row(m, statistics.median(times[m.name])) for m in made]
    head = ("", "emit s (cpu)", "compile s", "predicted MiB", "XLA temp MiB", "step ms")
    print_table(head, rows)
    if out is not None:
        figures = [dict(zip(("name", *head[1:]), r, strict=True)) for r in rows]
        out.write_text(json.dumps(figures, indent=2) + "\n")
    slow = max(m.emit_s or 0.0 for m in made)
    if check and slow > LIMIT_S:
        print(f"emission takes {slow:.1f} s, more than {LIMIT_S:.0f}")
        raise typer.Exit(1)


def assert_same(ours: Any, theirs: Any) -> None:
    assert abs(float(ours) - float(theirs)) < 1e-4, (ours, theirs)


def row(m: Measured, step_s: float) -> tuple[str, ...]:
    return (
        m.name,
        "" if m.emit_s is None else f"{m.emit_s:.2f}",
        f"{m.compile_s:.1f}",
        "" if m.predicted_bytes is None else f"{m.predicted_bytes / 2**20:.1f}",
        f"{m.temp_bytes / 2**20:.1f}",
        f"{step_s * 1e3:.1f}",
    )


if __name__ == "__main__":
    app()
