"""One generated function, run over abstract values with the schedule in step."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn

from ....ir.schedule import STORAGE_STEPS, Compute, HostFree, Offload, Prefetch, Step, Wait
from ...readback.expressions import OperatorCall, Unbound
from ...readback.machine import AbstractMachine, Dead, Execution
from ...readback.mismatch import differs, unreadable
from ...readback.names import Held, Variables
from ...readback.regions import RegionReader
from ...readback.values import (
    ANodeInstance,
    CallCopies,
    RandomState,
    Value,
    ViewValue,
    shown,
    storages,
    viewed,
)
from .expressions import TorchReader


class Function:
    """Runs the statements of one function, with the schedule in step."""

    def __init__(
        self,
        machine: AbstractMachine,
        reader: TorchReader,
        node: ast.FunctionDef,
        file: str,
        regions: RegionReader,
    ):
        self.regions = regions
        self.machine, self.reader, self.node, self.file = machine, reader, node, file
        self.held = Held()
        self.variables = Variables(self.held)
        # Live from before this function and not given to it: the caller's to keep, or gone.
        self.elsewhere: set[ANodeInstance | RandomState] = set()
        self.args: list[Value] = []
        self.constants = [
            ANodeInstance(a.name, 0) for a in machine.graph.anodes if a.kind == "const"
        ]
        self.returned: list[Value] = []
        self.end: ast.AST = node

    def given(self, args: Sequence[Value]) -> None:
        """Sets what `args` holds as the function begins."""
        self.args = list(args)
        for value in args:
            self.held.refer(value, 1)

    def run(self) -> None:
        wanted = ast.unparse(self.node.args)
        if wanted != "args, constants=()" or self.node.decorator_list:
            unreadable(self.node, self.file, f"{self.node.name}({wanted})")
        for statement in self.node.body[:-1]:
            try:
                self._statement(statement)
            except Unbound as name:
                self.differs(statement, f"{name} is read and holds nothing", self._next_step())
        last = self.node.body[-1]
        if not isinstance(last, ast.Return) or not isinstance(last.value, ast.Tuple):
            unreadable(last, self.file, f"{self.node.name} ends without a return")
        self.end = last
        try:
            step = self.machine.next_copy_or_computation()
            is_loss = isinstance(step, Compute) and self.machine.graph.cnode[step.cnode].is_loss
            if step is not None and not (is_loss and self.node.name == "forward"):
                self.differs(last, f"{self.node.name} ends before {self._next_step()}")
            self._check_held(last, "the end", ())
        except Dead as dead:
            self.differs(last, f"%{dead} is not live")
        if self.args:
            self.differs(last, "`args` still holds what was passed")
        try:
            self.returned = [self.reader.value(part, self.variables) for part in last.value.elts]
        except Unbound as name:
            self.differs(last, f"{name} is read and holds nothing")

    def _next_step(self) -> str:
        try:
            return self._said(self.machine.next_copy_or_computation())
        except Dead as dead:
            return f"a step that reads %{dead}"

    def _said(self, step: Step | None) -> str:
        if step is None:
            return "the end"
        if isinstance(step, Compute):
            on_host = f"step {self.machine.at + 1} ({step.cnode} on host)"
            return on_host if step.on_host else str(self.machine.execution())
        return f"step {self.machine.at + 1} ({step.word} %{step.anode})"

    def differs(self, where: ast.AST, what: str, step: str | None = None) -> NoReturn:
        name = step or f"the end of the {self.node.name}"
        differs(where, self.file, name, what)

    # -- statements -------------------------------------------------------------------

    def _statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(
                targets=[target],
                value=ast.Subscript(
                    value=ast.Name(id="args" | "constants" as given),
                    slice=ast.Constant(value=int(place)),
                ),
            ):
                values = self.args if given == "args" else self.constants
                if not 0 <= place < len(values):
                    self.differs(node, f"{given} has {len(values)} values", "the arguments")
                self._bind(target, values[place])
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="args"), attr=a))):
                if a != "clear":
                    unreadable(node, self.file, ast.unparse(node))
                for value in self.args:
                    self.held.refer(value, -1)
                self.args = []
            case ast.Delete(targets=targets):
                for target in targets:
                    if not isinstance(target, ast.Name):
                        unreadable(node, self.file, ast.unparse(node))
                    if target.id not in self.variables:
                        self.differs(
                            node, f"`del {target.id}`, which holds nothing", self._next_step()
                        )
                    self.variables.unbind(target.id)
            case ast.Expr(
                value=ast.Call(func=ast.Attribute(value=ast.Name(id="copies")), keywords=[]) as call
            ):
                self._copy(node, call, None)
            case ast.Assign(
                targets=[target],
                value=ast.Call(
                    func=ast.Attribute(value=ast.Name(id="copies")), keywords=[]
                ) as call,
            ):
                self._copy(node, call, target)
            case ast.Assign(targets=[target], value=value):
                self._assign(node, target, value)
            case _:
                unreadable(node, self.file, ast.unparse(node).splitlines()[0])

    def _bind(self, target: ast.expr, value: Value) -> None:
        if not isinstance(target, ast.Name):
            unreadable(target, self.file, f"{ast.unparse(target)} is bound")
        taken = ("torch", "args", "constants", *self.reader.operators, *self.reader.regions)
        if target.id in taken:
            unreadable(target, self.file, f"{target.id} is bound again")
        if (target.id == "copies") != isinstance(value, CallCopies):
            self.differs(target, f"{target.id} holds {shown(value)}", "the arguments")
        self.variables.bind(target.id, value)

    def _assign(self, node: ast.stmt, target: ast.expr, value: ast.expr) -> None:
        if isinstance(value, ast.Call) and self.reader.is_state(value):
            self._bind(target, RandomState(self.machine.draws))
            return
        called = self.reader.operator_call(value, self.variables)
        if called is None:
            self._bind(target, self.reader.value(value, self.variables))
            return
        made = self._view(called)
        results = made if made is not None else self._compute(node, called)
        if isinstance(results, tuple):
            self._unpack(node, target, results, str(called))
            return
        if isinstance(target, ast.Tuple):
            self.differs(node, "one result is unpacked", str(called))
        self._bind(target, results)

    def _unpack(
        self, node: ast.stmt, target: ast.expr, results: tuple[Value, ...], called: str
    ) -> None:
        if not isinstance(target, ast.Tuple) or len(target.elts) != len(results):
            self.differs(node, f"{len(results)} results are not unpacked as such", called)
        for slot, result in zip(target.elts, results, strict=True):
            self._bind(slot, result)

    def _view(self, called: OperatorCall) -> Value | tuple[Value, ...] | None:
        """The view that a call derives, or its parts; None where it is none of the graph's."""
        if called.random is not None or called.op not in self.machine.view_operators:
            return None
        value = viewed(ViewValue(called.op, called.args, frozenset(called.kwargs.items())))
        of = set(storages(value))
        if len(of) != 1 or not self.machine.is_view(value, of.pop()):
            return None
        if called.parts is None:
            return value
        assert isinstance(value, ViewValue)
        return tuple(replace(value, part=i) for i in range(called.parts))

    # -- copies -----------------------------------------------------------------------

    def _copy(self, node: ast.stmt, call: ast.Call, target: ast.expr | None) -> None:
        """`copies.wait("a")` and the like: the step at hand, of the tensor at hand."""
        assert isinstance(call.func, ast.Attribute)
        self.reader.value(call.func.value, self.variables)
        source: Value | None = None
        match call.func.attr, call.args:
            case "offload", [ast.Constant(value=str(name)), given] if target is None:
                source = self.reader.value(given, self.variables)
            case "wait" | "hostfree", [ast.Constant(value=str(name))] if target is None:
                pass
            case "prefetch", [ast.Constant(value=str(name))] if target is not None:
                pass
            case "update", [ast.Constant(value=str(name)), *given] if target is not None:
                self._update(node, target, name, given)
                return
            case "update_on_host", [ast.Constant(value=str(name))] if target is None:
                self._update_on_host(node, name)
                return
            case _:
                unreadable(node, self.file, ast.unparse(node))
        machine = self.machine
        try:
            step = machine.next_copy_or_computation()
        except Dead as dead:
            self.differs(node, f"%{dead} is not live in the schedule", f"step {machine.at + 1}")
        now = self._said(step)
        kind = STORAGE_STEPS[call.func.attr]
        if step is None or isinstance(step, Compute) or not isinstance(step, kind):
            self.differs(node, f"it runs {call.func.attr} %{name}", now)
        if step.anode != name:
            self.differs(node, f"it is about %{name}", now)
        self._check_held(node, now, ())
        match step:
            case Offload():
                if source != machine.offload(step):
                    copied = "nothing" if source is None else shown(source)
                    self.differs(node, f"it copies {copied}", now)
            case Prefetch() if target is not None:
                self._bind(target, machine.prefetch(step))
            case Wait() | HostFree():
                machine.end_copy(step)
            case _:
                unreadable(node, self.file, ast.unparse(node))

    def _update(
        self, node: ast.stmt, target: ast.expr, name: str, given: Sequence[ast.expr]
    ) -> None:
        """`(w2, m2,) = copies.update("U1", w, m, dw)`: the first tensors go on as results."""
        machine = self.machine
        values = [self.reader.value(part, self.variables) for part in given]
        try:
            step = machine.next_copy_or_computation()
            if step != Compute(name) or not machine.graph.cnode[name].is_update:
                self.differs(node, f"it updates by {name}", self._said(step))
            now = machine.execution()
            wanted = [machine.value(ref) for ref in now.cnode.operands]
        except Dead as dead:
            self.differs(node, f"%{dead} is not live in the schedule", f"step {machine.at + 1}")
        if values != wanted:
            self.differs(node, f"it is of {', '.join(map(shown, values))}", str(now))
        self._check_held(node, str(now), ())
        machine.compute(now)
        self._unpack(node, target, now.slots, str(now))

    def _update_on_host(self, node: ast.stmt, name: str) -> None:
        step = self.machine.next_copy_or_computation()
        if not isinstance(step, Compute) or step != Compute(name, on_host=True):
            self.differs(node, f"it updates by {name} on the host", self._said(step))
        self._check_held(node, self._said(step), ())
        self.machine.update_on_host(step)

    # -- one computation --------------------------------------------------------------

    def _compute(self, node: ast.stmt, called: OperatorCall) -> Value | tuple[Value, ...]:
        machine = self.machine
        try:
            step = machine.next_copy_or_computation()
            if not isinstance(step, Compute):
                self.differs(node, f"it runs {called}", self._said(step))
            now = machine.execution()
        except Dead as dead:
            self.differs(node, f"%{dead} is not live in the schedule", f"step {machine.at + 1}")
        if now.cnode.is_loss:
            self.differs(node, f"it runs {called} where the loss stands", str(now))
        self._compare(node, now, called)
        state = machine.taken_state(now)
        self._check_held(node, str(now), () if state is None else (state,))
        machine.compute(now)
        several = self.reader.returns_several(called.op)
        if not several and len(now.slots) != 1:
            self.differs(node, f"{called.op} gives one result", str(now))
        return now.slots if several else now.slots[0]

    def _compare(self, node: ast.stmt, now: Execution, called: OperatorCall) -> None:
        step = str(now)
        wanted = "aten.add_.Tensor" if now.cnode.is_accumulate else now.op
        ended = now.ended[:1] if now.cnode.is_accumulate else ()
        if called.op != wanted:
            self.differs(node, f"it runs {called.op}", step)
        if called.parts is not None:
            self.differs(node, "results are left out", step)
        if ended and (not called.args or called.args[0] != ended[0]):
            self.differs(node, "it does not add into the first term", step)
        if called.random != now.token:
            drawn = "draws anew" if called.random is None else f"runs with {shown(called.random)}"
            should = (
                "is to draw anew" if now.token is None else f"is to run with {shown(now.token)}"
            )
            self.differs(node, f"it {drawn}, and {should}", step)
        wished = now.args
        if called.region:
            symbols = self.regions.symbols(now.cnode)
            self.regions.check(node, called.region, now.cnode, len(symbols), step)
            wished = (*now.args, *symbols)
        if len(called.args) != len(wished):
            self.differs(node, f"{len(called.args)} arguments, not {len(wished)}", step)
        for place, (given, value) in enumerate(zip(called.args, wished, strict=True), 1):
            if given != value:
                self.differs(node, f"argument {place} is {shown(given)}, not {shown(value)}", step)
        if called.kwargs != now.kwargs:
            actual, asked = (_said_keywords(k) for k in (called.kwargs, now.kwargs))
            self.differs(node, f"keyword arguments are {actual}, not {asked}", step)

    def _check_held(self, node: ast.AST, step: str, more: Sequence[RandomState]) -> None:
        """Check that variables and nothing else keep alive what is live before the step."""
        for storage, wanted in self.machine.changes:
            if storage not in self.elsewhere:
                self.held.want(storage, wanted)
        self.machine.changes.clear()
        for storage in more:
            self.held.want(storage, True)
        for storage in sorted(self.held.wrong, key=repr):
            if self.held.is_held(storage):
                self.differs(node, f"{shown(storage)} is still held and is not live", step)
            self.differs(node, f"{shown(storage)} is gone and is to be live", step)


def _said_keywords(kwargs: dict[str, Value]) -> str:
    return ", ".join(f"{key}={shown(value)}" for key, value in sorted(kwargs.items())) or "none"
