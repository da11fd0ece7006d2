"""A training step on several ranks: stages of a chain, and a row of steps for each rank.

Stage s makes the activation `act s` for stage s + 1, whose backward makes its gradient `grad s`. A
row runs forwards and backwards of its stages on micro-batches, and moves these values: `send` and
`recv` issue a copy, `wait` ends it, `free` gives the bytes back. A stage may leave gradients of its
parameters to a third pass, `wgt`. A step on one rank is a pipeline
of one stage. `spec/pipelines.md` says what rows mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from .span import Span

Pass = Literal["fwd", "bwd", "wgt"]
ValueKind = Literal["act", "grad"]
Value = tuple[ValueKind, int, int]
"""(kind, stage, micro-batch): one instance of what crosses the boundary after a stage."""

WAYS_OUT = {
    "FB1002": "number stages and rows from 0; each stage begins where the one before it ends",
    "FB1003": "name stages, values and micro-batches that there are",
    "FB1004": "move the step to the rank that does it, and send between the ranks of a border",
    "FB1005": "run each forward and backward once",
    "FB1006": "make or receive the value before, and free it later",
    "FB1007": "put a wait before it",
    "FB1008": "put a wait before it",
    "FB1009": "remove the step",
    "FB1010": "make, receive or send a value once",
    "FB1011": "free a value once, after it is made",
    "FB1012": "wait for every copy, and free every value",
    "FB1013": "run the micro-batches of a stage in ascending order: sums depend on it",
    "FB1014": "write both sides of the copy",
    "FB1015": "order the copies of a pair of ranks alike",
    "FB1016": "issue the copy that others wait for before the wait that holds it up",
    "FB1017": "plan for the budget",
    "FB1018": "write what the rows take",
}
# What to do about each broken rule of rows, for all who look for them.


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """Layers [first, last) on a rank; sizes in bytes.

    `held_bytes` throughout the step; `keep_bytes` from each forward to its backward, beside
    activations that cross; `forward_extra_bytes` and `backward_extra_bytes` only during one.
    `activation_bytes` and `gradient_bytes` cross to the next stage (0 for the last). The backward
    reads the activation before the stage or behind it where `reads_input` or `reads_output`.
    The forward of each range of layers in `remade` runs again right before their backward.
    A stage with any `weight_` number has a pass `wgt`: bytes are kept from the backward to it, and
    it reads what the backward reads from outside, the stage's output left out.
    `sums_bytes`, of its gradients, are there from behind its first backward to the end. Where there
    are any, that backward takes `first_extra_bytes` for itself instead, the sums it begins among
    them. Those that `wgt` begins are `weight_sums_bytes` and `weight_first_bytes`, in the same way.
    `closing_bytes` are what it takes when the row has ended.
    """

    rank: int
    first: int
    last: int
    forward_ns: int
    backward_ns: int
    held_bytes: int
    keep_bytes: int
    forward_extra_bytes: int = 0
    backward_extra_bytes: int = 0
    activation_bytes: int = 0
    gradient_bytes: int = 0
    weight_ns: int = 0
    weight_keep_bytes: int = 0
    weight_extra_bytes: int = 0
    weight_sums_bytes: int = 0
    weight_first_bytes: int = 0
    sums_bytes: int = 0
    first_extra_bytes: int = 0
    closing_bytes: int = 0
    reads_input: bool = True
    reads_output: bool = False
    remade: tuple[tuple[int, int], ...] = ()
    span: Span | None = field(default=None, compare=False, repr=False)

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The passes of each micro-batch, in order."""
        weights = self.weight_ns or self.weight_keep_bytes or self.weight_extra_bytes
        return ("fwd", "bwd", "wgt") if weights else ("fwd", "bwd")

    def pass_ns(self, word: Pass) -> int:
        """The duration of a pass."""
        return {"fwd": self.forward_ns, "bwd": self.backward_ns, "wgt": self.weight_ns}[word]


@dataclass(frozen=True, slots=True)
class StageRun:
    """Runs a pass of a stage on a micro-batch."""

    word: Pass
    stage: int
    microbatch: int
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Move:
    """Issues the copy of a value to or from another rank. A `recv` takes the bytes at once."""

    word: Literal["send", "recv"]
    value: Value
    peer: int
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class OnValue:
    """Waits for the copy of a value, or gives its bytes back."""

    word: Literal["wait", "free"]
    value: Value
    span: Span | None = field(default=None, compare=False, repr=False)


RowStep = StageRun | Move | OnValue


@dataclass(frozen=True, slots=True)
class Claims:
    """The stated times of a pipeline (from micro-batch to micro-batch, and of the step) and peak
    bytes of each rank."""

    period_ns: int
    makespan_ns: int
    peak_bytes_R: tuple[int, ...]
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Pipeline:
    """Rows by rank. `link_bytes_per_s` is that of each pair of ranks (None: copies take no time);
    `budget_bytes` bounds each rank (None: no bound). Each takes `draw_bytes` before its row, and
    `message_bytes` when it has ended, if its stages' closings take no more."""

    planner: str
    microbatches: int
    stages: tuple[PipelineStage, ...]
    rows: tuple[tuple[RowStep, ...], ...]
    link_bytes_per_s: int | None = None
    budget_bytes: int | None = None
    claims: Claims | None = None
    message_bytes: int = 0
    draw_bytes: int = 0

    @property
    def ranks(self) -> int:
        return len(self.rows)

    @cached_property
    def last_stage(self) -> int:
        return len(self.stages) - 1

    def bytes_of(self, kind: ValueKind, stage: int) -> int:
        """Returns the size of what crosses the boundary after a stage."""
        s = self.stages[stage]
        return s.activation_bytes if kind == "act" else s.gradient_bytes

    def ends_of(self, kind: ValueKind, stage: int) -> tuple[int, int]:
        """Returns the rank that makes the value and the rank that reads it."""
        before, behind = self.stages[stage].rank, self.stages[stage + 1].rank
        return (before, behind) if kind == "act" else (behind, before)

    def crosses(self, stage: int) -> bool:
        """True if the boundary after a stage lies between two ranks."""
        return self.stages[stage].rank != self.stages[stage + 1].rank

    def has_gradient(self, stage: int) -> bool:
        """False where no gradient flows back over the boundary: nothing before it trains."""
        return self.stages[stage].gradient_bytes > 0

    def copy_ns(self, kind: ValueKind, stage: int) -> int:
        """Returns how long the link takes to copy the value, rounded up."""
        rate = self.link_bytes_per_s
        return 0 if rate is None else -(-self.bytes_of(kind, stage) * 10**9 // rate)


@dataclass(frozen=True, slots=True)
class StageProgram:
    """The work of a stage, by names of the graph of one micro-batch: cNodes of its passes in order,
    and the aNodes that cross before and behind it, forward and back. `kept` lives from the forward
    to the backward: values, and generator states of what the backward makes again (it has forward
    cNodes then). `weights` are the cNodes of the third pass, if it has one."""

    forward: tuple[str, ...]
    backward: tuple[str, ...]
    kept: frozenset[str]
    act_before: tuple[str, ...] = ()
    act_behind: tuple[str, ...] = ()
    grad_behind: tuple[str, ...] = ()
    grad_before: tuple[str, ...] = ()
    weights: tuple[str, ...] = ()
