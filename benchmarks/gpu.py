"""Plans on a GPU: bits, peaks and times that are measured there, beside those predicted and proven.

    python benchmarks/gpu.py            # every model, recompute and copies
    python benchmarks/gpu.py --models gpt2-medium --budgets 50%,25%
    CUBLAS_WORKSPACE_CONFIG=:4096:8 python benchmarks/gpu.py --deterministic   # for the bits
    python benchmarks/gpu.py --fuse     # and plans with fused kernels
    python benchmarks/gpu.py --graphs   # and each plan as CUDA graphs
    python benchmarks/gpu.py --check    # exit code 1 if a plan breaks its word

Costs are measured on the GPU, and so is its link to the host. Every planner gets the same graph,
the same costs and the same time. Times are medians of interleaved steps (forward, loss and
backward), relative to eager; peaks are counted by the allocator. Peers: checkpoint around every
block, and `torch.compile` with PyTorch's activation memory budget.

The allocator is asked for segments that grow (`expandable_segments`): otherwise it leaves up to
1 MiB behind a tensor that it puts into a free block, which counts as allocated and belongs to no
tensor of the step. The peak of a plan as CUDA graphs is all that it holds: the memory of the
graphs, and the copies of arguments, results and gradients.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")

import torch
import typer
from _common import gpt2
from _tables import print_table
from executed import checkpointed
from seven_billion import Llama
from torch import Tensor, nn
from zoo.published import NETWORKS

import remat_compile
from fusion import compiled
from remat_compile import Plan
from remat_compile.backends.torch import PlannedModule
from remat_compile.ir.analysis.liveness import held_bytes
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.semantics.simulate import Sizes
from remat_compile.ir.units import format_rate
from remat_compile.operators.repeats import differences, largest_difference
from remat_compile.planners import Infeasible, NotApplicable, parse_planner
from remat_compile.plans.bind import bind
from remat_compile.plans.budget import Baseline, parse_budget, resolve_budget
from remat_compile.plans.compare.step import StepRunner
from remat_compile.plans.run_planner import Attempt, Phases

Sample = tuple[nn.Module, tuple[Any, ...]]
GPU = torch.device("cuda", 0)


class WithLoss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(model.children())

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x.float().square().mean()


def _gpt(layers: int, width: int, batch: int, dtype: torch.dtype, seq: int = 1024) -> Sample:
    model = gpt2(layers=layers, width=width, heads=width // 64, vocab=16384, seq=seq)
    ids = torch.randint(0, 16384, (batch, seq), device=GPU)
    return model.to(GPU, dtype), (ids, torch.roll(ids, -1, 1))


def _llama(batch: int) -> Sample:
    torch.manual_seed(0)
    model = Llama(16, 2048, 5632, 32000, 1024)
    with torch.no_grad():
        model.cos.uniform_(-1, 1)
        model.sin.uniform_(-1, 1)
    model = model.to(GPU, torch.bfloat16)
    ids = torch.randint(0, 32000, (batch, 1024), device=GPU)
    return model, (ids, torch.roll(ids, -1, 1))


def _resnet(batch: int) -> Sample:
    torch.manual_seed(0)
    images = torch.randn(batch, 3, 224, 224, device=GPU)
    return WithLoss(NETWORKS["resnet50"]()).to(GPU), (images,)


def _mlp(layers: int, width: int) -> Sample:
    torch.manual_seed(0)
    stack = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)]
    return WithLoss(nn.Sequential(*stack)).to(GPU), (torch.randn(32, width, device=GPU),)


MODELS: dict[str, Callable[[], Sample]] = {
    "gpt2-medium": partial(_gpt, 24, 1024, 8, torch.bfloat16),
    "gpt2-small": partial(_gpt, 12, 768, 8, torch.bfloat16),
    "gpt2-small-f32": partial(_gpt, 12, 768, 8, torch.float32),
    "llama-1b": partial(_llama, 4),
    "resnet50-f32": partial(_resnet, 64),
    "gpt-4x256-f32": partial(_gpt, 4, 256, 8, torch.float32, 128),
    "mlp-50x16-f32": partial(_mlp, 50, 16),
}


@dataclass
class Line:
    """One way to run the step. Bytes are of the device; times relative to eager."""

    name: str
    made_s: float = 0.0
    predicted: float | None = None
    proven_bytes: int | None = None
    peak_bytes: int = 0
    moved_bytes: int = 0
    ratio: float = 0.0
    difference: float = 0.0
    graphs: bool = False
    fused: bool = False
    bits: str = ""
    times_s: list[float] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        within = self.graphs or self.proven_bytes is None or self.peak_bytes <= self.proven_bytes
        return within and (self.fused or self.bits != "differ")


class Bench:
    """One model on the GPU, its costs, and the ways to run its step."""

    def __init__(self, name: str, time_limit_s: float, graphs: bool) -> None:
        self.name, self.time_limit_s, self.graphs = name, time_limit_s, graphs
        self.model, self.args = MODELS[name]()
        start = time.perf_counter()
        first = remat_compile.plan(
            self.model, self.args, planner="store-all", time_limit_s=time_limit_s, cache=False
        )
        self.capture_s = time.perf_counter() - start
        assert first._exported is not None
        self.exported, self.program = first._exported, first.program
        self.baseline = Baseline.of(self.program)
        self.entries: list[tuple[Line, nn.Module]] = [(Line("eager"), self.exported.original)]
        self._add("store-all", first, self.capture_s)

    def planned(self, planner: str, budget: str) -> None:
        start, name = time.perf_counter(), f"{planner}, {budget}"
        asked = resolve_budget(parse_budget(budget, "activation"), self.baseline)
        attempt = Attempt(self.program, parse_planner(planner), asked, self.time_limit_s, Phases())
        try:
            result = attempt.ask()
            if isinstance(result, Infeasible | NotApplicable) or result.schedule is None:
                print(f"{self.name}: {name}: no plan")
                return
            made = attempt.prove(result.schedule, result.lower_bound_ns, planner)
            plan = Plan(made.program, made.schedule, asked, _is_proven=True)
            self._add(name, plan, time.perf_counter() - start)
        except FBError as error:
            print(f"{self.name}: {name}: {error.diagnostics[0].message}")

    def fused(self, planner: str, budget: str) -> None:
        start, name = time.perf_counter(), f"{planner} fused, {budget}"
        try:
            plan = remat_compile.plan(
                self.model,
                self.args,
                activation_budget=budget,
                planner=planner,
                fuse="auto",
                time_limit_s=self.time_limit_s,
                cache=False,
            )
        except FBError as error:
            print(f"{self.name}: {name}: {error.diagnostics[0].message}")
            return
        for graphs in (False, True)[: 1 + self.graphs]:
            module, made_s = plan.bind(cuda_graph=graphs), time.perf_counter() - start
            self._entry(name + ", graphs" * graphs, plan, module, made_s, graphs)

    def _add(self, name: str, plan: Plan, made_s: float) -> None:
        for graphs in (False, True)[: 1 + self.graphs]:
            module = bind(plan.program, plan.schedule, self.exported, cuda_graph=graphs)
            self._entry(name + ", graphs" * graphs, plan, module, made_s, graphs)

    def _entry(
        self, name: str, plan: Plan, module: nn.Module, made_s: float, graphs: bool = False
    ) -> None:
        proven = None if plan.proven is None else plan.proven.device_bytes
        line = Line(name, made_s, plan.trace.time_ns / self.baseline.time_ns, proven, graphs=graphs)
        line.fused = any(c.is_fused for c in plan.graph.cnodes)
        size = Sizes.of(plan.program).anode
        line.moved_bytes = sum(size[moved.anode] for moved in plan.trace.copies)
        self.entries.append((line, module))
        print(f"{self.name}: {name}: made in {made_s:.1f} s", flush=True)

    def checkpointed(self) -> None:
        self.entries.append((Line("checkpoint per block"), checkpointed(self.model)))

    def compiled(self, share: float) -> None:
        made = compiled(self.model, self.args, share)
        self.entries.append((Line(made.name, made.made_s), made.module))

    def measure(self, rounds: int) -> list[Line]:
        binding = self.program.binding
        runners = [StepRunner(module, self.exported, binding) for _, module in self.entries]
        held = held_bytes(self.program, "device", Sizes.of(self.program))
        wanted = runners[0].run()
        for (line, module), runner in zip(self.entries, runners, strict=True):
            if line.graphs:
                runner.run()  # the next one is recorded
            tensors = runner.run()
            apart = differences(tensors, wanted, runner.run, runners[0].run)
            line.difference = largest_difference(tensors, wanted)
            changing = len(apart.changing)
            but = f" ({changing} of {len(wanted)} change from step to step)" if changing else ""
            line.bits = "differ" if apart.real else f"equal{but}"
            del tensors
            planned = line.predicted is not None
            if line.graphs:
                assert isinstance(module, PlannedModule)
                graphs = module.planned_step.graphs
                assert graphs is not None
                line.peak_bytes = held + runner.peak_bytes() + graphs.recorder.held_bytes()
                assert graphs.replayed >= 2, "nothing was replayed"
                continue
            line.peak_bytes = runner.planned_peak_bytes() if planned else held + runner.peak_bytes()
        for _ in range(rounds):
            for (line, _), runner in zip(self.entries, runners, strict=True):
                line.times_s.append(runner.time_s())
        lines = [line for line, _ in self.entries]
        for line in lines:
            pairs = zip(line.times_s, lines[0].times_s, strict=True)
            line.ratio = median(own / eager for own, eager in pairs)
        return lines

    def report(self, lines: Sequence[Line]) -> None:
        target = self.program.target
        rates = (target.d2h_bytes_per_s, target.h2d_bytes_per_s)
        link = " and ".join(format_rate(rate) for rate in rates if rate) or "no link"
        predicted = self.baseline.time_ns / 1e6
        measured = median(lines[0].times_s) * 1e3
        print(
            f"\n{self.name} on {target.name} ({link}): {len(self.program.graph.cnodes)} cNodes, "
            f"captured, measured and proven in {self.capture_s:.1f} s; "
            f"eager {measured:.1f} ms, predicted {predicted:.1f}"
        )
        head = ("", "peak GB", "proven", "time", "predicted", "moved GB", "gradients", "made in s")
        print_table(head, [_cells(line) for line in lines])


def _cells(line: Line) -> tuple[str, ...]:
    return (
        line.name,
        f"{line.peak_bytes / 1e9:.3f}",
        "" if line.proven_bytes is None else f"{line.proven_bytes / 1e9:.3f}",
        f"{line.ratio:.3f} ×",
        "" if line.predicted is None else f"{line.predicted:.3f}",
        f"{line.moved_bytes / 1e9:.2f}" if line.moved_bytes else "",
        line.bits if line.bits != "differ" else f"{line.difference:.1e}",
        f"{line.made_s:.1f}",
    )


def main(
    models: Annotated[str, typer.Option(help="With commas between.")] = ",".join(MODELS),
    budgets: Annotated[str, typer.Option(help="Of the activations.")] = "70%,50%,30%",
    planners: Annotated[str, typer.Option(help="Asked for each budget.")] = "rockmate,rk-pofo",
    fuse: Annotated[bool, typer.Option(help="Fused plans too.")] = False,
    shares: Annotated[str, typer.Option(help="Budgets of torch.compile.")] = "",
    time_limit: Annotated[float, typer.Option(help="Seconds for each planner.")] = 10.0,
    rounds: int = 9,
    graphs: Annotated[bool, typer.Option(help="Each plan as CUDA graphs too.")] = False,
    deterministic: Annotated[bool, typer.Option(help="Kernels that repeat their bits.")] = False,
    check: Annotated[bool, typer.Option(help="Fail where a plan breaks its word.")] = False,
    out: Annotated[Path | None, typer.Option("--json", help="Write the figures.")] = None,
) -> None:
    """Makes all ways of a model, then times them in turn."""
    properties = torch.cuda.get_device_properties(GPU)
    torch.use_deterministic_algorithms(deterministic)  # attention only warned is not
    torch.backends.cuda.enable_cudnn_sdp(not deterministic)
    kernels = ", deterministic kernels" if deterministic else ""
    print(f"{properties.name}, torch {torch.__version__}{kernels}")
    by_model = {}
    for name in models.split(","):
        bench = Bench(name, time_limit, graphs)
        for budget in budgets.split(","):
            for planner in planners.split(","):
                bench.planned(planner, budget)
            if fuse:
                bench.fused(planners.split(",")[0], budget)
        bench.checkpointed()
        for share in filter(None, shares.split(",")):
            bench.compiled(float(share))
        lines = bench.measure(rounds)
        bench.report(lines)
        by_model[name] = lines
        del bench
        torch.cuda.empty_cache()
    if out is not None:
        data = {name: [asdict(line) for line in lines] for name, lines in by_model.items()}
        out.write_text(json.dumps({"machine": properties.name, "models": data}, indent=1))
    if check and not all(line.holds for lines in by_model.values() for line in lines):
        raise SystemExit(1)


if __name__ == "__main__":
    typer.run(main)
