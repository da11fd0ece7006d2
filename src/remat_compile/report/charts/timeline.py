"""Simulated times of the steps of a schedule, and lifetimes of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ...ir.program import Program
from ...ir.schedule import Compute, Schedule, Step
from ...ir.semantics.machine import Machine
from ...ir.semantics.simulate import Copy, Trace
from ...ir.semantics.sizes import Sizes

Role = Literal["fwd", "loss", "bwd", "opt", "again"]
"""The purpose of an execution: its phase, or `again` after the first."""


@dataclass(frozen=True, slots=True)
class Run:
    """One execution of a cNode; `execution` counts from 1."""

    step: int
    cnode: str
    execution: int
    start_ns: int
    end_ns: int
    role: Role


@dataclass(frozen=True, slots=True)
class Life:
    """One instance of an aNode on the device: after which step it is there, and from which step
    on it is not (`born` < `died`). `again` says that it is the result of a later execution."""

    anode: str
    born: int
    died: int
    again: bool


@dataclass(frozen=True)
class Timeline:
    """`clock_ns[i]` is when step i begins on the compute stream, with one more entry: the end."""

    clock_ns: tuple[int, ...]
    runs: tuple[Run, ...]
    lives: tuple[Life, ...]
    copies: tuple[Copy, ...]

    @staticmethod
    def of(program: Program, schedule: Schedule, trace: Trace) -> Timeline:
        """The timeline of a valid schedule and its trace."""
        clock: list[int] = []
        runs: list[Run] = []
        lives: list[Life] = []
        born: dict[str, tuple[int, bool]] = {}
        for index, step, state in replay(program, schedule):
            now = state.copies.now_ns
            clock.append(now)
            again = False
            touched: tuple[str, ...]
            if isinstance(step, Compute):
                c = program.graph.cnode[step.cnode]
                n = state.executions.get(c.name, 0) + 1
                run_ns = c.time_ns_at(n)
                runs.append(Run(index, c.name, n, now, now + run_ns, role_of(c.phase, n)))
                ended = program.graph.reads(c)[:1] if c.is_accumulate else ()
                token = (c.token,) if c.token else ()
                touched, again = (*c.results, *token, *ended), n > 1
            else:
                touched = (step.anode,)
            before = {name for name in touched if name in state.live}
            state.apply(index, step)
            for name in touched:
                if name in state.live and name not in before:
                    born[name] = (index, again)
                elif name in before and name not in state.live and name in born:
                    start, was = born.pop(name)
                    lives.append(Life(name, start, index, was))
        clock.append(trace.time_ns)
        count = len(schedule.steps)
        lives += [Life(name, start, count, was) for name, (start, was) in born.items()]
        return Timeline(tuple(clock), tuple(runs), tuple(lives), trace.copies)


def replay(program: Program, schedule: Schedule) -> Iterator[tuple[int, Step, Machine]]:
    """The simulator's machine before each step. Whoever iterates applies the step to it."""
    state = Machine(program, Sizes.of(program), schedule.steps)
    for index, step in enumerate(schedule.steps):
        yield index, step, state


def role_of(phase: Literal["fwd", "loss", "bwd", "opt"], execution: int) -> Role:
    return phase if execution == 1 else "again"
