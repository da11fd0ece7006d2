"""Plans, costs and times of kernels of a captured graph, kept on disk for later starts.

One key stands for the graph as it was captured, how its tensors lie in memory, and everything else
that costs depend on. Costs and times are looked up by it alone, plans by it and by what was asked.
A plan that is found is compared with the captured graph and proven again, as one from any file is.
Where a file cannot be used, planning goes on without it, with one warning (FB0959).
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...ir.diagnostics import Diagnostic
from ...planners.registry import format_planner
from ...version import __version__
from ..budget import Baseline, resolve_budget
from ..compare.graph import graph_differences
from ..plan import Plan, PlanText
from .store import Store, digest

if TYPE_CHECKING:
    from ...capture.lowered import Lowered
    from ...ir.program import Program
    from ..request import PlanRequest

Times = Mapping[str, tuple[int, int]]
"""Nanoseconds of kernels and of their calls, by digests of what they compute."""

SETTINGS = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "CUBLAS_WORKSPACE_CONFIG",
    "ONEDNN_MAX_CPU_ISA",
)
"""Variables that change what a computation takes, in bytes or in time."""
OF_INDUCTOR = "TORCHINDUCTOR_"
PLACES = ("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS")
"""Variables of Inductor that change no kernel."""

MOST_NS = 10**15
"""Eleven days: no computation of a step takes as long."""


@dataclass(frozen=True)
class PlanCache:
    """The entries of one captured graph in `store`, whose `graph_key` is `key`."""

    store: Store
    key: str

    @classmethod
    def of(cls, store: Store, lowered: Lowered) -> PlanCache:
        return cls(store, graph_key(lowered.program, lowered.layouts()))

    def plan_key(self, request: PlanRequest) -> str | None:
        """None for a planner that has no text that says all of it, or that others wrote, and for
        `least`, which is no bound to prove. A fused plan has that of the plan it is made from."""
        what = _asked(replace(request, fuse="none"))
        return None if what is None else digest(json.dumps((self.key, what)))

    def find_plan(
        self, captured: Program, request: PlanRequest
    ) -> tuple[Plan | None, tuple[Diagnostic, ...]]:
        """The plan, proven again; None where there is none that can be used."""
        key = self.plan_key(request)
        if key is None:
            return None, ()
        name = str(self.store.path("plan", key))
        return self.store.find(
            "plan", key, lambda value: _proven_again(value, name, captured, request)
        )

    def keep_plan(self, plan: Plan, request: PlanRequest) -> tuple[Diagnostic, ...]:
        """Writes a plan that was proven here."""
        key = self.plan_key(request)
        if key is None:
            return ()
        bound_ns = None if plan.lower_bound_s is None else round(plan.lower_bound_s * 1e9)
        return self.store.put("plan", key, [_text(plan.program), bound_ns])

    def find_fused(
        self, plan: Plan, request: PlanRequest
    ) -> tuple[Program | None, tuple[Diagnostic, ...]]:
        """A program with one schedule that was fused from this plan, still to be proven."""
        key = self._fused_key(request)
        if key is None:
            return None, ()
        name = str(self.store.path("fused", key))
        found, diagnostics = self.store.find("fused", key, lambda value: _fused(value, name))
        if found is None or found[1] != digest(_text(plan.program)):
            return None, diagnostics  # another time was measured, or another plan found
        return found[0], ()

    def unused_fused(self, request: PlanRequest, why: str) -> tuple[Diagnostic, ...]:
        """FB0959: the fused program that was found is not used."""
        return self.store.unused("fused", self._fused_key(request) or "", why)

    def keep_fused(self, plan: Plan, fused: Plan, request: PlanRequest) -> tuple[Diagnostic, ...]:
        """Writes what was fused from `plan` and proven."""
        key = self._fused_key(request)
        if key is None:
            return ()
        return self.store.put("fused", key, [_text(fused.program), digest(_text(plan.program))])

    def _fused_key(self, request: PlanRequest) -> str | None:
        key = self.plan_key(request)
        return None if key is None else digest(f"{key} {request.fuse}")

    def find_costs(self, captured: Program) -> tuple[Program | None, tuple[Diagnostic, ...]]:
        """The captured program with the costs that were measured; None where there are none."""
        return self.store.find("costs", self.key, lambda value: _costed(value, captured))

    def keep_costs(self, program: Program) -> tuple[Diagnostic, ...]:
        """Writes the costs of a program, measured just now."""
        return self.store.put("costs", self.key, _text(program))

    def find_times(self) -> tuple[Times, tuple[Diagnostic, ...]]:
        """The times of the kernels that were measured."""
        times, diagnostics = self.store.find("times", self.key, _times)
        return times or {}, diagnostics

    def keep_times(self, measured: Times) -> tuple[Diagnostic, ...]:
        """Adds what was measured just now; earlier times stay, since plans rest on them."""
        known, _ = self.find_times()
        if measured.keys() <= known.keys():
            return ()
        return self.store.put("times", self.key, {**measured, **known})


def _proven_again(value: Any, name: str, captured: Program, request: PlanRequest) -> Plan:
    """As for a plan from any file: FBError or ValueError where it is not one, is another, or is
    not proven."""
    match value:
        case [str(text), None | int() as bound_ns] if not isinstance(bound_ns, bool):
            program = _one_plan(text, name)
        case _:
            raise ValueError("it is no plan")
    _ensure_captured(program, captured)
    budget = None
    if request.budget is not None:
        budget = resolve_budget(request.budget, Baseline.of(program))
    schedule = program.schedules[0]
    kept = PlanText(program.graph, schedule, text)
    plan = Plan(program, schedule, budget, _text=kept, _allow_lossy=request.lossy is not None)
    plan = plan.trusted()
    if bound_ns is not None and not 0 <= bound_ns <= plan.trace.time_ns:
        raise ValueError("its bound is above its own time")
    return replace(plan, lower_bound_s=None if bound_ns is None else bound_ns / 1e9)


def _fused(value: Any, name: str) -> tuple[Program, str]:
    match value:
        case [str(text), str(of)]:
            return _one_plan(text, name), of
    raise ValueError("it is no plan")


def _costed(value: Any, captured: Program) -> Program:
    """ValueError or FBError where it is not what `keep_costs` wrote for this graph."""
    from ...ir.text.parser import parse_program

    if not isinstance(value, str):
        raise ValueError("it is no graph with costs")
    program = parse_program(value, "<costs>")
    _ensure_captured(program, captured)
    was = captured
    if captured.header.device.startswith("cuda"):  # whose memory and link are measured, too
        was = replace(was, target=program.target)
    parts = (program.schedules, program.symbols, program.binding, program.target)
    if parts != ((), was.symbols, was.binding, was.target):
        raise ValueError("it is no graph with costs")
    if any(c.time_ns is None for c in program.graph.cnodes):
        raise ValueError("a computation has no time")
    return program


def _times(value: Any) -> dict[str, tuple[int, int]]:
    if not isinstance(value, dict):
        raise ValueError("it holds no times")
    return {name: _pair(pair) for name, pair in value.items()}


def _pair(pair: object) -> tuple[int, int]:
    match pair:
        case [int(kernel_ns), int(calls_ns)] if max(kernel_ns, calls_ns) <= MOST_NS:
            if min(kernel_ns, calls_ns) >= 0:
                return kernel_ns, calls_ns
    raise ValueError("a time is no number")


def _ensure_captured(program: Program, captured: Program) -> None:
    """ValueError where the program is not of the graph that was captured."""
    if different := graph_differences(program, captured):
        raise ValueError(f"its graph is another: {different[0]}")
    # Measuring fills in the costs and spells the version of PyTorch out, planning the wishes; the
    # key has them.
    was = captured.header
    own = replace(program.header, costs=was.costs, torch_version=was.torch_version)
    if replace(own, run_once=was.run_once) != was:
        raise ValueError("its graph was captured elsewhere")


def _one_plan(text: str, name: str) -> Program:
    """A program with one schedule; FBError or ValueError where a text is not one."""
    from ...ir.text.parser import parse_program

    program = parse_program(text, name)
    if len(program.schedules) != 1:
        raise ValueError(f"it holds {len(program.schedules)} schedules")
    return program


def _text(program: Program) -> str:
    from ...ir.text.printer import format_program

    return format_program(program)


# -- keys --------------------------------------------------------------------------------


def graph_key(program: Program, layouts: Sequence[tuple[str, str]] = ()) -> str:
    """For a graph, how its tensors lie in memory, and the surroundings of this process."""
    return digest(json.dumps((_text(program), layouts, surroundings())))


def _asked(request: PlanRequest) -> list[tuple[str, str]] | None:
    """The options of a request as text; None for a planner that has no text that says all of it,
    or that others wrote, and for `least`."""
    planner = request.planner
    ours = type(planner).__module__.startswith("remat_compile.")
    is_least = request.budget is not None and request.budget.form == "least"
    if not ours or not is_dataclass(planner) or is_least:
        return None
    words = {f.name: repr(getattr(request, f.name)) for f in fields(request) if f.name != "planner"}
    return sorted({**words, "planner": format_planner(planner)}.items())


def surroundings() -> dict[str, Any]:
    """Return what costs and plans depend on beside graph and request."""
    import torch

    cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "remat-compile": [__version__, _own_files()],
        "python": sys.version,
        "torch": [torch.__version__, torch.__config__.show(), torch.version.git_version],
        "machine": [platform.node(), platform.machine(), platform.processor(), _cpu(), cuda],
        "threads": torch.get_num_threads(),
        "settings": [
            torch.are_deterministic_algorithms_enabled(),
            torch.get_float32_matmul_precision(),
            torch.backends.mkldnn.enabled,
            torch.backends.cudnn.enabled,
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.allow_tf32,
            torch.backends.cudnn.deterministic,
            {name: os.environ.get(name) for name in SETTINGS},
            _of_inductor(),
        ],
    }


def _of_inductor() -> list[tuple[str, str]]:
    """Return the settings of Inductor for kernels: in the environment, and in this process."""
    own = [(n, v) for n, v in os.environ.items() if n.startswith(OF_INDUCTOR) and n not in PLACES]
    if "torch._inductor.config" in sys.modules:
        from ...backends.torch.kernels import kernel_settings

        own += kernel_settings()
    return sorted(own)


@cache
def _own_files() -> str:
    """Tells this state of the package from another, also where it is being worked on."""
    folder = Path(__file__).parents[1]
    states = [(str(p.relative_to(folder)), p.stat()) for p in sorted(folder.rglob("*.py"))]
    return digest(repr([(name, s.st_size, s.st_mtime_ns) for name, s in states]))


@cache
def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("model name")), "")
