"""A part of a step as a program, so that any planner may plan it; and its answer as an order.

Bytes are those that the part's instance counts, so the budget is one of the device. Operators are
stand-ins: a planner goes by sizes, times and who reads what. What may not run again gets a form for
replays that makes nothing.
"""

from __future__ import annotations

from dataclasses import replace

from ...ir.expr import Const
from ...ir.graph import ACCUMULATE_OP, LOSS_OP, ANode, ANodeKind, Call, CNode, Graph, Ref, Replay
from ...ir.program import Program
from ...ir.schedule import Compute, Free, Schedule
from ..instance import Instance, Order
from ..programs.solve_compact import is_valid

_OP = "part.step.default"
_AGAIN = "part.again.default"


def program_of_part(part: Instance) -> Program:
    """The program of an instance made by `part_of`. Linear time."""
    return _Writer(part).program()


class _Writer:
    def __init__(self, part: Instance):
        self.part = part
        self.names = [f"a{a}" for a in range(len(part.size_A))]
        self.token_A = {a for a in part.token_C if a >= 0}

    def program(self) -> Program:
        part = self.part
        graph = Graph(
            "part",
            tuple(self._anode(a) for a in range(len(part.size_A))),
            (),
            tuple(self._cnode(c) for c in range(len(part.names_C))),
        )
        return Program(graph)

    def _anode(self, a: int) -> ANode:
        part = self.part
        size = Const(part.size_A[a])
        return ANode(self.names[a], self._kind(a), "u8", (size,), size)

    def _kind(self, a: int) -> ANodeKind:
        part = self.part
        if a in self.token_A:
            return "rng"
        if part.kept_A[a]:
            return "output"
        phase = part.phase_C[part.writer_A[a]]
        return "act" if phase == "fwd" else "tangent" if phase == "loss" else "grad"

    def _call(self, op: str, anodes: tuple[int, ...]) -> Call:
        return Call(op, tuple(Ref(self.names[a]) for a in anodes))

    def _cnode(self, c: int) -> CNode:
        part, name = self.part, f"c{c}"
        writes = tuple(self.names[a] for a in part.writes_C[c]) or (None,)
        if c == part.loss:
            return CNode(name, "loss", writes, self._call(LOSS_OP, part.reads_C[c]), time_ns=0)
        made = CNode(
            name,
            "fwd" if part.phase_C[c] == "fwd" else "bwd",
            writes,
            self._call(_OP, part.reads_C[c]),
            workspace=Const(part.workspace_C[c]),
            time_ns=part.time_C[c],
        )
        ends = part.ends_C[c]
        if ends >= 0 and self._adds_in_place(c, ends):
            other = tuple(a for a in part.reads_C[c] if a != ends)
            return replace(made, phase="bwd", call=self._call(ACCUMULATE_OP, (ends, *other)))
        token = self.names[part.token_C[c]] if part.token_C[c] >= 0 else None
        return replace(made, replay=self._replay(c), token=token)

    def _adds_in_place(self, c: int, ends: int) -> bool:
        """False for what the caller gives, and where a budget counts only one of the two."""
        part = self.part
        sizes = {part.size_A[a] for a in (ends, *part.writes_C[c])}
        return part.writer_A[ends] != part.loss and len(sizes) == 1

    def _replay(self, c: int) -> Replay | None:
        part = self.part
        makes: tuple[str | None, ...] = tuple(self.names[a] for a in part.rewrites_C[c])
        if not part.makable_C[c]:
            makes = ()
        elif not part.replay_C[c] and part.rewrites_C[c] == part.writes_C[c]:
            return None
        call = self._call(_AGAIN, part.rereads_C[c])
        return Replay(makes or (None,), call, Const(part.reworkspace_C[c]), part.retime_C[c])


def order_of_schedule(part: Instance, schedule: Schedule) -> Order | str:
    """The order of a schedule of the part's program, or why it is none of the part."""
    steps = schedule.steps
    number = {f"c{c}": c for c in range(len(part.names_C))}
    if not all(isinstance(step, Compute | Free) for step in steps):
        return "a plan with copies"
    names = [step.cnode for step in steps if isinstance(step, Compute)]
    if not all(name in number for name in names):
        return "a plan of something else"
    order = [number[name] for name in names]
    seen = set(order)
    if not is_valid(part, order) or len(seen) < len(part.names_C):
        return "a plan that reads what it has not made, or leaves something out"
    again = [c for i, c in enumerate(order) if c in order[:i]]
    if any(not part.makable_C[c] for c in again):
        return "a plan that runs again what may run once only"
    musts = [c for c in order[: order.index(part.loss)] if part.must_C[c] or part.token_C[c] >= 0]
    wanted = {c for c in seen if c < part.loss and (part.must_C[c] or part.token_C[c] >= 0)}
    if set(musts) != wanted:
        return "a plan that puts off what must run before the loss"
    return order
