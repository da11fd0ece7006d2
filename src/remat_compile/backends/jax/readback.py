"""Reads generated JAX code back and holds it against the schedule.

JAX code is a function of values: nothing is deleted in it, and XLA places the frees. So what
is compared is, in the order of the schedule: each execution by its name (`F7#2`), the lowering
it calls, its arguments (through views, as instances, so that a value that was made again is the
one that is read), the number of its random draw, its results by position; the copies to the
host and back; what crosses from forward to backward; outputs, new buffers and gradients by name.
`model` and `step` must be the known ones.

Not compared: when memory is given back; where barriers stand (to values they are nothing, and
whether XLA keeps to the plan is looked up in what it compiled, FB0938); and the bodies of the
lowerings, whose values the tests compare with PyTorch's. That a lowering is defined once and not
shadowed is compared. Modules in the style of `jax.checkpoint` are not read back.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import NoReturn

from ...ir.program import Program
from ...ir.schedule import Compute, Offload, Prefetch, Schedule
from ..readback.machine import Dead, Execution, Machine
from ..readback.mismatch import differs, unreadable
from ..readback.names import Held, Variables
from ..readback.python import Unbound
from ..readback.values import (
    Instance,
    Items,
    Literal,
    OnHost,
    Value,
    View,
    as_value,
    said,
    storages,
    viewed,
)
from ._read_expressions import KEY, Called, Reader, function_of, wanted_arguments

__all__ = ["Function", "check_source", "definitions"]

_FIXED = """
@jax.custom_vjp
def model(params, buffers, args, key=None):
    return forward(params, buffers, args, key)[0]


def step(params, buffers, args, key=None, tangents=None):
    (outputs, new_buffers), saved = forward(params, buffers, args, key)
    if callable(tangents):
        tangents = tangents(outputs)
    if tangents is None:
        tangents = tuple(jnp.ones_like(output) for output in outputs)
        outputs, tangents = lax.optimization_barrier((outputs, tangents))
    grads, _, input_grads, _ = backward(saved, (tangents, None))
    return outputs, new_buffers, grads, input_grads


model.defvjp(forward, backward)
"""


def check_source(source: str, program: Program, schedule: Schedule) -> None:
    """Holds an explicit module against `schedule`. FB0945 with the place in the text and the
    step where they differ, FB0946 for code that has no meaning here."""
    file = f"<JAX code of @{schedule.name}>"
    tree = ast.parse(source)
    found = definitions(tree, file)
    for wanted in ast.parse(_FIXED).body:
        if not any(_same(wanted, node) for node in tree.body):
            name = getattr(wanted, "name", "model.defvjp(forward, backward)")
            differs(found.get(name, tree), file, "its ends", f"`{name}` is another one")
    for name in ("forward", "backward"):
        if name not in found:
            unreadable(tree, file, f"no function {name}")
    machine = Machine(program, schedule)
    reader = Reader(file, frozenset(found))
    forward = Function(machine, reader, found["forward"], file)
    forward.enter("params, buffers, args, key=None")
    forward.bind_caller()
    forward.run(found["forward"].body)
    forward.end_of_forward()
    machine.compute(machine.execution())
    backward = Function(machine, reader, found["backward"], file)
    backward.enter("saved, tangents")
    backward.follow(forward)
    backward.run(found["backward"].body)
    backward.end_of_backward()


def definitions(tree: ast.Module, file: str) -> dict[str, ast.FunctionDef]:
    """The functions of a module by name. FB0945 where a name is bound twice."""
    found: dict[str, ast.FunctionDef] = {}
    bound: set[str] = set()
    for node in tree.body:
        names: list[str] = []
        match node:
            case ast.FunctionDef(name=name):
                found[name] = node
                names = [name]
            case ast.Assign(targets=targets):
                names = [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names = [(a.asname or a.name).split(".")[0] for a in aliases]
            case ast.Expr(value=ast.Constant() | ast.Call()) | ast.If():
                pass
            case _:
                unreadable(node, file, ast.unparse(node).splitlines()[0])
        for name in names:
            if name in bound:
                differs(node, file, "no step", f"{name} is bound twice")
            bound.add(name)
    return found


def _same(wanted: ast.stmt, node: ast.stmt) -> bool:
    if isinstance(node, ast.FunctionDef) and isinstance(wanted, ast.FunctionDef):
        if node.name != wanted.name:
            return False
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        bare = ast.FunctionDef(node.name, node.args, body, node.decorator_list)
        kept = ast.FunctionDef(wanted.name, wanted.args, wanted.body, wanted.decorator_list)
        return ast.dump(bare) == ast.dump(kept)
    return ast.dump(wanted) == ast.dump(node)


class Function:
    """Runs the statements of one function, with the schedule in step."""

    def __init__(self, machine: Machine, reader: Reader, node: ast.FunctionDef, file: str):
        self.machine, self.reader, self.node, self.file = machine, reader, node, file
        self.variables = Variables(Held())
        self.tables: dict[str, dict[str, Value]] = {}
        self.returned: ast.expr | None = None
        self.end: ast.AST = node
        self.saved: tuple[Value, ...] = ()
        tokens = [c.token for c in machine.graph.cnodes if c.token is not None]
        self._draws = {token: i for i, token in enumerate(tokens)}

    def enter(self, signature: str) -> None:
        """FB0946 where the function takes something else."""
        if ast.unparse(self.node.args) != signature or self.node.decorator_list:
            unreadable(self.node, self.file, f"{self.node.name}({ast.unparse(self.node.args)})")

    def bind_caller(self) -> None:
        """Says what `params`, `buffers`, `args` and `key` hold."""
        binding = self.machine.program.binding
        self.tables["params"] = {repr(p.names[0]): Instance(p.name, 0) for p in binding.params}
        self.tables["buffers"] = {repr(b.names[0]): Instance(b.name, 0) for b in binding.buffers}
        self.bind("args", Items(tuple(Instance(a.name, 0) for a in binding.arguments)))
        self.bind("key", KEY)

    def follow(self, before: Function) -> None:
        """Says what `saved` and `tangents` hold, after the forward and the loss."""
        machine = self.machine
        self.bind("saved", Items(before.saved))
        tangents: list[Value] = []
        for r in machine.program.binding.results:
            tangents.append(Literal("None") if r.tangent is None else machine.live[r.tangent])
        self.bind("tangents", Items((Items(tuple(tangents)), Literal("None"))))

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
                self.differs(node, f"{name} is read and holds nothing", self._next_step())
            except Dead as dead:
                self.differs(node, f"%{dead} is not live in the schedule", self._next_step())
        self.end = body[-1]
        if not isinstance(self.end, ast.Return) or self.end.value is None:
            unreadable(self.end, self.file, f"{self.node.name} ends without a return")
        self.returned = self.end.value

    def finish(self) -> None:
        """FB0945 where the schedule has more steps for this function."""
        step = self.machine.next_copy_or_computation()
        is_loss = isinstance(step, Compute) and self.machine.graph.cnode[step.cnode].is_loss
        if step is not None and not (is_loss and self.node.name == "forward"):
            self.differs(self.end, f"it ends before {step}")

    def _next_step(self) -> str:
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
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(keys=keys, values=values)):
                self.tables[name] = {
                    ast.unparse(k) if k is not None else "**": self.value(v)
                    for k, v in zip(keys, values, strict=True)
                }
                if len(self.tables[name]) != len(keys):
                    self.differs(node, f"a name stands twice in {name}")
            case ast.Assign(targets=[target], value=value):
                self._assign(node, target, value)
            case _:
                unreadable(node, self.file, ast.unparse(node).splitlines()[0])

    def value(self, node: ast.expr) -> Value:
        return self.reader.value(node, self.variables)

    def _assign(self, node: ast.stmt, target: ast.expr, value: ast.expr) -> None:
        match value:
            case ast.Call(args=[ast.Tuple() as through], keywords=[]) if (
                ast.unparse(value.func) == "lax.optimization_barrier"
            ):
                self._unpack(node, target, self.value(through))
            case ast.Call(args=[ast.Name() as source, space], keywords=[]) if (
                ast.unparse(value.func) == "jax.device_put"
            ):
                place = ast.unparse(space)
                self._unpack(node, target, self._move(node, self.value(source), place))
            case ast.Call(args=[ast.Tuple(elts=[*sizes, ast.Constant(value=0)]), _]) if (
                ast.unparse(value.func) == "jnp.zeros"
            ):
                self._unpack(node, target, View("sizes", tuple(map(self.value, sizes))))
            case ast.Attribute(value=ast.Name(id=name), attr="shape") if name in self.variables:
                sizes_of = self.variables[name]
                if not isinstance(sizes_of, View) or sizes_of.op != "sizes":
                    unreadable(node, self.file, ast.unparse(node))
                self._unpack(node, target, Items((*sizes_of.args, Literal("0"))))
            case _:
                called = self.reader.called(value, self.variables)
                if called is None:
                    self._unpack(node, target, self.value(value))
                else:
                    self._unpack(node, target, self._view(node, called))

    def _unpack(self, node: ast.stmt, target: ast.expr, value: Value) -> None:
        match target, value:
            case ast.Name(id=name), _:
                if name in self.reader.lowerings or name in ("jax", "jnp", "lax", "params"):
                    unreadable(node, self.file, f"{name} is bound again")
                self.bind(name, value)
            case ast.Tuple(elts=slots), Items(parts) if len(slots) == len(parts):
                for slot, part in zip(slots, parts, strict=True):
                    self._unpack(node, slot, part)
            case ast.Tuple(elts=slots), _:
                self.differs(node, f"{len(slots)} names for {said(value)}", self._next_step())
            case _:
                unreadable(node, self.file, ast.unparse(target))

    # -- copies and views ---------------------------------------------------------------

    def _move(self, node: ast.stmt, value: Value, space: str) -> Value:
        step = self.machine.next_copy_or_computation()
        name = self._next_step()
        if space == "jax.memory.Space.Host" and isinstance(step, Offload):
            wanted = self.machine.offload(step)
            if value != wanted:
                self.differs(node, f"{said(value)} is copied, not {said(wanted)}", name)
            return OnHost(wanted)
        if space != "jax.memory.Space.Device" or not isinstance(step, Prefetch):
            self.differs(node, f"it copies to {space}", name)
        held = self.machine.host.get(step.anode)
        if held is None or value != OnHost(held):
            self.differs(node, f"{said(value)} is brought back", name)
        return self.machine.prefetch(step)

    def _view(self, node: ast.stmt, called: Called) -> Value:
        found = self._known_view(called)
        if found is None:
            what = f"{called} is neither a named execution nor a view"
            self.differs(node, what, self._next_step())
        return found

    def _known_view(self, called: Called) -> Value | None:
        """A view of the graph, or its parts; None where the call is none."""
        ops = [op for op in self.machine.view_operators if function_of(op) == called.function]
        for op in ops:
            value = viewed(View(op, called.args, frozenset(called.kwargs.items())))
            of = set(storages(value))
            if len(of) == 1 and self.machine.is_view(value, of.pop()) and called.draw is None:
                if called.parts is None:
                    return value
                return Items(tuple(View(op, called.args, part=i) for i in range(called.parts)))
        return None

    # -- one computation ----------------------------------------------------------------

    def next_execution(self, node: ast.stmt, scope: str) -> Execution:
        """What the schedule runs next."""
        step = self.machine.next_copy_or_computation()
        if not isinstance(step, Compute):
            self.differs(node, f"it runs {scope}", self._next_step())
        now = self.machine.execution()
        if scope != f"{now.cnode.name}#{now.n}" or now.cnode.is_loss:
            self.differs(node, f"it runs {scope}", str(now))
        return now

    def _compute(self, node: ast.stmt, scope: str, target: ast.expr, value: ast.expr) -> None:
        now = self.next_execution(node, scope)
        if now.cnode.is_accumulate:
            self._compare_sum(node, now, value)
        else:
            called = self.reader.called(value, self.variables)
            if called is None:
                unreadable(value, self.file, ast.unparse(value))
            self._compare(node, now, called)
        self.machine.compute(now)
        slots = target.elts if isinstance(target, ast.Tuple) else [target]
        if len(slots) != len(now.slots) or isinstance(target, ast.Tuple) == (len(now.slots) == 1):
            self.differs(node, f"{len(slots)} names for {len(now.slots)} results", str(now))
        for slot, result in zip(slots, now.slots, strict=True):
            self._unpack(node, slot, result)

    def _compare(self, node: ast.stmt, now: Execution, called: Called) -> None:
        step = str(now)
        if called.function != function_of(now.op) or called.parts is not None:
            self.differs(node, f"it calls {called.function}", step)
        args, kwargs = wanted_arguments(now)
        if len(called.args) != len(args):
            self.differs(node, f"{len(called.args)} arguments, not {len(args)}", step)
        for place, (given, wanted) in enumerate(zip(called.args, args, strict=True), 1):
            if given != wanted:
                self.differs(node, f"argument {place} is {said(given)}, not {said(wanted)}", step)
        if called.kwargs != kwargs:
            found, wished = (sorted(map(str, k.items())) for k in (called.kwargs, kwargs))
            self.differs(node, f"keyword arguments are {found}, not {wished}", step)
        draw = None if now.cnode.token is None else self._draws[now.cnode.token]
        if called.draw != draw:
            self.differs(node, f"its draw is number {called.draw}, not {draw}", step)

    def _compare_sum(self, node: ast.stmt, now: Execution, value: ast.expr) -> None:
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
            self.differs(node, "it adds nothing up", str(now))
        found = (self.value(value.left), self.value(value.right))
        if found != now.args:
            wanted = said(Items(now.args))
            self.differs(node, f"it adds {said(Items(found))}, not {wanted}", str(now))

    # -- ends ---------------------------------------------------------------------------

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
            if value not in live and value != View("sizes", tuple(symbols)):
                self.differs(self.end, f"{said(value)} is saved, which is not live")

    def compare_outputs(self, outputs: ast.expr) -> None:
        """That results and new buffers are those of the binding."""
        binding = self.machine.program.binding
        wanted = Items(tuple(self.machine.value(r.name) for r in binding.results))
        if (found := self.value(outputs)) != wanted:
            self.differs(self.end, f"outputs are {said(found)}, not {said(wanted)}")
        updates = {b.names[0]: b.update for b in binding.buffers if b.update is not None}
        self._compare_table("new_buffers", updates)

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
            found = self.value(inputs)
        except Unbound as name:
            self.differs(self.end, f"{name} is read and holds nothing")
        if found != wanted:
            self.differs(self.end, f"input gradients are {said(found)}, not {said(wanted)}")

    def _value_of(self, name: str | None) -> Value:
        return Literal("None") if name is None else self.machine.value(name)

    def _compare_table(self, table: str, names: Mapping[str, str | None]) -> None:
        found = self.tables.get(table, {})
        if found.keys() != {repr(name) for name in names}:
            self.differs(self.end, f"{table} has {', '.join(found) or 'nothing'}")
        for key, name in names.items():
            value, wanted = found[repr(key)], self._value_of(name)
            if value != wanted:
                self.differs(self.end, f"{key} in {table} is {said(value)}, not {said(wanted)}")
