"""The statements of a generated JAX function, done one by one with the schedule in step."""

from __future__ import annotations

import ast
import re
from typing import NoReturn

from ....ir.schedule import Compute, Offload, Prefetch
from ...readback.expressions import OperatorCall, Unbound
from ...readback.machine import AbstractMachine, Dead, Execution
from ...readback.mismatch import differs, unreadable
from ...readback.names import Held, Variables
from ...readback.regions import RegionReader
from ...readback.values import (
    ANodeInstance,
    Items,
    Literal,
    OnHost,
    Value,
    ViewValue,
    shown,
    storages,
    viewed,
)
from .expressions import JaxReader, function_of


class Function:
    """Runs the statements of one function, with the schedule in step."""

    def __init__(
        self,
        machine: AbstractMachine,
        reader: JaxReader,
        node: ast.FunctionDef,
        file: str,
        regions: RegionReader,
    ):
        self.machine, self.reader, self.node, self.file = machine, reader, node, file
        self.regions = regions
        self.variables = Variables(Held())
        self.tables: dict[str, dict[str, Value]] = {}
        self.returned: ast.expr | None = None
        self.end: ast.AST = node
        tokens = [c.token for c in machine.graph.cnodes if c.token is not None]
        self._draws: dict[str | None, Value] = {
            token: Literal(repr(i)) for i, token in enumerate(tokens)
        }

    def enter(self, signature: str) -> None:
        """FB0946 where the function takes something else."""
        if ast.unparse(self.node.args) != signature or self.node.decorator_list:
            unreadable(self.node, self.file, f"{self.node.name}({ast.unparse(self.node.args)})")

    def differs(self, where: ast.AST, what: str, step: str | None = None) -> NoReturn:
        differs(where, self.file, step or f"the end of the {self.node.name}", what)

    def bind(self, name: str, value: Value) -> None:
        self.variables.bind(name, value)

    # -- statements -------------------------------------------------------------------

    def run(self, body: list[ast.stmt]) -> None:
        """Does all statements up to the return."""
        if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body = body[1:]
        for node in body[:-1]:
            try:
                self.statement(node)
            except Unbound as name:
                self.differs(node, f"{name} is read and holds nothing", self.next_step())
            except Dead as dead:
                self.differs(node, f"%{dead} is not live in the schedule", self.next_step())
        self.end = body[-1]
        if not isinstance(self.end, ast.Return) or self.end.value is None:
            unreadable(self.end, self.file, f"{self.node.name} ends without a return")
        self.returned = self.end.value

    def finish(self) -> None:
        """FB0945 where the schedule has more steps for this function."""
        step = self.machine.next_copy_or_computation()
        is_loss = isinstance(step, Compute) and self.machine.graph.cnode[step.cnode].is_loss
        if step is not None and not (is_loss and self.node.name in ("forward", "model")):
            self.differs(self.end, f"it ends before {step}")

    def next_step(self) -> str:
        try:
            step = self.machine.next_copy_or_computation()
            if isinstance(step, Compute):
                return str(self.machine.execution())
            return "the end" if step is None else f"step {self.machine.at + 1} ({step})"
        except Dead as dead:
            return f"a step that reads %{dead}"

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.With(
                items=[
                    ast.withitem(
                        context_expr=ast.Call(
                            func=ast.Attribute(attr="named_scope"),
                            args=[ast.Constant(value=str(scope))],
                        ) as context,
                        optional_vars=None,
                    )
                ],
                body=[ast.Assign(targets=[target], value=value)],
            ) if ast.unparse(context.func) == "jax.named_scope" and not context.keywords:
                self._compute(node, scope, target, value)
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Subscript(
                    value=ast.Name(id="params" | "buffers" as table), slice=ast.Constant(value=key)
                ),
            ) if repr(key) in self.tables.get(table, {}):
                self.bind(name, self.tables[table][repr(key)])
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict() as table):
                self.table(node, name, table)
            case ast.Assign(targets=[target], value=value):
                self._assign(node, target, value)
            case _:
                unreadable(node, self.file, ast.unparse(node).splitlines()[0])

    def table(self, node: ast.AST, name: str, table: ast.Dict) -> None:
        """Notes what a dictionary holds."""
        self.tables[name] = {
            ast.unparse(k) if k is not None else "**": self.value(v)
            for k, v in zip(table.keys, table.values, strict=True)
        }
        if len(self.tables[name]) != len(table.keys):
            self.differs(node, f"a name stands twice in {name}")

    def value(self, node: ast.expr) -> Value:
        return self.reader.value(node, self.variables)

    def _assign(self, node: ast.stmt, target: ast.expr, value: ast.expr) -> None:
        match value:
            case ast.Call(args=[ast.Tuple() as through], keywords=[]) if (
                ast.unparse(value.func) == "lax.optimization_barrier"
            ):
                self.unpack(node, target, self.value(through))
            case ast.Call(args=[ast.Name() as source, space], keywords=[]) if (
                ast.unparse(value.func) == "jax.device_put"
            ):
                place = ast.unparse(space)
                self.unpack(node, target, self._move(node, self.value(source), place))
            case ast.Call(args=[ast.Tuple(elts=[*sizes, ast.Constant(value=0)]), _]) if (
                ast.unparse(value.func) == "jnp.zeros"
            ):
                self.unpack(node, target, ViewValue("sizes", tuple(map(self.value, sizes))))
            case ast.Attribute(value=ast.Name(id=name), attr="shape") if name in self.variables:
                sizes_of = self.variables[name]
                if not isinstance(sizes_of, ViewValue) or sizes_of.op != "sizes":
                    unreadable(node, self.file, ast.unparse(node))
                self.unpack(node, target, Items((*sizes_of.args, Literal("0"))))
            case _:
                called = self.reader.operator_call(value, self.variables)
                if called is None:
                    self.unpack(node, target, self.value(value))
                else:
                    self.unpack(node, target, self._view(node, called))

    def unpack(self, node: ast.stmt, target: ast.expr, value: Value) -> None:
        match target, value:
            case ast.Name(id=name), _:
                taken = ("jax", "jnp", "lax", "params", *self.reader.regions)
                if name in self.reader.operators or name in taken:
                    unreadable(node, self.file, f"{name} is bound again")
                self.bind(name, value)
            case ast.Tuple(elts=slots), Items(parts) if len(slots) == len(parts):
                for slot, part in zip(slots, parts, strict=True):
                    self.unpack(node, slot, part)
            case ast.Tuple(elts=slots), _:
                self.differs(node, f"{len(slots)} names for {shown(value)}", self.next_step())
            case _:
                unreadable(node, self.file, ast.unparse(target))

    # -- copies and views ---------------------------------------------------------------

    def _move(self, node: ast.stmt, value: Value, space: str) -> Value:
        step = self.machine.next_copy_or_computation()
        name = self.next_step()
        if space == "jax.memory.Space.Host" and isinstance(step, Offload):
            wanted = self.machine.offload(step)
            if value != wanted:
                self.differs(node, f"{shown(value)} is copied, not {shown(wanted)}", name)
            return OnHost(wanted)
        if space != "jax.memory.Space.Device" or not isinstance(step, Prefetch):
            self.differs(node, f"it copies to {space}", name)
        held = self.machine.host.get(step.anode)
        if held is None or value != OnHost(held):
            self.differs(node, f"{shown(value)} is brought back", name)
        return self.machine.prefetch(step)

    def _view(self, node: ast.stmt, called: OperatorCall) -> Value:
        view = self._known_view(called)
        if view is None:
            what = f"{called} is neither a named execution nor a view"
            self.differs(node, what, self.next_step())
        return view

    def _known_view(self, called: OperatorCall) -> Value | None:
        """A view of the graph, or its parts; None where the call is none."""
        ops = [op for op in self.machine.view_operators if function_of(op) == called.op]
        for op in ops:
            value = viewed(ViewValue(op, called.args, frozenset(called.kwargs.items())))
            of = set(storages(value))
            if len(of) == 1 and self.machine.is_view(value, of.pop()) and called.random is None:
                if called.parts is None:
                    return value
                return Items(tuple(ViewValue(op, called.args, part=i) for i in range(called.parts)))
        return None

    # -- one computation ----------------------------------------------------------------

    def next_execution(self, node: ast.stmt, scope: str) -> Execution:
        """Return the next execution of the schedule."""
        step = self.machine.next_copy_or_computation()
        if not isinstance(step, Compute):
            self.differs(node, f"it runs {scope}", self.next_step())
        now = self.machine.execution()
        if scope != f"{now.cnode.name}#{now.n}" or now.cnode.is_loss:
            self.differs(node, f"it runs {scope}", str(now))
        return now

    def _compute(self, node: ast.stmt, scope: str, target: ast.expr, value: ast.expr) -> None:
        now = self.next_execution(node, scope)
        if now.cnode.is_accumulate:
            self._compare_sum(node, now, value)
        else:
            called = self.reader.operator_call(value, self.variables)
            if called is None:
                unreadable(value, self.file, ast.unparse(value))
            self._compare(node, now, called)
        slots = target.elts if isinstance(target, ast.Tuple) else [target]
        is_one = len(now.slots) == 1 and not now.cnode.is_fused
        if len(slots) != len(now.slots) or isinstance(target, ast.Tuple) == is_one:
            self.differs(node, f"{len(slots)} names for {len(now.slots)} results", str(now))
        for slot, result in zip(slots, now.slots, strict=True):
            if not self._is_named_for(slot, result):
                what = f"{ast.unparse(slot)} is bound to {shown(result)}"
                self.differs(node, what, str(now))
        self.machine.compute(now)
        for slot, result in zip(slots, now.slots, strict=True):
            self.unpack(node, slot, result)
        self.executed(now)

    def executed(self, now: Execution) -> None:
        """Called after each execution, when its results are bound."""

    def _is_named_for(self, slot: ast.expr, result: ANodeInstance) -> bool:
        """Return whether a variable has the name of its aNode, or is `_` for what is dropped:
        unused or alive already. So results that nothing reads cannot change places either."""
        if not isinstance(slot, ast.Name):
            return False
        if result.anode not in self.machine.graph.anode or result.anode in self.machine.live:
            return slot.id == "_"
        plain = re.sub(r"\W", "_", result.anode, flags=re.ASCII)
        return slot.id.endswith(plain) and not slot.id.removesuffix(plain).strip("v")

    def _compare(self, node: ast.stmt, now: Execution, called: OperatorCall) -> None:
        step = str(now)
        if called.op != function_of(now.op) or called.parts is not None:
            self.differs(node, f"it calls {called.op}", step)
        args, kwargs = now.args, now.kwargs
        if called.region:
            symbols = self.regions.symbols(now.cnode)
            self.regions.check(node, called.region, now.cnode, len(symbols), step)
            args = (*args, *symbols)
        if len(called.args) != len(args):
            self.differs(node, f"{len(called.args)} arguments, not {len(args)}", step)
        for place, (given, wanted) in enumerate(zip(called.args, args, strict=True), 1):
            if given != wanted:
                self.differs(node, f"argument {place} is {shown(given)}, not {shown(wanted)}", step)
        if called.kwargs != kwargs:
            actual, wished = (sorted(map(str, k.items())) for k in (called.kwargs, kwargs))
            self.differs(node, f"keyword arguments are {actual}, not {wished}", step)
        if called.random != (draw := self._draws.get(now.cnode.token)):
            drawn, planned = (None if d is None else shown(d) for d in (called.random, draw))
            self.differs(node, f"its draw is number {drawn}, not {planned}", step)

    def _compare_sum(self, node: ast.stmt, now: Execution, value: ast.expr) -> None:
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
            self.differs(node, "it adds nothing up", str(now))
        terms = (self.value(value.left), self.value(value.right))
        if terms != now.args:
            wanted = shown(Items(now.args))
            self.differs(node, f"it adds {shown(Items(terms))}, not {wanted}", str(now))
