"""Arguments, saved tensors and results of the two generated functions."""

from __future__ import annotations

from collections.abc import Sequence

from ....ir.program import Program
from ...readback.machine import AbstractMachine, Dead
from ...readback.values import (
    ANodeInstance,
    CallCopies,
    Literal,
    RandomState,
    Value,
    as_value,
    shown,
)
from ..code.interface import Interface
from .function import Function


class Ends:
    """Arguments and results of the functions: from the caller, to each other, to the caller.

    `forward: inputs -> (*outputs, *saved, *symbols)`, `backward: (*symbols, *saved,
    *tangents) -> grads`, as PyTorch's autograd wrappers hand them on; `copies` are the forward's
    last input and the last that is saved.
    """

    def __init__(self, program: Program, interface: Interface, copies: list[CallCopies]):
        self.program, self.interface, self.copies = program, interface, copies
        self.saved: tuple[str, ...] = ()
        self._saved: list[ANodeInstance | RandomState] = []

    def enter_forward(self, f: Function) -> None:
        given = [
            Literal("None") if n is None else ANodeInstance(n, 0) for n in self.interface.inputs
        ]
        f.given([*given, *self.copies])

    def leave_forward(self, f: Function) -> None:
        count = len(self.interface.outputs)
        last = [*self.copies, *self._symbols(f.machine)]
        ends = len(f.returned) - len(last)
        if ends < count:
            f.differs(f.end, f"{len(f.returned)} values are returned")
        self._compare(f, f.returned[:count], self.interface.outputs, "output")
        if f.returned[ends:] != last:
            wanted = ", ".join(map(shown, last))
            f.differs(f.end, f"the last values returned are not these: {wanted}")
        names = {value: name for name, value in f.machine.live.items()}
        for value in f.returned[count:ends]:
            if not isinstance(value, ANodeInstance | RandomState) or value not in names:
                f.differs(f.end, f"{shown(value)} is saved, which is no live aNode")
            self._saved.append(value)
        for name in f.machine.flying:
            if f.machine.live[name] not in self._saved:
                f.differs(f.end, f"%{name} is not saved, and a copy of it is under way")
        self.saved = tuple(names[value] for value in self._saved)
        f.machine.compute(f.machine.execution())

    def enter_backward(self, f: Function) -> None:
        machine, saved = f.machine, self._saved
        missing = [t for t in self.interface.tangents if t not in machine.live]
        if missing:
            f.differs(f.node, f"%{missing[0]} is no result of the loss")
        tangents = [machine.live[t] for t in self.interface.tangents]
        given = {*saved, *tangents}
        f.elsewhere = set(machine.live.values()) - given
        for storage in given:
            f.held.want(storage, True)
        machine.changes.clear()
        f.given([*self._symbols(machine), *saved, *self.copies, *tangents])

    def leave_backward(self, f: Function) -> None:
        if len(f.returned) != len(self.interface.grads):
            f.differs(f.end, f"{len(f.returned)} values are returned")
        self._compare(f, f.returned, self.interface.grads, "gradient")

    def _symbols(self, machine: AbstractMachine) -> list[Value]:
        return [as_value(machine.symbols[s.name]) for s in self.program.symbols]

    def _compare(
        self, f: Function, values: list[Value], names: Sequence[str | None], what: str
    ) -> None:
        for place, (value, name) in enumerate(zip(values, names, strict=True), 1):
            try:
                wanted: Value = Literal("None") if name is None else f.machine.value(name)
            except Dead as dead:
                f.differs(f.end, f"{what} {place}: %{dead} is not live")
            if value != wanted:
                f.differs(f.end, f"{what} {place} is {shown(value)}, not {shown(wanted)}")
