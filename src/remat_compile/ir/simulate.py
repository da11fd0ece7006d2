"""Reference semantics: a linear-time simulator of a schedule.

It runs a schedule over sizes only. Memory is taken at `compute` and given back
exactly at `free`; the bytes of a step are what lives before it, what it writes
(results of a replay that are still alive are written again and dropped), and its
workspace, each rounded up to the granularity of the target. `spec/semantics.md`
states the rules; the verifier proves the same ones a second time, on its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from .diagnostics import Diagnostic, FBError, Note
from .expr import evaluate
from .graph import CALLER_KINDS, CNode, Graph
from .program import Program
from .schedule import Compute, Free, Schedule, Step
from .span import Span

__all__ = ["NON_ACTIVATION_KINDS", "Sizes", "Trace", "simulate"]

NON_ACTIVATION_KINDS: frozenset[str] = CALLER_KINDS | {"param_grad"}
"""What an activation budget leaves out."""

KEPT_KINDS: frozenset[str] = frozenset(("output", "param_grad"))
"""What must be alive when the step ends."""


@dataclass(frozen=True)
class Sizes:
    """Bytes of every aNode and workspace at one assignment of the symbols, rounded up."""

    anode: Mapping[str, int]
    workspace: Mapping[str, int]
    replay_workspace: Mapping[str, int]

    @staticmethod
    def of(program: Program, env: Mapping[str, int] | None = None) -> Sizes:
        at = program.sample if env is None else env
        unit = program.target.granularity_bytes

        def rounded(value: int) -> int:
            return -(-value // unit) * unit

        graph = program.graph
        return Sizes(
            anode={a.name: rounded(evaluate(a.size, at)) for a in graph.anodes},
            workspace={c.name: rounded(evaluate(c.workspace, at)) for c in graph.cnodes},
            replay_workspace={
                c.name: rounded(evaluate(c.workspace_at(2), at)) for c in graph.cnodes
            },
        )

    def workspace_at(self, cnode: CNode, execution: int) -> int:
        return (self.workspace if execution == 1 else self.replay_workspace)[cnode.name]


@dataclass(frozen=True)
class Trace:
    """Memory and time of a valid schedule, one entry per step (index as in `steps`).

    `during` counts a step's transients; `after` what lives when it is done; the
    `_activation` lists leave out `NON_ACTIVATION_KINDS`. `time_ns` is the sum over the
    computations.
    """

    during: tuple[int, ...]
    after: tuple[int, ...]
    during_activation: tuple[int, ...]
    executions: Mapping[str, int]
    time_ns: int
    loss_step: int
    _program: Program
    _steps: tuple[Step, ...]
    _sizes: Sizes

    @cached_property
    def peak_bytes(self) -> int:
        return max(self.during)

    @cached_property
    def peak_step(self) -> int:
        return self.during.index(self.peak_bytes)

    @cached_property
    def activation_peak_bytes(self) -> int:
        return max(self.during_activation)

    @cached_property
    def activation_peak_step(self) -> int:
        return self.during_activation.index(self.activation_peak_bytes)

    def live_at(self, step: int) -> tuple[tuple[str, int], ...]:
        """aNodes and bytes alive during a step, largest first; `(workspace)` included."""
        state = _State(self._program, self._sizes, self._steps)
        for index in range(step):
            state.apply(index, self._steps[index])
        alive = dict(state.bytes_of_live())
        now = self._steps[step]
        if isinstance(now, Compute):
            c = state.graph.cnode[now.cnode]
            n = state.executions.get(c.name, 0) + 1
            for name in state.allocated(c, n):
                alive[name] = self._sizes.anode[name]
            if workspace := self._sizes.workspace_at(c, n):
                alive["(workspace)"] = workspace
        return tuple(sorted(alive.items(), key=lambda item: (-item[1], item[0])))


class _State:
    """The mutable state of a run; collects violations instead of stopping at the first."""

    def __init__(self, program: Program, sizes: Sizes, steps: tuple[Step, ...]):
        self.graph: Graph = program.graph
        self.sizes = sizes
        self.executions: dict[str, int] = {}
        self.runs: dict[str, int] = {}
        for step in steps:
            if isinstance(step, Compute):
                self.runs[step.cnode] = self.runs.get(step.cnode, 0) + 1
        self.extra = _existing_grads(program, sizes)
        self.live: dict[str, None] = {
            a.name: None for a in self.graph.anodes if a.kind in CALLER_KINDS
        }
        self.total = sum(sizes.anode[name] for name in self.live) + self.extra
        self.activation = 0
        self.freed_at: dict[str, Span | None] = {}
        self.updated = {
            b.name for b in program.binding.buffers if b.update is not None
        }
        self.loss_done = False
        self.diagnostics: list[Diagnostic] = []

    def bytes_of_live(self) -> dict[str, int]:
        found = {name: self.sizes.anode[name] for name in self.live}
        if self.extra:
            found["(existing gradients)"] = self.extra
        return found

    def allocated(self, c: CNode, execution: int) -> tuple[str, ...]:
        """aNodes for which the n-th execution takes memory (also those it drops again)."""
        if c.is_accumulate:
            return ()
        token = (c.token,) if c.token and execution == 1 and self.runs[c.name] > 1 else ()
        return (*c.results_at(execution), *token)

    def apply(self, index: int, step: Step) -> tuple[int, int]:
        """Runs a step; returns the device and activation bytes during it."""
        if isinstance(step, Free):
            before = self.total, self.activation
            self._free(step.anode, step.span)
            return before
        return self._compute(step)

    def _compute(self, step: Compute) -> tuple[int, int]:
        c = self.graph.cnode[step.cnode]
        n = self.executions[c.name] = self.executions.get(c.name, 0) + 1
        self._check_reads(c, n, step)
        taken = self.allocated(c, n)
        transient = sum(self.sizes.anode[name] for name in taken)
        transient_activation = sum(
            self.sizes.anode[name] for name in taken if self._is_activation(name)
        )
        workspace = self.sizes.workspace_at(c, n)
        during = (
            self.total + transient + workspace,
            self.activation + transient_activation + workspace,
        )
        if c.is_accumulate:
            self._accumulate(c)
        for name in taken:
            if name not in self.live:
                self._take(name)
        if c.is_loss:
            self.loss_done = True
        if step.nosave:
            for name in taken:
                if self.graph.anode[name].kind == "phantom" and name in self.live:
                    self._free(name, step.span)
        return during

    def _accumulate(self, c: CNode) -> None:
        (ended,) = self.graph.reads(c)[:1]
        (named,) = c.results
        if ended in self.live:
            # Same storage, another name; the kinds may count differently.
            self._free(ended, None)
            self._take(named)

    def _check_reads(self, c: CNode, n: int, step: Compute) -> None:
        wanted = [*self.graph.reads(c, n)]
        if c.token and n > 1:
            wanted.append(c.token)
        for name in wanted:
            if name not in self.live:
                self._report_dead(c, name, step)
            elif self.loss_done and not c.is_loss and name in self.updated:
                self.diagnostics.append(
                    Diagnostic(
                        "FB0303",
                        f"{c.name} reads buffer %{name} after its update was written back",
                        step.span,
                        hint="run it before the loss, or keep its results instead",
                    )
                )
        if c.is_accumulate and c.results[0] in self.live:
            self.diagnostics.append(
                Diagnostic("FB0304", f"%{c.results[0]} is already alive", step.span)
            )

    def _report_dead(self, c: CNode, name: str, step: Compute) -> None:
        notes = ()
        if name in self.freed_at:
            notes = (Note(f"%{name} was freed here", self.freed_at[name]),)
        self.diagnostics.append(
            Diagnostic(
                "FB0301",
                f"{c.name} reads %{name}, which is not alive here",
                step.span,
                notes,
                "compute its writer again before this step, or free it later"
                if notes
                else "compute its writer before this step",
            )
        )

    def _take(self, name: str) -> None:
        self.live[name] = None
        self.total += self.sizes.anode[name]
        if self._is_activation(name):
            self.activation += self.sizes.anode[name]

    def _free(self, name: str, span: Span | None) -> None:
        if name not in self.live or self.graph.anode[name].kind in CALLER_KINDS:
            why = "belongs to the caller" if name in self.live else "is not alive here"
            notes = (
                (Note(f"%{name} was freed here", self.freed_at[name]),)
                if name in self.freed_at and name not in self.live
                else ()
            )
            self.diagnostics.append(
                Diagnostic("FB0302", f"free of %{name}, which {why}", span, notes,
                           "remove this step")
            )
            return
        del self.live[name]
        self.freed_at[name] = span
        self.total -= self.sizes.anode[name]
        if self._is_activation(name):
            self.activation -= self.sizes.anode[name]

    def _is_activation(self, name: str) -> bool:
        return self.graph.anode[name].kind not in NON_ACTIVATION_KINDS

    def check_end(self, schedule: Schedule) -> None:
        for a in self.graph.anodes:
            if a.kind in KEPT_KINDS and a.name not in self.live:
                notes = (
                    (Note(f"%{a.name} was freed here", self.freed_at[a.name]),)
                    if a.name in self.freed_at
                    else ()
                )
                self.diagnostics.append(
                    Diagnostic("FB0305", f"{a.kind} %{a.name} is not alive at the end of "
                               f"schedule @{schedule.name}", schedule.span, notes,
                               "compute its writer, and do not free it")
                )
            elif (
                a.name in self.live and a.kind not in KEPT_KINDS and a.kind not in CALLER_KINDS
            ):
                self.diagnostics.append(
                    Diagnostic("FB0306", f"%{a.name} is left behind at the end of schedule "
                               f"@{schedule.name}", schedule.span,
                               hint=f"add `free %{a.name}` after its last use")
                )


def _existing_grads(program: Program, sizes: Sizes) -> int:
    """Bytes of the gradients that the caller already holds (`grads accumulate`)."""
    if program.binding.grads != "accumulate":
        return 0
    return sum(sizes.anode[p.name] for p in program.binding.params if p.grad is not None)


def check_names(graph: Graph, schedule: Schedule) -> list[Diagnostic]:
    """Steps that name nodes the graph does not have."""
    found = []
    for step in schedule.steps:
        if isinstance(step, Compute) and step.cnode not in graph.cnode:
            found.append(Diagnostic("FB0307", f"no cNode {step.cnode} in this graph", step.span))
        elif isinstance(step, Free) and step.anode not in graph.anode:
            what = "is a view; free its base" if step.anode in graph.view else "is not in this graph"
            found.append(Diagnostic("FB0308", f"%{step.anode} {what}", step.span))
    return found


def simulate(
    program: Program, schedule: Schedule, env: Mapping[str, int] | None = None
) -> Trace:
    """Runs `schedule` on sizes at `env` (the sample by default).

    Raises FBError with every violation when the schedule is not valid.
    """
    graph = program.graph
    if unknown := check_names(graph, schedule):
        raise FBError(unknown)
    sizes = Sizes.of(program, env)
    state = _State(program, sizes, schedule.steps)
    during: list[int] = []
    during_activation: list[int] = []
    after: list[int] = []
    time_ns = 0
    loss_steps: list[int] = []
    for index, step in enumerate(schedule.steps):
        total, activation = state.apply(index, step)
        during.append(total)
        during_activation.append(activation)
        after.append(state.total)
        if isinstance(step, Compute):
            c = graph.cnode[step.cnode]
            time_ns += c.time_ns_at(state.executions[c.name])
            if c.is_loss:
                loss_steps.append(index)
    if len(loss_steps) != 1:
        state.diagnostics.append(
            Diagnostic("FB0309", f"the loss {graph.loss.name} runs {len(loss_steps)} times, "
                       "not once", schedule.span)
        )
    for c in graph.cnodes:
        if c.name not in state.executions and (
            any(graph.anode[r].kind == "pending" for r in c.results)
        ):
            state.diagnostics.append(
                Diagnostic("FB0310", f"{c.name} updates a buffer and never runs", schedule.span)
            )
    state.check_end(schedule)
    if state.diagnostics:
        raise FBError(state.diagnostics)
    return Trace(
        tuple(during), tuple(after), tuple(during_activation), state.executions, time_ns,
        loss_steps[0], program, schedule.steps, sizes,
    )
