"""Will it fit? The bytes of a device at the fullest moment of a training step, by what holds them.

Without an optimizer in the program its states are held all the time, and its update comes behind
the step, with every gradient there. So with the bytes D_i of the device in step i, E at its end,
states S and an update's own bytes U the device needs

    max(max_i D_i + S, E + S + U) + what the driver and libraries hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ..ir.analysis.optimizer_states import OPTIMIZERS, USUAL, AssumedOptimizer, assumed_optimizer
from ..ir.diagnostics import fail
from ..ir.expr import evaluate
from ..ir.graph import DTYPE_BYTES
from ..ir.program import Program
from ..ir.rewrites.packs import erased
from ..ir.rewrites.updates import has_updates
from ..ir.semantics.simulate import Trace, simulate
from ..ir.units import format_bytes
from .subject import Subject, store_all

PARAMETERS, GRADIENTS, STATES, GIVEN, ACTIVATIONS, WORKSPACE, LIBRARIES = KINDS = (
    "parameters",
    "gradients",
    "optimizer states",
    "inputs and buffers",
    "activations",
    "workspace",
    "PyTorch and its libraries",
)
_KIND_OF = {"param": PARAMETERS, "param_grad": GRADIENTS, "opt_state": STATES}
_KIND_OF |= dict.fromkeys(("input", "buffer", "const"), GIVEN)
IN_UPDATE = "in the update of the optimizer"
SAVING = 0.01
"""Share of the peak, but for what libraries hold, that a change saves at least to be named."""


@dataclass(frozen=True, slots=True)
class FitRow:
    """Bytes at the fullest moment with nothing recomputed (`now_bytes`) and under the plan."""

    kind: str
    now_bytes: int
    plan_bytes: int
    source: str


@dataclass(frozen=True)
class Fullest:
    """The fullest moment of one schedule, on an optimizer's terms: `by_kind` adds up to `bytes`."""

    at: str
    by_kind: Mapping[str, int]

    @property
    def bytes(self) -> int:
        return sum(self.by_kind.values())


@dataclass(frozen=True)
class Fit:
    """A plan and the step with nothing recomputed, held against the memory of the target.

    `optimizer` is None where it steps in the program itself. `memory_bytes` and `library_bytes`
    are None where they are not known.
    """

    subject: Subject
    optimizer: AssumedOptimizer | None
    memory_bytes: int | None
    library_bytes: int | None

    @staticmethod
    def of(subject: Subject, optimizer: str | None = None) -> Fit:
        """FB0968 as `chosen_optimizer`."""
        chosen = chosen_optimizer(subject.program, optimizer)
        memory = subject.program.target.memory_bytes
        return Fit(subject, chosen, memory, subject.library_bytes)

    @property
    def device(self) -> str:
        return self.subject.program.target.name

    @cached_property
    def state_bytes(self) -> int:
        """Bytes of the states that are assumed."""
        return (
            0 if self.optimizer is None else assumed_bytes(self.subject.program, self.optimizer)[0]
        )

    @cached_property
    def without(self) -> tuple[Program, Trace]:
        program = erased(self.subject.program)
        return program, simulate(program, store_all(program))

    @cached_property
    def now(self) -> Fullest:
        program, trace = self.without
        return self._fullest(Subject(program, store_all(program)), trace, self.optimizer)

    @cached_property
    def planned(self) -> Fullest:
        return self._fullest(self.subject, self.subject.trace, self.optimizer)

    def planned_with(self, optimizer: AssumedOptimizer) -> int:
        """Bytes under the plan with another optimizer."""
        return self._fullest(self.subject, self.subject.trace, optimizer).bytes

    def _fullest(
        self, subject: Subject, trace: Trace, optimizer: AssumedOptimizer | None
    ) -> Fullest:
        """The moment is of the step, or of the update behind it."""
        program, states, update = subject.program, 0, 0
        if optimizer is not None:
            states, update = assumed_bytes(program, optimizer)
        held = {STATES: states, LIBRARIES: self.library_bytes or 0}
        if optimizer is not None and trace.after[-1] + update > trace.peak_bytes:
            kinds = at_the_end(program, trace)
            kinds[WORKSPACE] += update
            return Fullest(IN_UPDATE, _sum(kinds, held))
        step = trace.peak_step
        return Fullest(f"at {subject.step_text(step)}", _sum(_during(program, trace, step), held))

    @property
    def rows(self) -> tuple[FitRow, ...]:
        sources = self._sources()
        return tuple(
            FitRow(kind, self.now.by_kind[kind], self.planned.by_kind[kind], sources[kind])
            for kind in KINDS
        )

    def _sources(self) -> dict[str, str]:
        costs = self.subject.program.header.costs
        own = "of the optimizer that steps in this program"
        known = self.library_bytes is not None
        workspace = "measured" if costs == "measured" else "not known of operators, taken as 0"
        if self.planned.at == IN_UPDATE:
            workspace = "of the update"
        return {
            PARAMETERS: "of the model",
            GRADIENTS: "those there at that moment",
            STATES: own if self.optimizer is None else f"assumed: {self.optimizer.name}",
            GIVEN: "held by the caller",
            ACTIVATIONS: "simulated",
            WORKSPACE: workspace,
            LIBRARIES: "reported by users, see the device's file" if known else "not known",
        }

    @property
    def _is_asked(self) -> bool:
        """True where the plan is to lower anything: it has a budget, or runs or copies more."""
        trace = self.subject.trace
        more = sum(trace.executions.values()) > len(trace.executions)
        return self.subject.planned and bool(self.subject.budgets or more or trace.copies)

    @property
    def lowers(self) -> bool:
        return self.planned.bytes < self.now.bytes

    @property
    def fits_now(self) -> bool | None:
        return None if self.memory_bytes is None else self.now.bytes <= self.memory_bytes

    @property
    def fits(self) -> bool | None:
        """Under the plan; None without a memory to fit into."""
        return None if self.memory_bytes is None else self.planned.bytes <= self.memory_bytes

    def remedies(self) -> list[str]:
        """Changes that would lower the peak under this plan, the most first."""
        lower = sorted(
            (self.planned_with(o), f'the optimizer "{o.name}"')
            for o in (OPTIMIZERS.values() if self.optimizer is not None else ())
        )
        peak, trace, libraries = self.planned.bytes, self.subject.trace, self.library_bytes or 0
        most = peak - SAVING * (peak - libraries)
        made = [f"{what}: {format_bytes(size)}" for size, what in lower if size < most]
        inside = trace.peak_bytes + self.state_bytes + libraries
        if self.optimizer is not None and inside < peak:
            how = "updates in the plan (the factory returns its optimizer too)"
            made.append(f"{how}: {format_bytes(inside)} or less")
        floor = self.subject.floor[0]
        if floor < trace.peak_bytes and self.planned.at != IN_UPDATE:
            least = format_bytes(floor + self.state_bytes + libraries)
            made.append(f"a smaller budget: no plan takes less than {least}")
        if self.planned.by_kind[STATES] and self.subject.program.target.has_link:
            made.append("states on the host: an optimizer in the plan, and the planner offmate")
        return made

    def verdict(self) -> list[str]:
        """Return sentences, the most important one first."""
        now, planned = format_bytes(self.now.bytes), format_bytes(self.planned.bytes)
        lines = []
        if self._is_asked and not self.lowers and not self.fits_now:
            lines.append(f"the plan does not lower the device's peak: {planned}, {self.planned.at}")
            lines += [f"  what would: {remedy}" for remedy in self.remedies()]
        if self.memory_bytes is None:
            return lines
        memory, name = format_bytes(self.memory_bytes), self.device
        left = format_bytes(abs(self.memory_bytes - self.planned.bytes))
        if self.fits_now:
            lines.append(f"it fits into {name} as it is: {now} of {memory}")
        elif self.fits:
            lines.append(f"it fits into {name} under the plan: {planned} of {memory}, not {now}")
        else:
            lines.append(f"it does not fit into {name}: {planned} for {memory}, {left} too many")
            lines += [f"  what would help: {r}" for r in self.remedies() if self.lowers]
        return lines

    def table(self) -> list[tuple[str, ...]]:
        """Rows for people, with a head and a sum."""
        head = ("at the fullest moment", "now", "under the plan", "source")
        rows = [
            (r.kind, format_bytes(r.now_bytes), format_bytes(r.plan_bytes), r.source)
            for r in self.rows
        ]
        places = [self.now.at] if self.now.at == self.planned.at else [
            f"now {self.now.at}", f"planned {self.planned.at}"
        ]  # fmt: skip
        sums = (format_bytes(self.now.bytes), format_bytes(self.planned.bytes))
        return [head, *rows, ("in all", *sums, "; ".join(places))]

    def as_object(self) -> dict[str, object]:
        """The same for programs."""
        return {
            "device": self.device,
            "memory_bytes": self.memory_bytes,
            "optimizer": None if self.optimizer is None else self.optimizer.name,
            "rows": self.rows,
            "now_bytes": self.now.bytes,
            "now_at": self.now.at,
            "plan_bytes": self.planned.bytes,
            "plan_at": self.planned.at,
            "lowers_peak": self.lowers,
            "fits_now": self.fits_now,
            "fits": self.fits,
            "verdict": self.verdict(),
        }


def chosen_optimizer(program: Program, name: str | None) -> AssumedOptimizer | None:
    """The optimizer that is assumed; None where one steps in the program. FB0968 for a name that is
    not known, or that is given beside that one."""
    chosen = assumed_optimizer(name or USUAL)
    if not has_updates(program):
        return chosen
    if name is not None:
        message = f'an optimizer steps in this program, and "{name}" is named beside it'
        fail("FB0968", message, hint="leave one of them away", usage=True)
    return None


def assumed_bytes(program: Program, optimizer: AssumedOptimizer) -> tuple[int, int]:
    """Bytes of the states of all trained parameters, and of an update of all of them."""
    graph, at = program.graph, program.sample
    states = update = 0
    for bound in program.binding.params:
        if bound.grad is not None:
            node = graph.anode[bound.name]
            width = DTYPE_BYTES[node.dtype]
            count = evaluate(node.size, at) // width
            states += optimizer.state_bytes(count, width)
            update += optimizer.update_bytes(count, width)
    return states, update


def at_the_end(program: Program, trace: Trace) -> dict[str, int]:
    """Bytes by kind behind the last step: what the caller keeps, with every gradient."""
    made = dict.fromkeys(KINDS, 0)
    for node in program.graph.anodes:
        if node.kind in _KIND_OF:
            made[_KIND_OF[node.kind]] += trace.anode_bytes[node.name]
    made[ACTIVATIONS] = trace.after[-1] - sum(made.values())
    return made


def _during(program: Program, trace: Trace, step: int) -> dict[str, int]:
    made, graph = dict.fromkeys(KINDS, 0), program.graph
    for name, size in trace.live_at(step):
        if name.startswith(("(workspace", "(dropped")):
            kind = WORKSPACE
        elif name not in graph.anode:
            kind = GRADIENTS
        else:
            kind = _KIND_OF.get(graph.anode[name].kind, ACTIVATIONS)
        made[kind] += size
    return made


def _sum(*parts: Mapping[str, int]) -> dict[str, int]:
    return {kind: sum(part.get(kind, 0) for part in parts) for kind in KINDS}
