"""Reference semantics: a linear-time simulator of a schedule.

It runs a schedule over sizes only. Memory is taken at `compute` and `prefetch` (on the
host: at `offload`) and given back exactly at `free` (`hostfree`). The bytes of a step are
what lives before it, what it writes (results of a replay that are still alive are written
again and dropped), and its workspace, each rounded up to the granularity of the target.
Copies take time on streams of their own. `spec/semantics.md` states the rules; the
verifier proves the same ones a second time, on its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ..checks.steps import check_names
from ..diagnostics import Diagnostic, FBError
from ..program import Program
from ..schedule import Compute, Schedule, Step
from .copies import Copy
from .machine import During, Machine
from .sizes import KEPT_KINDS, NON_ACTIVATION_KINDS, Sizes

__all__ = [
    "KEPT_KINDS",
    "NON_ACTIVATION_KINDS",
    "Copy",
    "Sizes",
    "Trace",
    "check_names",
    "simulate",
]


@dataclass(frozen=True)
class Trace:
    """Memory and time of a valid schedule, one entry per step (index as in `steps`).

    `during` counts a step's transients; `after` what lives when it is done; the
    `_activation` lists leave out `NON_ACTIVATION_KINDS`; `during_host` counts host copies.
    `time_ns` is when the compute stream is done: the sum over the computations, the time that
    issuing copies took, and that for which it stood still to wait for them; `copies` lists them
    as they ended.
    """

    during: tuple[int, ...]
    after: tuple[int, ...]
    during_activation: tuple[int, ...]
    during_host: tuple[int, ...]
    executions: Mapping[str, int]
    time_ns: int
    loss_step: int
    copies: tuple[Copy, ...]
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

    @cached_property
    def host_peak_bytes(self) -> int:
        return max(self.during_host)

    @cached_property
    def host_peak_step(self) -> int:
        return self.during_host.index(self.host_peak_bytes)

    @property
    def anode_bytes(self) -> Mapping[str, int]:
        """Bytes of every aNode, as they were counted."""
        return self._sizes.anode

    @cached_property
    def stall_ns(self) -> int:
        """The part of `time_ns` that the compute stream spent in waits."""
        return sum(copy.stall_ns for copy in self.copies)

    @property
    def issuing_ns(self) -> int:
        """The part of `time_ns` that the compute stream spent issuing copies."""
        return len(self.copies) * self._program.target.copy_issue_ns

    def host_at(self, step: int) -> tuple[tuple[str, int], ...]:
        """aNodes that the host holds during a step, largest first, with bytes, and the gradients
        that are there already. The sum is `during_host[step]`.
        """
        state = self._state_at(step)
        held = {name: self._sizes.anode[name] for name in state.copies.host}
        now = self._steps[step]
        if not isinstance(now, Compute) and now.copies == "d2h":
            held[now.anode] = self._sizes.anode[now.anode]
        if state.copies.bytes_beside:
            held["(existing gradients)"] = state.copies.bytes_beside
        return tuple(sorted(held.items(), key=lambda item: (-item[1], item[0])))

    def _state_at(self, step: int) -> Machine:
        state = Machine(self._program, self._sizes, self._steps)
        for index in range(step):
            state.apply(index, self._steps[index])
        return state

    def live_at(self, step: int) -> tuple[tuple[str, int], ...]:
        """aNodes and bytes alive during a step, largest first, `(workspace)` included.

        `(dropped x)` are the results of a replay of aNodes that are still alive. The sum
        is `during[step]`.
        """
        state = self._state_at(step)
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
        elif now.copies == "h2d":
            alive[now.anode] = self._sizes.anode[now.anode]
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
    during: list[During] = []
    after: list[int] = []
    loss_steps: list[int] = []
    for index, step in enumerate(schedule.steps):
        during.append(state.apply(index, step))
        after.append(state.total)
        if isinstance(step, Compute) and graph.cnode[step.cnode].is_loss:
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
        tuple(d.device for d in during),
        tuple(after),
        tuple(d.activation for d in during),
        tuple(d.host for d in during),
        state.executions,
        state.copies.now_ns,
        loss_steps[0],
        tuple(state.copies.done),
        program,
        schedule.steps,
        sizes,
    )
