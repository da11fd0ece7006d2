"""A decision made by another tool, proven as a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, assert_never

from ..ir.diagnostics import Diagnostic, FBError
from ..ir.terminal import printable
from .budget import Baseline, format_bytes, parse_budget, resolve_budget
from .files.look import read_program
from .files.outputs import files_of_model, files_of_plan
from .make import costed, costed_program
from .messages.progress import Progress
from .options import BoundKeywords, Errors, named_keywords
from .plan import Plan
from .prove import ProofRequest, by_tool, prove, proven_program
from .request import PlanRequest, read_request
from .run_planner import Phases
from .source import NO_OPTIONS, ModelOptions, Source, check_module, file_of, is_program, load_source

if TYPE_CHECKING:
    from torch import nn

    from ..capture.decisions import Decision
    from ..capture.lowered import Lowered
    from ..ir.program import Program

Tool = Literal["sac", "partitioner", "jax-names"]
TOOLS: tuple[Tool, ...] = ("sac", "partitioner", "jax-names")
SOLVERS = ("dp", "greedy", "ilp", "dp_knapsack_sliding_hirschberg")


@dataclass(frozen=True)
class ToolOptions:
    """Which tool decided, and what it was told.

    `memory_budget` and `solver` are the partitioner's; `save` and `segments` are
    names and module paths for `jax-names`.
    """

    tool: Tool
    memory_budget: float | None = None
    solver: str | None = None
    save: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()

    def check(self, errors: Errors) -> None:
        """Adds FB0707 for options of another tool, or out of range."""
        given = {
            "memory_budget": ("partitioner", self.memory_budget is not None),
            "solver": ("partitioner", self.solver is not None),
            "save": ("jax-names", bool(self.save)),
            "segments": ("jax-names", bool(self.segments)),
        }
        if self.tool not in TOOLS:
            errors.add("FB0707", f'no tool "{self.tool}"', f"write {', '.join(TOOLS)}")
        for name, (tool, is_given) in given.items():
            if is_given and tool != self.tool and self.tool in TOOLS:
                errors.add("FB0707", f"{name} is an option of {tool}, not of {self.tool}")
        if self.memory_budget is not None and not 0 <= self.memory_budget <= 1:
            hint = "0 computes all again, 1 is the partitioner's own optimum"
            errors.add("FB0707", f"a memory budget of {self.memory_budget:g}, not in 0 to 1", hint)
        if any(not text.partition("=")[0].strip() for text in self.save):
            errors.add("FB0707", "save has no name", 'write NAME=PATTERN, as "attn=blocks.*.attn"')
        if self.solver is not None and self.solver not in SOLVERS:
            errors.add("FB0707", f'no solver "{self.solver}"', f"write {', '.join(SOLVERS)}")


@dataclass(frozen=True)
class Imported:
    """A plan that does as another tool decided, proven, beside what the tool claims."""

    plan: Plan
    decision: Decision

    def claim(self) -> str:
        """Return what the tool counts, in one line."""
        d = self.decision
        if d.claimed_bytes is None:
            return f"{d.by} claims nothing"
        text = f"{d.by} counts {format_bytes(d.claimed_bytes)} saved for the backward"
        text += " (inputs included)" if d.counts_inputs else ""
        if d.limit_bytes is not None:
            over = d.claimed_bytes - d.limit_bytes
            text += f"; it means to stay within {format_bytes(d.limit_bytes)}"
            text += f", which it exceeds by {format_bytes(over)}" if over > 0 else ""
        return text

    def summary(self) -> str:
        """The table of the plan, and the claim below it."""
        return f"{self.plan.summary()}{printable(self.claim())}\n"


@named_keywords(BoundKeywords)
def import_plan(
    model: nn.Module | str | Path,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    tool: Tool,
    memory_budget: float | None = None,
    solver: str | None = None,
    save: Sequence[str] = (),
    segments: Sequence[str] = (),
    progress: Progress = None,
    **options: Unpack[BoundKeywords],
) -> Imported:
    """Reads what another tool decides for `model` as a plan, and proves it.

    `tool` is `"sac"` (the `torch.utils.checkpoint` regions of the model with their selective
    policies), `"partitioner"` (PyTorch's min-cut partitioner at `memory_budget`, 0.5 if left
    out) or `"jax-names"` (the values called `save` are saved, the rest of each of the
    `segments` is computed again). A budget bounds what is proven. FB0480 to FB0485 where the
    decision makes no plan, or one that is refused.
    """
    errors = Errors()
    chosen = ToolOptions(tool, memory_budget, solver, tuple(save), tuple(segments))
    chosen.check(errors)
    # Nothing is planned: the tool has decided.
    request = read_request(errors, planner="store-all", **options)
    if not isinstance(model, str | Path):
        errors.collect(lambda: check_module(model, args))
    errors.raise_if_any()
    assert request is not None
    phases = Phases(progress)
    if isinstance(model, str | Path):
        return import_source(str(model), NO_OPTIONS, chosen, request, phases)
    from ..capture.torch import export

    with phases.phase("capture", "capturing the training step"):
        exported = export(model, tuple(args), kwargs, strict=tool == "sac")
    return _from_model(Source(exported), chosen, request, phases)


def import_source(
    spec: str, model: ModelOptions, tool: ToolOptions, request: PlanRequest, phases: Phases
) -> Imported:
    """The same for a MODEL of the command line. FB0711 for a text where a model is needed."""
    if tool.tool == "sac" and file_of(spec) == spec:
        # The regions of an exported file draw other random numbers when run in eager, so
        # there would be nothing to check the graph against.
        message = f"sac reads the regions of a Python model, and {spec} is none"
        raise FBError(Diagnostic("FB0711", message, hint="give file.py:factory"), usage=True)
    if not is_program(spec):
        with phases.phase("capture", f"capturing {spec}"):
            source = load_source(spec, model, strict=tool.tool == "sac")
            source = replace(source, reads=files_of_model(spec, model))
        return _from_model(source, tool, request, phases)
    if tool.tool != "jax-names":
        message = f"{tool.tool} decides on PyTorch's joint graph, which {spec} does not hold"
        raise FBError(Diagnostic("FB0711", message, hint="give the model itself"), usage=True)
    from ..capture.decisions import decide_names

    text = read_program(spec)
    program = costed_program(text, request, phases)
    decision = decide_names(program, tool.save, tool.segments)
    made = _proven(program, decision, request, phases)
    return replace(made, plan=replace(made.plan, _reads=files_of_plan(spec, text.header)))


def _from_model(
    source: Source, tool: ToolOptions, request: PlanRequest, phases: Phases
) -> Imported:
    from ..capture.torch import ensure_trusted

    with costed(source, request.device, phases) as (program, lowered):
        with phases.phase("decide", f"asking {tool.tool}"):
            decision = _decide(lowered, tool)
        made = _proven(program, decision, request, phases)
    if request.device is None:
        with phases.phase("check", "running the graph once against eager"):
            ensure_trusted(lowered)
    warnings = (*source.warnings, *source.exported.warnings, *lowered.warnings)
    plan = replace(made.plan, warnings=warnings, _exported=source.exported, _reads=source.reads)
    return replace(made, plan=plan)


def _decide(lowered: Lowered, tool: ToolOptions) -> Decision:
    match tool.tool:
        case "sac":
            from ..capture.decisions.sac import decide_sac

            return decide_sac(lowered)
        case "partitioner":
            from ..capture.decisions.partitioner import decide_partitioner

            budget = 0.5 if tool.memory_budget is None else tool.memory_budget
            return decide_partitioner(lowered, budget, tool.solver or "dp")
        case "jax-names":
            from ..capture.decisions import decide_names

            return decide_names(lowered.program, tool.save, tool.segments)
        case _:
            assert_never(tool.tool)


def _proven(program: Program, decision: Decision, request: PlanRequest, phases: Phases) -> Imported:
    """The decision's schedule, proven. FB0485 where it is refuted or not decided."""
    from ..capture.decisions import schedule_of

    schedule = schedule_of(program.graph, decision)
    budget = None
    if request.budget is not None:
        bound = parse_budget(request.budget.text, request.budget.kind)  # `least` is no bound here
        budget = resolve_budget(bound, Baseline.of(program))
    to_prove = ProofRequest(() if budget is None else (budget,), request.time_limit_s)
    with phases.phase("verify", "proving the plan"):
        verdict = prove(program, schedule, to_prove)
        held = proven_program(program, schedule, verdict, to_prove, by_tool(decision.by))
    plan = Plan(held, schedule, budget, phase_s=phases.seconds, _is_proven=True)
    return Imported(plan, decision)
