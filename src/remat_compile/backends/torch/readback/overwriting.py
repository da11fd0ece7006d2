"""What a kernel writes over, by the name of its function: nothing that anybody reads again.

`fused0_r0_over_a1` may write its first result over its second argument. That is right where the
argument is all of a storage that the schedule frees right after, and that this very function
computed; where nothing else that is given lies in it; and where the result takes as much. In the
backward it may also be what the forward computed and saved, an activation that is in no result: the
step is told which, and asks of each whether somebody else holds it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ....ir.schedule import Free
from ...readback.expressions import OperatorCall
from ...readback.machine import AbstractMachine, Execution
from ...readback.mismatch import differs
from ...readback.values import ANodeInstance, shown, storages

__all__ = ["Overwriting"]

SAVED = ("act", "phantom")


@dataclass(frozen=True)
class Overwriting:
    """Of one function: `own` are instances that it has computed so far, each in storage of its own,
    `saved` those that it was given and may write over, `written` what of them it writes over."""

    machine: AbstractMachine
    file: str
    own: set[ANodeInstance] = field(default_factory=set)
    saved: set[ANodeInstance] = field(default_factory=set)
    written: set[ANodeInstance] = field(default_factory=set)

    def computed(self, node: ast.AST, called: OperatorCall, now: Execution) -> None:
        """After `now`. FB0945 where its call may write over something else."""
        if called.region:
            self._check(node, called, now)
        if now.ended is None or now.ended in self.own:
            self.own.update(now.slots)

    def _check(self, node: ast.AST, called: OperatorCall, now: Execution) -> None:
        pairs = [
            (int(result), int(argument))
            for result, argument in re.findall("_r([0-9]+)_over_a([0-9]+)", called.region)
        ]
        for what in self._faults(pairs, called, now):
            differs(node, self.file, str(now), f"{called.region} {what}")

    def _faults(
        self, pairs: list[tuple[int, int]], called: OperatorCall, now: Execution
    ) -> Iterator[str]:
        results, places = [r for r, _ in pairs], [a for _, a in pairs]
        if len({*results}) < len(results) or len({*places}) < len(places):
            yield "writes two results to one place, or one to two"
        freed = self._freed()
        for result, place in pairs:
            if result >= len(now.slots) or place >= len(called.args):
                yield "has no such result or argument"
                return
            value = called.args[place]
            if not isinstance(value, ANodeInstance) or not self._may_be_written(value):
                yield f"writes over {shown(value)}, which was not computed here"
                return
            others = (v for at, v in enumerate(called.args) if at != place)
            if any(value in storages(v) for v in others):
                yield f"writes over {shown(value)}, which another argument reads"
            if value.anode not in freed or value.anode in self.machine.flying:
                yield f"writes over {shown(value)}, which is not freed right after"
            if self._kind(now.slots[result].anode) != self._kind(value.anode):
                yield f"writes over {shown(value)}, which takes other bytes"

    def _may_be_written(self, value: ANodeInstance) -> bool:
        if value in self.saved and self.machine.graph.anode[value.anode].kind in SAVED:
            self.written.add(value)
            return True
        return value in self.own

    def _freed(self) -> set[str]:
        freed = set()
        for step in self.machine.steps[self.machine.at :]:
            if not isinstance(step, Free):
                break
            freed.add(step.anode)
        return freed

    def _kind(self, name: str) -> object:
        a = self.machine.graph.anode.get(name)
        return None if a is None else (a.dtype, a.size)
