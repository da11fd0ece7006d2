"""The simulator's verdict on many schedules of one graph, without its words.

Orders are tried by the hundred, and of each only matters whether it is valid and what it takes at
most. The rules are those of `ir/semantics/machine.py`, which has the last word on what is taken;
a test holds the two against each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..ir.diagnostics import FBError
from ..ir.graph import CALLER_KINDS, CNode
from ..ir.program import Program
from ..ir.schedule import Compute, Free, Schedule, Step
from ..ir.semantics.simulate import KEPT_KINDS, NON_ACTIVATION_KINDS, Sizes, simulate
from ..ir.semantics.sizes import existing_grads

__all__ = ["PeakCheck", "Peaks"]

Peaks = tuple[int, int]
"""Bytes: of the device, and of the activations."""


@dataclass(frozen=True, slots=True)
class _Execution:
    """What an execution reads, makes, and takes in bytes (of the device, of activations); `ends` is
    the term of a sum whose storage goes on under the name of the result."""

    reads: tuple[str, ...]
    makes: tuple[str, ...]
    unsaved: tuple[str, ...]
    device: int
    activation: int
    is_loss: bool
    ends: str | None
    draw: int | None


class PeakCheck:
    """Made once for a program, whose schedules it then looks at."""

    def __init__(self, program: Program):
        graph, sizes = program.graph, Sizes.of(program)
        self.program = program
        self.bytes = sizes.anode
        kinds = {a.name: a.kind for a in graph.anodes}
        self.callers = {name for name, kind in kinds.items() if kind in CALLER_KINDS}
        self.ends_alive = {name for name, kind in kinds.items() if kind in KEPT_KINDS}
        self.activations = {n for n, kind in kinds.items() if kind not in NON_ACTIVATION_KINDS}
        self.held = program.held_since_loss
        self.updated = {b.name for b in program.binding.buffers if b.update is not None}
        self.begin_bytes = sum(self.bytes[name] for name in self.callers)
        self.begin_bytes += existing_grads(program, sizes)
        ordered = (c.name for c in graph.cnodes if c.token is not None or c.is_loss)
        self.draws = {name: place for place, name in enumerate(ordered)}
        self.tokens = {c.name for c in graph.cnodes if c.token is not None}
        pending = {n for n, kind in kinds.items() if kind == "pending"}
        self.effects = self.tokens | {
            c.name for c in graph.cnodes if not pending.isdisjoint(c.results)
        }
        self.known: dict[tuple[str, int, bool], _Execution] = {}
        self.sizes = sizes

    def within(self, peaks: Peaks, steps: Sequence[Step]) -> bool:
        """Whether they are a valid schedule that takes no more."""
        if all(isinstance(step, Compute | Free) for step in steps):
            return self._runs(steps, peaks)
        try:
            trace = simulate(self.program, Schedule("tried", "", tuple(steps)))
        except FBError:
            return False
        return trace.peak_bytes <= peaks[0] and trace.activation_peak_bytes <= peaks[1]

    def _runs(self, steps: Sequence[Step], peaks: Peaks) -> bool:
        again = self._again(steps)
        live = set(self.callers)
        executions: dict[str, int] = {}
        device, activation = self.begin_bytes, 0
        most, most_activation = peaks
        is_after_loss, last_draw = False, -1
        sizes, activations, known = self.bytes, self.activations, self.known
        for step in steps:
            if isinstance(step, Compute):
                name = step.cnode
                n = executions[name] = executions.get(name, 0) + 1
                key = name, min(n, 2), name in again
                run = known.get(key) or self._execution(key)
                if not live.issuperset(run.reads):
                    return False
                if is_after_loss and self._is_stale(run):
                    return False
                if run.draw is not None:
                    if run.draw < last_draw:
                        return False
                    last_draw = run.draw
                if device + run.device > most or activation + run.activation > most_activation:
                    return False
                if run.ends is not None:
                    if run.makes[0] in live:
                        return False
                    if run.ends not in self.callers:
                        live.discard(run.ends)
                        device -= sizes[run.ends]
                        activation -= sizes[run.ends] if run.ends in activations else 0
                for made in run.makes:
                    if made not in live:
                        live.add(made)
                        device += sizes[made]
                        activation += sizes[made] if made in activations else 0
                is_after_loss |= run.is_loss
                freed: Iterable[str] = run.unsaved if step.nosave else ()
            else:
                if device > most or activation > most_activation:
                    return False
                freed = (step.anode,)
            for name in freed:
                if name not in live or name in self.callers:
                    return False
                if is_after_loss and name in self.held:
                    return False
                live.discard(name)
                device -= sizes[name]
                activation -= sizes[name] if name in activations else 0
        if executions.get(self.program.graph.loss.name) != 1:
            return False
        return self.effects <= executions.keys() and live == self.callers | self.ends_alive

    def _again(self, steps: Sequence[Step]) -> set[str]:
        """The random operators that run more than once, which so need what their numbers began
        from."""
        if not self.tokens:
            return set()
        runs = Counter(s.cnode for s in steps if isinstance(s, Compute))
        return {name for name in self.tokens if runs[name] > 1}

    def _is_stale(self, run: _Execution) -> bool:
        """Whether it reads a buffer whose new contents are written back."""
        return not run.is_loss and not self.updated.isdisjoint(run.reads)

    def _execution(self, key: tuple[str, int, bool]) -> _Execution:
        name, n, is_again = key
        graph = self.program.graph
        c: CNode = graph.cnode[name]
        reads = graph.reads(c, n)
        token = () if c.token is None else (c.token,)
        makes = c.results_at(n) + (token if n == 1 and is_again else ())
        taken = () if c.is_accumulate else makes
        workspace = self.sizes.workspace_at(c, n)
        kinds = graph.anode
        run = _Execution(
            reads + (token if n > 1 else ()),
            makes,
            tuple(name for name in taken if kinds[name].kind == "phantom"),
            sum(self.bytes[name] for name in taken) + workspace,
            sum(self.bytes[name] for name in taken if name in self.activations) + workspace,
            c.is_loss,
            reads[0] if c.is_accumulate else None,
            self.draws.get(name) if n == 1 else None,
        )
        self.known[key] = run
        return run
