"""What a kernel writes over, by the name of its function: nothing that anybody reads again.

`fused0_r0_over_a1` may write its first result over its second argument. That is right where the
argument is all of a storage that this very function computed and that the schedule frees right
after; where nothing else that is given lies in it; and where the result takes as much.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ....ir.schedule import Free
from ...readback.expressions import OperatorCall
from ...readback.machine import AbstractMachine, Execution
from ...readback.mismatch import differs
from ...readback.values import ANodeInstance, shown, storages

__all__ = ["Overwriting"]


@dataclass(frozen=True)
class Overwriting:
    """`own` are instances that the function has computed so far, each in storage of its own."""

    machine: AbstractMachine
    own: set[ANodeInstance]

    def check(self, node: ast.AST, file: str, called: OperatorCall, now: Execution) -> None:
        """FB0945 where the call may write over something else; `now` is done."""
        pairs = [
            (int(result), int(argument))
            for result, argument in re.findall("_r([0-9]+)_over_a([0-9]+)", called.region)
        ]
        for what in self._faults(pairs, called, now):
            differs(node, file, str(now), f"{called.region} {what}")

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
            if not isinstance(value, ANodeInstance) or value not in self.own:
                yield f"writes over {shown(value)}, which was not computed here"
                return
            others = (v for at, v in enumerate(called.args) if at != place)
            if any(value in storages(v) for v in others):
                yield f"writes over {shown(value)}, which another argument reads"
            if value.anode not in freed or value.anode in self.machine.flying:
                yield f"writes over {shown(value)}, which is not freed right after"
            if self._kind(now.slots[result].anode) != self._kind(value.anode):
                yield f"writes over {shown(value)}, which takes other bytes"

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
