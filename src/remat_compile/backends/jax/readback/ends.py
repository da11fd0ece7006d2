"""Arguments and results of generated JAX functions, held against the binding."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from ...readback.expressions import Unbound
from ...readback.machine import AbstractMachine
from ...readback.mismatch import unreadable
from ...readback.regions import RegionReader
from ...readback.values import (
    ANodeInstance,
    Items,
    Literal,
    OnHost,
    Value,
    ViewValue,
    as_value,
    shown,
)
from .expressions import KEY, JaxReader
from .function import Function


class EndedFunction(Function):
    """A forward or a backward: `saved` is what the one leaves for the other."""

    def __init__(
        self,
        machine: AbstractMachine,
        reader: JaxReader,
        node: ast.FunctionDef,
        file: str,
        regions: RegionReader,
    ):
        super().__init__(machine, reader, node, file, regions)
        self.saved: tuple[Value, ...] = ()

    def bind_caller(self) -> None:
        """Says what `params`, `buffers`, `args` and `key` hold."""
        binding = self.machine.program.binding
        self.tables["params"] = {repr(p.names[0]): ANodeInstance(p.name, 0) for p in binding.params}
        self.tables["buffers"] = {
            repr(b.names[0]): ANodeInstance(b.name, 0) for b in binding.buffers
        }
        self.bind("args", Items(tuple(ANodeInstance(a.name, 0) for a in binding.arguments)))
        self.bind("key", KEY)

    def follow(self, before: EndedFunction) -> None:
        """Says what `saved` and `tangents` hold, after the forward and the loss."""
        machine = self.machine
        self.bind("saved", Items(before.saved))
        tangents: list[Value] = []
        for r in machine.program.binding.results:
            tangents.append(Literal("None") if r.tangent is None else machine.live[r.tangent])
        self.bind("tangents", Items((Items(tuple(tangents)), Literal("None"))))

    def end_of_forward(self) -> None:
        """Compares outputs and new buffers; notes what is saved."""
        self.finish()
        match self.returned:
            case ast.Tuple(
                elts=[ast.Tuple(elts=[outputs, ast.Name(id="new_buffers")]), ast.Tuple(elts=saved)]
            ):
                pass
            case _:
                unreadable(self.end, self.file, ast.unparse(self.end))
        try:
            self.compare_outputs(outputs)
            self.saved = tuple(map(self.value, saved))
        except Unbound as name:
            self.differs(self.end, f"{name} is read and holds nothing")
        live: set[Value] = {*self.machine.live.values(), KEY}
        live |= {OnHost(v) for v in self.machine.host.values()}
        symbols = [as_value(size) for size in self.machine.symbols.values()]
        for value in self.saved:
            if value not in live and value != ViewValue("sizes", tuple(symbols)):
                self.differs(self.end, f"{shown(value)} is saved, which is not live")

    def compare_outputs(self, outputs: ast.expr) -> None:
        """Check that results and new buffers are those of the binding."""
        binding = self.machine.program.binding
        wanted = Items(tuple(self.machine.value(r.name) for r in binding.results))
        if (actual := self.value(outputs)) != wanted:
            self.differs(self.end, f"outputs are {shown(actual)}, not {shown(wanted)}")
        updates = {b.names[0]: b.update for b in binding.buffers if b.update is not None}
        self._compare_table("new_buffers", updates)

    def read_ends(self, outputs: ast.expr, updates: ast.Dict) -> None:
        """The same for a table of new buffers that stands in the return."""
        try:
            self.table(self.end, "new_buffers", updates)
            self.compare_outputs(outputs)
        except Unbound as name:
            self.differs(self.end, f"{name} is read and holds nothing")

    def end_of_backward(self) -> None:
        """Compares the gradients."""
        self.finish()
        binding = self.machine.program.binding
        match self.returned:
            case ast.Tuple(
                elts=[
                    ast.Name(id="grads"),
                    ast.Constant(value=None),
                    inputs,
                    ast.Constant(value=None),
                ]
            ):
                pass
            case _:
                unreadable(self.end, self.file, ast.unparse(self.end))
        self._compare_table("grads", {p.names[0]: p.grad for p in binding.params})
        given = dict(binding.input_grads)
        names = [given.get(i) for i in range(len(binding.arguments))]
        wanted = Items(tuple(self._value_of(name) for name in names))
        try:
            actual = self.value(inputs)
        except Unbound as name:
            self.differs(self.end, f"{name} is read and holds nothing")
        if actual != wanted:
            self.differs(self.end, f"input gradients are {shown(actual)}, not {shown(wanted)}")

    def _value_of(self, name: str | None) -> Value:
        return Literal("None") if name is None else self.machine.value(name)

    def _compare_table(self, table: str, names: Mapping[str, str | None]) -> None:
        entries = self.tables.get(table, {})
        if entries.keys() != {repr(name) for name in names}:
            self.differs(self.end, f"{table} has {', '.join(entries) or 'nothing'}")
        for key, name in names.items():
            value, wanted = entries[repr(key)], self._value_of(name)
            if value != wanted:
                self.differs(self.end, f"{key} in {table} is {shown(value)}, not {shown(wanted)}")
