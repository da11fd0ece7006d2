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

from ._machine import KEPT_KINDS, NON_ACTIVATION_KINDS, Machine, Sizes, check_names
from .diagnostics import Diagnostic, FBError
from .program import Program
from .schedule import Compute, Schedule, Step

__all__ = ["KEPT_KINDS", "NON_ACTIVATION_KINDS", "Sizes", "Trace", "check_names", "simulate"]


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
        """aNodes and bytes alive during a step, largest first, `(workspace)` included.

        `(dropped x)` are the results of a replay of aNodes that are still alive. The sum
        is `during[step]`.
        """
        state = Machine(self._program, self._sizes, self._steps)
        for index in range(step):
            state.apply(index, self._steps[index])
        alive = dict(state.bytes_of_live())
        now = self._steps[step]
        if isinstance(now, Compute):
            c = state.graph.cnode[now.cnode]
            n = state.executions.get(c.name, 0) + 1
            for name in state.allocated(c, n):
                shown = f"(dropped {name})" if name in alive else name
                alive[shown] = self._sizes.anode[name]
            if workspace := self._sizes.workspace_at(c, n):
                alive["(workspace)"] = workspace
        return tuple(sorted(alive.items(), key=lambda item: (-item[1], item[0])))


def simulate(program: Program, schedule: Schedule, env: Mapping[str, int] | None = None) -> Trace:
    """Runs `schedule` on sizes at `env` (the sample by default).

    Raises FBError with every violation when the schedule is not valid.
    """
    graph = program.graph
    if unknown := check_names(graph, schedule):
        raise FBError(unknown)
    sizes = Sizes.of(program, env)
    state = Machine(program, sizes, schedule.steps)
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
            Diagnostic(
                "FB0309",
                f"the loss {graph.loss.name} runs {len(loss_steps)} times, not once",
                schedule.span,
            )
        )
    state.check_effects(schedule)
    state.check_end(schedule)
    if state.diagnostics:
        raise FBError(state.diagnostics)
    return Trace(
        tuple(during),
        tuple(after),
        tuple(during_activation),
        state.executions,
        time_ns,
        loss_steps[0],
        program,
        schedule.steps,
        sizes,
    )
