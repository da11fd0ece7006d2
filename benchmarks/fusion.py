"""Fused plans beside unfused ones and beside `torch.compile` with its activation budget.

    python benchmarks/fusion.py
    python benchmarks/fusion.py --budgets 100%,50% --shares 1.0 --rounds 5
    python benchmarks/fusion.py --model dropout --shares 1.0 --eager-random
    python benchmarks/fusion.py --budgets 100% --shares 1.0 --at-peaks

A GPT-2, a Llama, or a stack of gated layers (with dropout: `dropout`), on the CPU, float32
(`--double`: float64). Budgets that the planner has no plan for are left out with a line. Peaks are
measured, in bytes of the device (`--at-peaks` plans with those of `torch.compile` as budgets);
times are medians of interleaved steps, relative to eager. `differs` is the largest difference of a
gradient or output from eager, over the largest value of that tensor; under `torch.compile` with
dropout it says nothing, but with `--eager-random`, which adds `torch.compile` with the random
numbers of eager. `made in` is with what Inductor kept on disk, and with a cache of plans of its own
that begins empty: the first plan measures the costs that all of them rest on.

Beside other programs, `--clock processor` counts the processor time of the step alone, and
`--least` the least instead of the median. All run in a process whose allocator keeps what is freed
(`--no-keep`: as glibc has it, which gives large blocks back to the system now and then; what that
costs falls on whichever step comes next).
"""

from __future__ import annotations

import atexit
import copy
import ctypes
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from shutil import rmtree
from statistics import median
from tempfile import mkdtemp
from typing import Annotated, Any

import torch
import typer
from _common import gpt2, machine
from _tables import print_table
from torch import Tensor, nn
from zoo.published import Decoder, Heads, LlamaBlock

import remat_compile
from remat_compile import Plan
from remat_compile.backends.torch import PlannedModule
from remat_compile.ir.analysis.liveness import held_bytes
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.schedule import Compute
from remat_compile.ir.semantics.simulate import Sizes
from remat_compile.operators.repeats import largest_difference
from remat_compile.plans.compare.step import StepRunner
from remat_compile.plans.files.store import VARIABLE


class GatedBlock(nn.Module):
    """A gated feed-forward layer after a root-mean-square norm, as Llama has them; no attention,
    so that pointwise operators count."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.scale = nn.Parameter(torch.ones(width))
        self.up, self.gate = (nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.scale
        gated = nn.functional.silu(self.gate(h)) * self.up(h)
        made: Tensor = x + self.dropped(self.down(self.dropped(gated)))
        return made

    def dropped(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, self.dropout) if self.dropout else x


class Gated(nn.Module):
    """A stack of them, with its loss inside."""

    def __init__(self, layers: int, width: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(GatedBlock(width, dropout) for _ in range(layers)))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.blocks(x) - y).square().mean()


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of `mallopt`, malloc.h."""


def keep_what_is_freed() -> None:
    """Lets malloc give nothing back to the system, as the allocators of accelerators do."""
    for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
        ctypes.CDLL(None).mallopt(option, 1 << 30)


@dataclass
class Entry:
    """One way to run the step. `kernels` counts the computations of a plan that run."""

    name: str
    module: nn.Module
    made_s: float
    plan: Plan | None = None
    peak_bytes: int = 0
    difference: float = 0.0

    @property
    def kernels(self) -> str:
        if self.plan is None:
            return ""
        return str(sum(isinstance(step, Compute) for step in self.plan.schedule.steps) - 1)

    @property
    def predicted(self) -> str:
        return "" if self.plan is None else f"{self.plan.time_s * 1e3:.1f}"

    @property
    def proven(self) -> str:
        known = None if self.plan is None else self.plan.proven
        return "" if known is None else f"{known.device_bytes / 1e6:.2f}"


class _Renamed(nn.Module):
    """Runs `call` under the parameter names of `module`."""

    def __init__(self, module: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self._modules = dict(module._modules)
        self._parameters = dict(module._parameters)
        self._buffers = dict(module._buffers)
        object.__setattr__(self, "call", call)

    def forward(self, *args: Any) -> Any:
        return self.call(*args)


def compiled(
    model: nn.Module, args: Sequence[Tensor], share: float, *, eager_random: bool = False
) -> Entry:
    """A copy under `torch.compile` (Inductor) with PyTorch's activation memory budget."""
    import torch._functorch.config as config
    from torch._inductor import config as inductor

    made = copy.deepcopy(model)

    def step(*given: Any) -> Any:
        return made(*given)

    # Dynamo keeps what it compiled by code object, and would run the graph of one share for all.
    step.__code__ = step.__code__.replace(co_name=f"step_{share:g}_{eager_random}")
    start = time.perf_counter()
    random = inductor.patch(fallback_random=eager_random)
    with random, config.patch(activation_memory_budget=share):
        call = torch.compile(step)
        call(*args).backward()
    seconds = time.perf_counter() - start
    for p in made.parameters():
        p.grad = None
    name = f"torch.compile, budget {share:g}" + ", numbers of eager" * eager_random
    return Entry(name, _Renamed(made, call), seconds)


def planned(
    model: nn.Module,
    args: tuple[Tensor, ...],
    budget: str,
    fuse: str,
    planner: str,
    time_limit_s: float,
    *,
    of_device: bool = False,
) -> Entry | None:
    """None where the planner has no plan. A budget of the activations, or `of_device`."""
    start = time.perf_counter()
    try:
        plan = remat_compile.plan(
            model,
            args,
            planner=planner,
            fuse=fuse,
            time_limit_s=time_limit_s,
            budget=budget if of_device else None,
            activation_budget=None if of_device else budget,
        )
    except FBError as refused:
        if refused.diagnostics[0].code != "FB0466":
            raise
        print(f"{budget} {fuse}: {refused.diagnostics[0].message}")
        return None
    module = plan.bind()
    seconds = time.perf_counter() - start
    for warning in plan.warnings:
        print(f"{budget} {fuse}: {warning.message}")
    return Entry(f"ours, {budget}, fuse={fuse}", module, seconds, plan)


def built(
    kind: str, layers: int, width: int, batch: int, seq: int, vocab: int
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The model and its arguments."""
    if kind in ("gated", "dropout"):
        parts = torch.randn(batch, seq, width), torch.randn(batch, seq, width)
        return Gated(layers, width, 0.1 if kind == "dropout" else 0.0), parts
    ids = torch.randint(0, vocab, (batch, seq))
    args = (ids, torch.roll(ids, -1, 1))
    if kind == "llama":
        heads = Heads(4, 2, width // 4)
        blocks = [LlamaBlock(width, heads, 4 * width) for _ in range(layers)]
        return Decoder(blocks, nn.RMSNorm(width), width, vocab), args
    return gpt2(layers=layers, width=width, heads=4, vocab=vocab, seq=seq), args


def processor_s(runner: StepRunner) -> float:
    """Processor seconds of the forward and the backward of one step."""
    total = 0.0

    def timed(_: str, call: Callable[[], Any]) -> Any:
        nonlocal total
        start = time.process_time()
        made = call()
        total += time.process_time() - start
        return made

    runner.run(timed)
    return total


def main(
    budgets: Annotated[str, typer.Option(help="Of the activations.")] = "100%,70%,50%,30%",
    shares: Annotated[str, typer.Option(help="Of torch.compile.")] = "1.0,0.5,0.2",
    planner: str = "dtr",
    kind: Annotated[str, typer.Option("--model", help="gpt, llama, gated or dropout.")] = "gpt",
    layers: int = 4,
    width: int = 128,
    batch: int = 8,
    seq: int = 128,
    vocab: int = 256,
    rounds: int = 9,
    time_limit_s: Annotated[
        float, typer.Option("--time-limit", help="Seconds for a plan: more beside other programs.")
    ] = 120.0,
    ways: Annotated[str, typer.Option(help="Values of `fuse`.")] = "none,auto",
    clock: Annotated[str, typer.Option(help="wall or processor.")] = "wall",
    least: Annotated[bool, typer.Option("--least", help="The least, not the median.")] = False,
    keep: Annotated[bool, typer.Option(help="Let malloc keep what is freed.")] = True,
    double: Annotated[bool, typer.Option("--double", help="float64.")] = False,
    at_peaks: Annotated[
        bool, typer.Option("--at-peaks", help="Plans at the peaks of torch.compile too.")
    ] = False,
    eager_random: Annotated[
        bool, typer.Option("--eager-random", help="torch.compile with eager's random numbers too.")
    ] = False,
) -> None:
    """Builds all, then times them in turn."""
    os.environ[VARIABLE] = folder = mkdtemp()
    atexit.register(rmtree, folder, ignore_errors=True)
    print(machine())
    if keep:
        keep_what_is_freed()
    torch.manual_seed(0)
    model, args = built(kind, layers, width, batch, seq, vocab)
    if double:
        model.double()
        args = tuple(a.double() if a.is_floating_point() else a for a in args)
    plans = [
        planned(model, args, budget, fuse, planner, time_limit_s)
        for budget in budgets.split(",")
        for fuse in ways.split(",")
    ]
    entries = [entry for entry in plans if entry is not None]
    first = entries[0].plan
    assert first is not None
    assert first._exported is not None
    exported, binding = first._exported, first.program.binding
    entries += [
        compiled(model, args, float(share), eager_random=numbers)
        for share in shares.split(",")
        if share
        for numbers in ((False, True) if eager_random else (False,))
    ]
    entries.insert(0, Entry("eager", exported.original, 0.0))
    runners: list[StepRunner] = []
    held = held_bytes(first.program, "device", Sizes.of(first.program))
    wanted = StepRunner(exported.original, exported, binding).run()

    def measured(entry: Entry) -> None:
        runner = StepRunner(entry.module, exported, binding)
        runners.append(runner)
        entry.difference = largest_difference(runner.run(), wanted)
        if isinstance(entry.module, PlannedModule):
            entry.peak_bytes = runner.planned_peak_bytes()
        else:
            entry.peak_bytes = held + runner.peak_bytes()

    for entry in entries:
        measured(entry)
    for theirs in [entry for entry in entries[1:] if entry.plan is None and at_peaks]:
        most = f"{theirs.peak_bytes}B"
        made = planned(model, args, most, "auto", planner, time_limit_s, of_device=True)
        if made is not None:
            measured(made)
            entries.append(made)
    timed = processor_s if clock == "processor" else StepRunner.time_s
    times = [[timed(runner) for runner in runners] for _ in range(rounds)]
    over = min if least else median
    rows = []
    for index, entry in enumerate(entries):
        own_s = over([row[index] for row in times])
        ratios = [row[index] / row[0] for row in times]
        ratio = own_s / min(row[0] for row in times) if least else median(ratios)
        rows.append(
            (
                entry.name,
                f"{entry.peak_bytes / 1e6:.2f}",
                entry.proven,
                f"{ratio:.2f} ×",
                f"{own_s * 1e3:.1f}",
                entry.predicted,
                entry.kernels,
                f"{entry.difference:.1e}",
                f"{entry.made_s:.0f}",
            )
        )
    head = ("", "peak MB", "proven", "time", "ms", "predicted", "kernels", "differs", "made in s")
    print_table(head, rows)


if __name__ == "__main__":
    typer.run(main)
