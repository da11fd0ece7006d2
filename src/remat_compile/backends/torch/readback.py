"""Reads generated PyTorch code back and holds it against the schedule, step by step.

Each function is run over abstract values: a variable holds an instance of an aNode, a view of
one, a state of the random stream, a size. Compared are, in the order of the schedule: the
operator of each execution, its arguments (through views, as instances), its random state, and
its results by position; each step of a copy to the host or back, what it copies and what that
becomes; before each execution, before each of these steps and at the end of each function, that
what the variables keep alive is what is live in the schedule, no more and no less; what crosses
from forward to backward, what is returned, and the dimensions read as symbols. Trusted are
Python and PyTorch's own meaning of an operator's name. It knows nothing of how code is emitted.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from ...ir.program import Program
from ...ir.schedule import (
    STORAGE_STEPS,
    Compute,
    HostFree,
    Offload,
    Prefetch,
    Schedule,
    Step,
    Wait,
)
from ..python.allowed import statements
from ..readback.expressions import OperatorCall, Unbound
from ..readback.machine import AbstractMachine, Dead, Execution
from ..readback.mismatch import differs, unreadable
from ..readback.names import Held, Variables
from ..readback.values import (
    CallCopies,
    Instance,
    Literal,
    RandomState,
    Value,
    ViewValue,
    as_value,
    shown,
    storages,
    viewed,
)
from .interface import Interface, copies_of, default_interface
from .reader import TorchReader
from .script import replay_helper, script_imports, script_tables, script_text

__all__ = ["check_source"]


def check_source(
    source: str, program: Program, schedule: Schedule, interface: Interface | None = None
) -> tuple[str, ...]:
    """Holds `source` against `schedule`; the aNodes that cross from forward to backward.

    Without an interface, the functions are to take and give what the binding says. FB0945
    with the place in the text and the step where they differ, FB0946 for code that has no
    meaning here.
    """
    tree = ast.parse(source)
    file = f"<torch code of @{schedule.name}>"
    on_cuda = program.header.device.split(":")[0] == "cuda"
    tables = script_tables(program, schedule) if interface is None else {}
    schedule = schedule.elementary
    copies = [CallCopies() for _ in copies_of(schedule)]
    texts = (script_imports(copies=bool(copies)), script_text(copies=bool(copies)))
    fixed = frozenset().union(*map(statements, texts))
    operators, functions = _module(tree, file, fixed, replay_helper(program), tables)
    machine = AbstractMachine(program, schedule, says_waits=True)
    reader = TorchReader(file, operators, "replay" in functions, on_cuda)
    for name in ("forward", "backward"):
        if name not in functions:
            unreadable(tree, file, f"no function {name}")
    border = _Border(program, interface or default_interface(program), copies)
    forward = _Function(machine, reader, functions["forward"], file)
    border.enter_forward(forward)
    forward.run()
    border.leave_forward(forward)
    backward = _Function(machine, reader, functions["backward"], file)
    border.enter_backward(backward)
    backward.run()
    border.leave_backward(backward)
    return border.saved


def _module(
    tree: ast.Module,
    file: str,
    fixed: frozenset[str],
    helper: str,
    tables: Mapping[str, object],
) -> tuple[dict[str, str], dict[str, ast.FunctionDef]]:
    """Operators by variable, and functions by name; each is bound once. `tables` are those of
    a script, and `fixed` its statements that are the same in every module."""
    (replay,) = statements(helper)
    operators: dict[str, str] = {}
    functions: dict[str, ast.FunctionDef] = {}
    body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
    for node in body:
        match node:
            case _ if ast.dump(node) in fixed:
                continue
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in tables:
                if ast.unparse(value) != repr(tables[name]):
                    differs(node, file, "no step", f"{name} is not {tables[name]!r}")
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute(attr="_op") as value):
                path = ast.unparse(value).split(".")
                if path[:2] != ["torch", "ops"] or len(path) != 6:
                    unreadable(node, file, f"{name} is no operator")
                made = ".".join(path[2:5])
                if name in operators or name in functions:
                    differs(node, file, "no step", f"{name} is bound twice")
                operators[name] = made
            case ast.FunctionDef(name="replay") if ast.dump(node) == replay:
                functions["replay"] = node
            case ast.FunctionDef(name="replay"):
                differs(node, file, "replays", "`replay` does not restore the state it found")
            case ast.FunctionDef(name="forward" | "backward" as name) if name not in functions:
                functions[name] = node
            case _:
                unreadable(node, file, ast.unparse(node).splitlines()[0])
    return operators, functions


class _Function:
    """Runs the statements of one function, with the schedule in step."""

    def __init__(
        self, machine: AbstractMachine, reader: TorchReader, node: ast.FunctionDef, file: str
    ):
        self.machine, self.reader, self.node, self.file = machine, reader, node, file
        self.held = Held()
        self.variables = Variables(self.held)
        # Live from before this function and not given to it: the caller's to keep, or gone.
        self.elsewhere: set[Instance | RandomState] = set()
        self.args: list[Value] = []
        self.constants = [Instance(a.name, 0) for a in machine.graph.anodes if a.kind == "const"]
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
            return str(self.machine.execution())
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
        if target.id in ("torch", "args", "constants", *self.reader.operators):
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
        if not isinstance(results, tuple):
            if isinstance(target, ast.Tuple):
                self.differs(node, "one result is unpacked", str(called))
            self._bind(target, results)
            return
        if not isinstance(target, ast.Tuple) or len(target.elts) != len(results):
            self.differs(node, f"{len(results)} results are not unpacked as such", str(called))
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
        if called.op != wanted:
            self.differs(node, f"it runs {called.op}", step)
        if called.parts is not None:
            self.differs(node, "results are left out", step)
        if now.ended is not None and (not called.args or called.args[0] != now.ended):
            self.differs(node, "it does not add into the first term", step)
        if called.random != now.token:
            drawn = "draws anew" if called.random is None else f"runs with {shown(called.random)}"
            should = (
                "is to draw anew" if now.token is None else f"is to run with {shown(now.token)}"
            )
            self.differs(node, f"it {drawn}, and {should}", step)
        if len(called.args) != len(now.args):
            self.differs(node, f"{len(called.args)} arguments, not {len(now.args)}", step)
        for place, (given, value) in enumerate(zip(called.args, now.args, strict=True), 1):
            if given != value:
                self.differs(node, f"argument {place} is {shown(given)}, not {shown(value)}", step)
        if called.kwargs != now.kwargs:
            found, wished = (_said_keywords(k) for k in (called.kwargs, now.kwargs))
            self.differs(node, f"keyword arguments are {found}, not {wished}", step)

    def _check_held(self, node: ast.AST, step: str, more: Sequence[RandomState]) -> None:
        """That variables and nothing else keep alive what is live before the step."""
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


class _Border:
    """What the functions are given and give: from the caller, to each other, to the caller.

    `forward: inputs -> (*outputs, *saved, *symbols)`, `backward: (*symbols, *saved,
    *tangents) -> grads`, as PyTorch's autograd wrappers hand them on; `copies` are the forward's
    last input and the last that is saved.
    """

    def __init__(self, program: Program, interface: Interface, copies: list[CallCopies]):
        self.program, self.interface, self.copies = program, interface, copies
        self.saved: tuple[str, ...] = ()
        self._saved: list[Instance | RandomState] = []

    def enter_forward(self, f: _Function) -> None:
        given = [Literal("None") if n is None else Instance(n, 0) for n in self.interface.inputs]
        f.given([*given, *self.copies])

    def leave_forward(self, f: _Function) -> None:
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
            if not isinstance(value, Instance | RandomState) or value not in names:
                f.differs(f.end, f"{shown(value)} is saved, which is no live aNode")
            self._saved.append(value)
        for name in f.machine.flying:
            if f.machine.live[name] not in self._saved:
                f.differs(f.end, f"%{name} is not saved, and a copy of it is under way")
        self.saved = tuple(names[value] for value in self._saved)
        f.machine.compute(f.machine.execution())

    def enter_backward(self, f: _Function) -> None:
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

    def leave_backward(self, f: _Function) -> None:
        if len(f.returned) != len(self.interface.grads):
            f.differs(f.end, f"{len(f.returned)} values are returned")
        self._compare(f, f.returned, self.interface.grads, "gradient")

    def _symbols(self, machine: AbstractMachine) -> list[Value]:
        return [as_value(machine.symbols[s.name]) for s in self.program.symbols]

    def _compare(
        self, f: _Function, found: list[Value], names: Sequence[str | None], what: str
    ) -> None:
        for place, (value, name) in enumerate(zip(found, names, strict=True), 1):
            try:
                wanted: Value = Literal("None") if name is None else f.machine.value(name)
            except Dead as dead:
                f.differs(f.end, f"{what} {place}: %{dead} is not live")
            if value != wanted:
                f.differs(f.end, f"{what} {place} is {shown(value)}, not {shown(wanted)}")
