"""The task and the answer of planners of pipelines.

They are frozen dataclasses whose fields are their options, as planners of one rank are. They
plan a chain of layers (`layers.py`); the plan becomes rows per rank in `rows.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, ClassVar, cast

from ...ir.diagnostics import Diagnostic, fail
from ...ir.program import Budget
from ..contract import Infeasible, Progress
from ..registry import PlannerInfo, format_planner, parse_planner
from ..results import silent
from ..spelling.options import checked
from .layers import Layers, Range, StageWay
from .pattern import Times
from .search.balanced import least_memory


@dataclass(frozen=True)
class PipelinePlan:
    """Stages in order, the rank and the way of each, and when they run.

    The pattern has 2 n - 1 pseudo-stages: stages with the transfers between them, which take
    no time between stages of one rank.
    """

    layers: Layers
    planner: str
    stages: tuple[Range, ...]
    ranks: tuple[int, ...]
    ways: tuple[StageWay, ...]
    pattern: Times

    @property
    def period_ns(self) -> int:
        return self.pattern.period_ns

    @property
    def aim_ns(self) -> int:
        """The value that planners make small: a bound on the time of the step, (m - 1) T + V with V
        the lifetime of the whole chain; the period where there is no end."""
        microbatches = self.layers.microbatches
        if microbatches is None:
            return self.period_ns
        i, j = self.stages[0]
        first_ns = self.ways[0].load_ns - sum(self.layers.forward_ns_L[i:j])
        last_ns = self.pattern.start_ns("bwd", 0, microbatches - 1) + first_ns
        return last_ns - self.pattern.start_ns("fwd", 0, 0)


@dataclass(frozen=True)
class Planned:
    """A pipeline within the memory of each rank. `bound_ns` is a lower bound on the period among
    the pipelines that its planner's page names; `late` where the time limit ended the search."""

    plan: PipelinePlan
    bound_ns: int | None
    late: bool = False

    @property
    def is_optimal(self) -> bool:
        return self.plan.period_ns == self.bound_ns


PipelineResult = Planned | Infeasible


@dataclass(frozen=True)
class PipelineTask:
    """A chain of layers with what every answer about it needs."""

    layers: Layers
    planner: str
    deadline: float
    progress: Progress = silent

    @property
    def left_s(self) -> float:
        return max(0.0, self.deadline - monotonic())

    def infeasible(self) -> Infeasible:
        """FB1020, with the least memory for which `one-f-one-b` finds a pipeline of any period."""
        layers = self.layers
        least = least_memory(layers)
        message = f"{self.planner} finds no pipeline of {layers.ranks} ranks in "
        message += f"{layers.limit_bytes} bytes each"
        hint = f"give at least {least} bytes per rank, more ranks, or smaller micro-batches"
        return Infeasible(Budget(least), least, Diagnostic("FB1020", message, hint=hint))


@dataclass(frozen=True)
class PipelinePlanner:
    """The base of these planners."""

    name: ClassVar[str]
    applicability: ClassVar[str] = "chains of layers on several ranks"
    source: ClassVar[str]

    def __post_init__(self) -> None:
        checked(self)

    def plan(
        self, layers: Layers, *, time_limit_s: float = 60.0, progress: Progress | None = None
    ) -> PipelineResult:
        """The pipeline of the least period within the memory that this planner finds."""
        text = format_planner(cast(Any, self))
        deadline = monotonic() + time_limit_s
        return self.search(PipelineTask(layers, text, deadline, progress or silent))

    def search(self, task: PipelineTask) -> PipelineResult:
        """The answer to a task, by its deadline."""
        raise NotImplementedError


def without_recompute(layers: Layers) -> Layers:
    """The same chain, of which nothing is made again."""
    return replace(layers, inner_bytes_L=())


def plain_ways(layers: Layers, stages: tuple[Range, ...]) -> tuple[StageWay, ...]:
    """All is kept."""
    return tuple(next(layers.ways(i, j)) for i, j in stages)


def _info(name: str, target: str) -> PlannerInfo:
    return PlannerInfo(name, f"{__package__}.{target}", "remat-compile")


PIPELINE_PLANNERS: Mapping[str, PlannerInfo] = {
    "one-f-one-b": _info("one-f-one-b", "one_f_one_b:OneFOneB"),
    "gpipe": _info("gpipe", "baselines.gpipe:GPipe"),
    "pipedream": _info("pipedream", "baselines.pipedream:PipeDream"),
    "interleaved": _info("interleaved", "baselines.interleaved:Interleaved"),
    "zb-h1": _info("zb-h1", "baselines.zb_h1:ZeroBubbleH1"),
    "madpipe": _info("madpipe", "madpipe:MadPipe"),
    "pipeline-ilp": _info("pipeline-ilp", "pipeline_ilp:PipelineIlp"),
}
"""By name; loaded when asked for."""


def parse_pipeline_planner(text: str) -> PipelinePlanner:
    """`madpipe{tries=4}` and so on. FB1021 for a planner of one rank, else as `parse_planner`."""
    planner: object = parse_planner(text, PIPELINE_PLANNERS)
    if not isinstance(planner, PipelinePlanner):
        names = ", ".join(PIPELINE_PLANNERS)
        fail("FB1021", f"{text} plans a step of one rank", hint=f"one of {names}", usage=True)
    return planner
