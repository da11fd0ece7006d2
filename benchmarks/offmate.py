"""Parameters, gradients, optimizer states and activations in one plan: predicted times.

    python benchmarks/offmate.py              # Llama-2 7B under 10 GiB, against its parts
    python benchmarks/offmate.py --layers 8 --host 0 --budgets 5.5,6,7,8,10,12,16,20,26,40
    python benchmarks/offmate.py --captured --device rtx-4090 --memory 23.5 --time-limit 400
    python benchmarks/offmate.py --captured --device rtx-4090 --time-limit 45 --budgets \
        12,14,16,18,20,22,23.5,28,40,60

With `--captured` the graph of Llama-2 7B in bfloat16 with AdamW is captured on `meta`, priced by
roofline, planned and proven (batch 10 x 512).

Else no graph is captured: blocks have the sizes and operations of the model's shape, and times by
the device's rates. The compute rate is the one that gives the 10.9 s with unlimited memory which
Zhao 2024 (section 4.8) extrapolated.
"""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Annotated

import torch
import typer
from seven_billion import Llama

import remat_compile
from remat_compile.costs import load_device
from remat_compile.ir.program import Budget, Program, Target
from remat_compile.planners import Feasible, Optimal, parse_planner
from remat_compile.planners.offmate.blocks.clock import time_ns
from remat_compile.planners.offmate.blocks.comparators import COMPARATORS
from remat_compile.planners.offmate.blocks.courses import bytes_T, host_bytes
from remat_compile.planners.offmate.blocks.instance import (
    Group,
    Option,
    Rates,
    StepInstance,
    Tensor,
)
from remat_compile.planners.offmate.blocks.solve import StepAnswer, plan_step
from remat_compile.plans.budget import Baseline
from remat_compile.verifier import ProvenPlan, verify

FLOPS = 9.56e12
"""Per second, of products: 0.75 of the device's peak."""
BYTES_PER_S = 360e9
WORD = 4


def llama(
    target: Target,
    *,
    layers: int = 32,
    width: int = 4096,
    hidden: int = 11008,
    vocabulary: int = 32000,
    batch: int = 4,
    length: int = 512,
    rates: Rates,
) -> StepInstance:
    """The step of a decoder of Llama-2's shape in float32: embedding, layers, head with loss."""
    tokens = batch * length
    state, wide = tokens * width * WORD, tokens * hidden * WORD
    scores = 32 * batch * length * length * WORD

    def product(name: str, inner: int, size: int) -> tuple[str, float, float]:
        return name, 2 * inner * (size / WORD) / FLOPS, size

    def pointwise(name: str, size: int) -> tuple[str, float, float]:
        return name, 3 * size / BYTES_PER_S, size

    norm = [pointwise("norm", state)] * 3
    turn = [pointwise("rotary", state)] * 8
    layer = [
        *norm,
        *[product(f"{x}_proj", width, state) for x in "qkv"],
        *turn,
        product("scores", width // 32, scores),
        pointwise("softmax", scores),
        product("mix", length, state),
        pointwise("contiguous", state),
        product("o_proj", width, state),
        *norm,
        product("gate_proj", width, wide),
        product("up_proj", width, wide),
        pointwise("silu", wide),
        pointwise("times", wide),
        product("down_proj", hidden, state),
    ]
    logits = tokens * vocabulary * WORD
    head = [*norm, product("head", width, logits), *[pointwise("loss", logits)] * 2]
    options = [
        (_embedding(state),),
        *[_options(layer, target, sends=i < layers - 1) for i in range(layers)],
        _options(head, target, sends=False),
    ]
    table = width * vocabulary * WORD
    groups = [Group((Tensor("embedding", table, table),), (0,))]
    for i in range(1, layers + 1):
        square, oblong = width * width * WORD, width * hidden * WORD
        sizes = [square] * 4 + [oblong] * 3
        tensors = tuple(Tensor(f"w{i}.{k}", size, size) for k, size in enumerate(sizes))
        groups.append(Group(tensors, (i,)))
    groups.append(Group((Tensor("head", table, table),), (layers + 1,)))
    blocks = layers + 2
    inputs = [state * min(i + 1, blocks) for i in range(blocks)]
    return StepInstance(
        tuple(options),
        tuple(groups),
        (*inputs, *(n + state for n in reversed(inputs))),
        target,
        rates,
    )


def _embedding(state: int) -> Option:
    takes = round(3 * state / BYTES_PER_S * 1e9)
    return Option("keep", takes, takes, 0, state, state)


def _options(
    results: list[tuple[str, float, float]], target: Target, *, sends: bool
) -> tuple[Option, ...]:
    """The three options of Zhao 2024, 4.4: the backward of an operation takes twice its time."""
    total = sum(size for _, _, size in results)
    forward = sum(seconds for _, seconds, _ in results)
    largest = max(size for _, _, size in results)
    link = (target.d2h_bytes_per_s or 1, target.h2d_bytes_per_s or 1)
    cheap = [s for s in results if s[1] < s[2] / link[0] + s[2] / link[1]]
    # What leaves; the last result is the next block's input.
    now, sent = 0.0, []
    for name, seconds, size in results[:-1]:
        now += seconds
        if (name, seconds, size) not in cheap:
            sent.append((round(now * 1e9), int(size)))
    again = sum(seconds for _, seconds, _ in cheap)

    def option(
        name: str, more: float, saved: float, fwd: float, pieces: tuple[tuple[int, int], ...] = ()
    ) -> Option:
        nanoseconds = round(forward * 1e9), round((2 * forward + more) * 1e9)
        return Option(name, *nanoseconds, int(saved), int(fwd), int(total + 2 * largest), pieces)

    kept = sum(size for _, size in sent)
    ways = [option("keep", 0, total, total), option("recompute", forward, 0, 3 * largest)]
    if sends and sent:
        ways.append(option("offload", again, 0, kept + 3 * largest, tuple(sent)))
    return tuple(ways)


GIB = 1 << 30
RATES = Rates(16.6e9, 1.1e9, 2.0, 50_000_000)
"""Zhao 2024, table 4.2 and 4.8.2: bytes of gradient a second on the device and on the CPU, Adam's
two states, 50 ms of the CPU for each step."""


def target_of(device: str, memory_gib: float, host_bytes: int | None) -> Target:
    """A device's link, with another memory."""
    known = load_device(device)
    return Target(
        device,
        int(memory_gib * GIB),
        known.granularity_bytes,
        host_bytes,
        known.d2h_bytes_per_s,
        known.h2d_bytes_per_s,
    )


def without_sending(instance: StepInstance) -> StepInstance:
    """The same without options that send activations."""
    rows = (tuple(o for o in row if not o.sent) for row in instance.options_L)
    return replace(instance, options_L=tuple(rows))


def _row(name: str, instance: StepInstance, answer: StepAnswer, seconds: float) -> str:
    base = instance.unlimited_ns
    if answer.plan is None:
        return f"| {name} | – | – | – | – | – | {seconds:.0f} |"
    device = max(bytes_T(instance, answer.plan)) / GIB
    host = host_bytes(instance, answer.plan) / 1e9
    return (
        f"| {name} | {answer.time_ns / 1e9:.2f} | {answer.time_ns / base:.3f} | "
        f"{answer.lower_bound_ns / base:.3f} | {device:.2f} | {host:.1f} | {seconds:.0f} |"
    )


def headline(instance: StepInstance, time_limit: float) -> None:
    print(f"unlimited memory: {instance.unlimited_ns / 1e9:.2f} s\n")
    print("| plan | s | ratio | bound | device GiB | host GB | planned in s |")
    print("|" + "---|" * 7)
    cases = {
        "offmate": instance,
        "without CPU updates": replace(instance, cpu_updates=False),
        "without activation offload": without_sending(instance),
        "without both": without_sending(replace(instance, cpu_updates=False)),
    }
    for name, case in cases.items():
        began = monotonic()
        answer = plan_step(case, time_limit_s=time_limit)
        print(_row(name, instance, answer, monotonic() - began), flush=True)


def budgets(instance: StepInstance, several: str, time_limit: float) -> None:
    base, names = instance.unlimited_ns, list(COMPARATORS)
    print("| GiB | bound | offmate | " + " | ".join(names) + " | planned in s |")
    print("|" + "---|" * (len(names) + 4))
    for gib in map(float, several.split(",")):
        limited = instance.under(int(gib * GIB))
        plans = [comparator(limited) for comparator in COMPARATORS.values()]
        cells = ["–" if p is None else f"{time_ns(limited, p) / base:.3f}" for p in plans]
        began = monotonic()
        answer = plan_step(limited, time_limit_s=time_limit)
        seconds = monotonic() - began
        ours = "–" if answer.plan is None else f"{answer.time_ns / base:.3f}"
        bound = f"{answer.lower_bound_ns / base:.3f}"
        print(
            f"| {gib:g} | {bound} | {ours} | " + " | ".join(cells) + f" | {seconds:.0f} |",
            flush=True,
        )


PLANNERS = (
    "offmate",
    "zero-offload",
    "zero-infinity",
    "paged-states",
    "in-backward{of=dtr{rounds=0}}",
)


def program_of(device: str, layers: int, batch: int, length: int) -> tuple[Program, Baseline]:
    """The training step of Llama-2's shape in bfloat16, and what it takes with nothing planned."""
    with torch.device("meta"):
        model = Llama(layers, 4096, 11008, 32000, length).to(torch.bfloat16)
        ids = torch.zeros(batch, length, dtype=torch.long)
    with TemporaryDirectory() as folder:
        # The unplanned step fits no such device, so budgets alone bound the plans.
        file = Path(folder) / f"{device}.toml"
        text = resources.files("remat_compile.costs").joinpath("devices", file.name).read_text()
        file.write_text(re.sub(r'(?m)^memory = "[^"]*"', 'memory = "1TiB"', text))
        plan = remat_compile.plan(
            model,
            (ids, ids.clone()),
            optimizer=torch.optim.AdamW(model.parameters()),
            cache=False,
            budget="1TiB",
            planner="in-backward{of=store-all}",
            costs="roofline",
            device=str(file),
        )
    return replace(plan.program, schedules=(), proven=()), plan.baseline


def captured(program: Program, base: Baseline, budgets: list[float], time_limit: float) -> None:
    """Each planner's time by that with unlimited memory. Plans of `offmate` are proven."""
    cnodes, peak = len(program.graph.cnodes), base.peak_bytes / GIB
    print(f"unlimited: {base.time_ns / 1e9:.3f} s, {peak:.1f} GiB, {cnodes} computations\n")
    print(f"| GiB | bound | {' | '.join(PLANNERS)} | host GiB | planned, proven in s |")
    print("|" + "---|" * (len(PLANNERS) + 4))
    for gib in budgets:
        budget = Budget(int(gib * GIB))
        cells, bound, host, seconds = list[str](), "–", "–", ""
        for name in PLANNERS:
            began = monotonic()
            made = parse_planner(name).plan(program, budget, time_limit_s=time_limit)
            if not isinstance(made, Optimal | Feasible):
                cells.append("–")
                continue
            cells.append(f"{made.time_ns / base.time_ns:.3f}")
            if name == "offmate":
                seconds = f"{monotonic() - began:.0f}"
                bound = f"{(made.lower_bound_ns or 0) / base.time_ns:.3f}"
                began = monotonic()
                proof = verify(program, made.schedule, (budget,), time_limit_s=600)
                if not isinstance(proof, ProvenPlan):
                    raise SystemExit(f"not proven: {proof}")
                seconds += f", {monotonic() - began:.0f}"
                host = f"{(proof.proven.host_bytes or 0) / GIB:.1f}"
        print(f"| {gib:g} | {bound} | {' | '.join(cells)} | {host} | {seconds} |", flush=True)


def main(
    several: Annotated[str, typer.Option("--budgets", help="In GiB, beside the comparators.")] = "",
    device: Annotated[str, typer.Option()] = "rtx-3060-12gb",
    memory: Annotated[float, typer.Option(help="GiB.")] = 10.0,
    host: Annotated[float, typer.Option(help="GB; 0 for no bound.")] = 106.0,
    layers: Annotated[int, typer.Option()] = 32,
    graph: Annotated[bool, typer.Option("--captured", help="From a captured graph.")] = False,
    batch: Annotated[int, typer.Option(help="With --captured.")] = 10,
    length: Annotated[int, typer.Option(help="With --captured.")] = 512,
    time_limit: Annotated[float, typer.Option(help="Seconds for each plan.")] = 600.0,
) -> None:
    """Prints a table in Markdown."""
    if graph:
        program, base = program_of(device, layers, batch, length)
        budgets_gib = [float(gib) for gib in several.split(",")] if several else [memory]
        captured(program, base, budgets_gib, time_limit)
        return
    target = target_of(device, memory, int(host * 1e9) or None)
    instance = llama(target, layers=layers, rates=RATES)
    if several:
        budgets(instance, several, time_limit)
    else:
        headline(instance, time_limit)


if __name__ == "__main__":
    typer.run(main)
