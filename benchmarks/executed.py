"""Plans that run: bits, measured peak and step time of every planner's plan, beside PyTorch's own.

    python benchmarks/executed.py
    python benchmarks/executed.py --check      # exit code 1 where a plan breaks its word
    python benchmarks/executed.py --planners dtr,rotor --no-peers

A GPT-2 of 12 layers, small width and vocabulary, on the CPU, under 50 % of the device bytes
of its unplanned step. A planner that has no plan there runs on the first model of `MODELS`
that it has one for. Peers: `torch.utils.checkpoint` around every block, and
`torch.compile` with PyTorch's activation memory budget, the fastest whose measured peak is
within the same bound. Times are medians of interleaved steps.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from _common import gpt2, machine
from _tables import print_table
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from remat_compile import Plan
from remat_compile.backends.torch import build
from remat_compile.capture.torch import ensure_trusted, export, lower
from remat_compile.costs import load_device, roofline
from remat_compile.ir.analysis.liveness import held_bytes
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.semantics.simulate import Sizes
from remat_compile.planners import Infeasible, NotApplicable, available, parse_planner
from remat_compile.plans.budget import Baseline, format_bytes, parse_budget, resolve_budget
from remat_compile.plans.compare.step import StepRunner, compare_step
from remat_compile.plans.run_planner import Attempt, Phases

Make = Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]
PEER_BUDGETS = (0.9, 0.7, 0.5, 0.3, 0.1, 0.0)


class Towers(nn.Module):
    """Two stacks of equal layers that meet at the score."""

    def __init__(self, layers: int = 4, width: int = 64) -> None:
        super().__init__()

        def stack() -> nn.Module:
            parts = [nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(layers)]
            return nn.Sequential(*parts)

        self.left, self.right = stack(), stack()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        score: Tensor = (self.left(x) * self.right(y)).sum(-1)
        return score


def _gpt(layers: int, width: int, seq: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    model = gpt2(layers=layers, width=width, heads=2, vocab=128, seq=seq)
    ids = torch.randint(0, 128, (4, seq))
    return model, (ids, torch.roll(ids, -1, 1))


def _towers() -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    return Towers(), (torch.randn(1024, 64), torch.randn(1024, 64))


@dataclass(frozen=True)
class Case:
    name: str
    make: Make
    budget: str


def cases(layers: int, width: int, seq: int) -> tuple[Case, ...]:
    """From the one that all planners are asked for to those that some are made for."""
    large = partial(_gpt, layers, width, seq)
    small = partial(_gpt, 2, width, seq)
    return (
        Case(f"gpt2-{layers}", large, "50%"),
        Case("gpt2-2", small, "70%"),
        Case("towers", _towers, "80%"),
        Case(f"gpt2-{layers}", large, "100%"),
    )


@dataclass(frozen=True)
class Line:
    """What one plan did. Bytes are of the device; `time` relative to ordinary autograd."""

    planner: str
    model: str
    budget: str
    budget_bytes: int
    proven_bytes: int
    measured_bytes: int
    bit_equal: bool
    predicted: float
    time: float

    @property
    def holds(self) -> bool:
        return self.bit_equal and self.measured_bytes <= self.budget_bytes


class Bench:
    """One captured model, and the plans for it."""

    def __init__(self, case: Case):
        self.case = case
        torch.manual_seed(1)
        self.model, args = case.make()
        self.exported = export(self.model, args)
        self.ready: dict[str, tuple[Plan, nn.Module]] = {}
        with lower(self.exported) as lowered:
            self.program = roofline(lowered.program, load_device("cpu"))
        self.baseline = Baseline.of(self.program)
        self.budget = resolve_budget(parse_budget(case.budget), self.baseline)

    def prepare(self, planners: Sequence[str], time_limit_s: float) -> None:
        """Plans and builds; nothing runs inside the block, where tensors are fake."""
        for name in planners:
            plan = self._plan(name, time_limit_s)
            if plan is None:
                continue
            with lower(self.exported) as lowered:
                built = build(lowered.with_program(plan.program), plan.schedule)
            if not self.ready:
                ensure_trusted(lowered)
            self.ready[name] = plan, built

    def _plan(self, planner: str, time_limit_s: float) -> Plan | None:
        """The planner's proven plan; None where it has none."""
        attempt = Attempt(self.program, parse_planner(planner), self.budget, time_limit_s, Phases())
        try:
            result = attempt.ask()
            if isinstance(result, Infeasible | NotApplicable) or result.schedule is None:
                return None
            made = attempt.prove(result.schedule, result.lower_bound_ns, planner)
        except FBError as error:
            print(f"{planner} on {self.case.name}: {error.diagnostics[0].message}")
            return None
        return Plan(made.program, made.schedule, self.budget, _is_proven=True)

    def run(self, planner: str, rounds: int) -> Line:
        plan, compiled = self.ready[planner]
        report = compare_step(plan, compiled, self.exported, repeats=rounds)
        return Line(
            planner,
            self.case.name,
            self.case.budget,
            self.budget.bytes,
            plan.proven.device_bytes if plan.proven is not None else 0,
            report.measured_bytes,
            report.bit_equal,
            plan.trace.time_ns / self.baseline.time_ns,
            report.time_s / report.eager_time_s,
        )


def checkpointed(model: nn.Module) -> nn.Module:
    """A copy with every block under `torch.utils.checkpoint`."""
    made = copy.deepcopy(model)
    for block in made.blocks:  # type: ignore[union-attr]
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    return made


def budgeted_step(model: nn.Module, args: Sequence[Any], share: float) -> nn.Module:
    """A copy under `torch.compile` with PyTorch's activation memory budget, compiled for `args`."""
    torch._dynamo.reset()
    made = _Budgeted(copy.deepcopy(model), share)
    made(*args).backward()
    for p in made.parameters():
        p.grad = None
    return made


class _Budgeted(nn.Module):
    """Runs the compiled `module` under its parameter names. The budget counts whenever PyTorch
    compiles, so it is set around every call."""

    def __init__(self, module: nn.Module, share: float) -> None:
        super().__init__()
        self._modules = dict(module._modules)
        self._parameters = dict(module._parameters)
        compiled = torch.compile(module, backend="aot_eager_decomp_partition")
        object.__setattr__(self, "call", compiled)
        self.share = share

    def forward(self, *args: Any) -> Any:
        import torch._functorch.config as config

        with config.patch(activation_memory_budget=self.share):
            return self.call(*args)


@dataclass(frozen=True)
class Peer:
    name: str
    measured_bytes: int
    time: float


def peers(bench: Bench, rounds: int) -> list[Peer]:
    """PyTorch's own ways on the same model; `time` relative to ordinary autograd."""
    binding = bench.program.binding
    held = held_bytes(bench.program, "device", Sizes.of(bench.program))
    eager = StepRunner(bench.exported.module, bench.exported, binding)
    measured: list[Peer] = []

    def measure(name: str, module: nn.Module) -> Peer:
        runner = StepRunner(module, bench.exported, binding)
        runner.run()
        peak = held + runner.peak_bytes()
        times = [runner.time_s() / eager.time_s() for _ in range(rounds)]
        return Peer(name, peak, median(times))

    measured.append(Peer("autograd", held + eager.peak_bytes(), 1.0))
    measured.append(measure("checkpoint per block", checkpointed(bench.model)))
    budgeted = [
        measure(f"memory budget {share}", budgeted_step(bench.model, bench.exported.args, share))
        for share in PEER_BUDGETS
    ]
    fits = [p for p in budgeted if p.measured_bytes <= bench.budget.bytes]
    lowest = min(budgeted, key=lambda p: p.measured_bytes)
    measured.append(min(fits, key=lambda p: p.time) if fits else lowest)
    return measured


def main(
    planners: Annotated[str, typer.Option(help="With commas between (all).")] = "",
    layers: int = 12,
    width: int = 32,
    seq: int = 128,
    time_limit: Annotated[float, typer.Option(help="Seconds for each planner.")] = 20.0,
    rounds: int = 7,
    peer: Annotated[bool, typer.Option("--peers/--no-peers")] = True,
    check: Annotated[bool, typer.Option(help="Fail where a plan breaks its word.")] = False,
    out: Annotated[Path | None, typer.Option("--json", help="Write the figures.")] = None,
) -> None:
    """Runs the plan of every planner."""
    print(machine())
    names = planners.split(",") if planners else list(available())
    lines: dict[str, Line | None] = dict.fromkeys(names)
    beside: list[Peer] = []
    for index, case in enumerate(cases(layers, width, seq)):
        waiting = [name for name in names if lines[name] is None]
        if not waiting and index:
            break
        bench = Bench(case)
        bench.prepare(waiting, time_limit)
        for name in bench.ready:
            lines[name] = bench.run(name, rounds)
        if index == 0 and peer:
            beside, asked = peers(bench, rounds), bench
    rows = [_shown(name, line) for name, line in lines.items()]
    head = (
        "planner",
        "model",
        "budget",
        "bytes",
        "proven",
        "measured",
        "bits",
        "predicted",
        "time",
    )
    print_table(head, rows)
    if beside:
        print(f"\nPyTorch on {asked.case.name}, budget {format_bytes(asked.budget.bytes)}")
        cells = [(p.name, format_bytes(p.measured_bytes), f"{p.time:.2f} ×") for p in beside]
        print_table(("", "measured", "time"), cells)
    if out is not None:
        data = {"machine": machine(), "plans": [asdict(v) for v in lines.values() if v]}
        out.write_text(json.dumps(data | {"peers": [asdict(p) for p in beside]}, indent=1))
    if check and not all(line is not None and line.holds for line in lines.values()):
        raise SystemExit(1)


def _shown(name: str, line: Line | None) -> tuple[str, ...]:
    if line is None:
        return (name, "no plan", *[""] * 7)
    return (
        name,
        line.model,
        line.budget,
        format_bytes(line.budget_bytes),
        format_bytes(line.proven_bytes),
        format_bytes(line.measured_bytes),
        "equal" if line.bit_equal else "DIFFER",
        f"{line.predicted:.3f}",
        f"{line.time:.2f} ×",
    )


if __name__ == "__main__":
    typer.run(main)
