"""Reads a generated module with `jax.checkpoint` back and holds it against its form.

Compared are: `KEPT` and `OFFLOADED` with the form, and the form with what the schedule has at the
loss; the segments with the form: each forward computation once, in its segment, with its lowering,
arguments, draw and results; that a segment is given what it reads of others and is called under
`jax.checkpoint` with the policy; that each value of the form, and no other, is named, before
anything reads it; outputs and new buffers. A segment may be left out where nothing reads it.

Not compared: the policy and `step`, whose text is the same in every module and is looked for as
such, and what JAX does with the names, which is looked up in what it traces (FB0936).
"""

from __future__ import annotations

import ast

from ....ir.program import Program
from ....ir.schedule import Compute, Offload, Schedule
from ...readback.expressions import Unbound
from ...readback.machine import AbstractMachine, Execution
from ...readback.mismatch import differs, unreadable
from ...readback.regions import RegionReader
from ...readback.values import ANodeInstance, storages
from ..checkpoint.form import Form
from ..emit.template import ANNOTATED_RUN, KEEP
from ..honoured import for_jax
from .ends import EndedFunction
from .expressions import JaxReader, reader_of
from .function import Function
from .module import check_fixed, definitions


def check_annotated(source: str, program: Program, schedule: Schedule, form: Form) -> None:
    """Holds an annotated module against a form of `schedule`. FB0945 with the place in the text
    where they differ, FB0946 for code that has no meaning here."""
    file = f"<JAX code of @{schedule.name}>"
    tree = ast.parse(source)
    functions = definitions(tree, file)
    binding = program.binding
    run = ANNOTATED_RUN.format(
        inputs=tuple(sorted(i for i, _ in binding.input_grads)),
        without=tuple(p.names[0] for p in binding.params if p.grad is None),
    )
    check_fixed(tree, KEEP + run, file)
    _check_names(tree, program, form, file)
    _check_form(tree, program, schedule, form, file)
    if "model" not in functions:
        unreadable(tree, file, "no function model")
    steps = tuple(Compute(c.name) for c in program.graph.in_phase("fwd"))
    steps += (Compute(program.graph.loss.name),)
    machine = AbstractMachine(for_jax(program), Schedule(schedule.name, schedule.planner, steps))
    reader = reader_of(functions, machine.graph, file)
    inside = RegionReader(machine, reader, {name: functions[name] for name in reader.regions})
    model = _ModelReader(machine, reader, functions["model"], file, inside, form)
    model.enter("params, buffers, args, key=None")
    model.bind_caller()
    model.run(functions["model"].body)
    model.end_of_model()


def _check_names(tree: ast.Module, program: Program, form: Form, file: str) -> None:
    acts = [a.name for a in program.graph.anodes if a.kind == "act"]
    for name, of in (("KEPT", form.kept), ("OFFLOADED", form.offloaded)):
        wanted = repr([act for act in acts if act in of])
        for node in tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=bound)], value=value) if bound == name:
                    if ast.dump(value) != ast.dump(ast.parse(wanted, mode="eval").body):
                        differs(node, file, "the loss", f"{name} is not {wanted}")
                    break
                case _:
                    pass
        else:
            unreadable(tree, file, f"no {name}")


def _check_form(
    tree: ast.Module, program: Program, schedule: Schedule, form: Form, file: str
) -> None:
    """Check that the form keeps and offloads nothing but what the schedule does."""
    machine = AbstractMachine(program, schedule)
    copied: set[str] = set()
    while (step := machine.next_copy_or_computation()) is not None:
        if isinstance(step, Offload):
            copied.add(step.anode)
            machine.offload(step)
        elif not isinstance(step, Compute):
            machine.prefetch(step)  # type: ignore[arg-type]
        elif program.graph.cnode[step.cnode].is_loss:
            break
        else:
            machine.compute(machine.execution())
    for what, names in (
        ("kept", form.kept - machine.live.keys()),
        ("offloaded", form.offloaded - copied),
        ("kept and offloaded", form.kept & form.offloaded),
    ):
        if names:
            differs(tree, file, "the loss", f"%{min(names)} is {what}")


class _Segment(Function):
    """The body of a segment. `unnamed` has results that are to be named before anything else."""

    def __init__(self, model: _ModelReader, node: ast.FunctionDef):
        super().__init__(model.machine, model.reader, node, model.file, model.regions)
        self._names = model.names
        self._cnodes: frozenset[str] = frozenset()
        self.unnamed: list[ANodeInstance] = []

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.Assign(
                targets=[ast.Name(id=target)],
                value=ast.Call(
                    func=ast.Name(id="checkpoint_name"),
                    args=[ast.Name(id=source), ast.Constant(value=str(name))],
                    keywords=[],
                ),
            ):
                if source not in self.variables:
                    raise Unbound(source)
                value = self.variables[source]
                if not isinstance(value, ANodeInstance) or value not in self.unnamed:
                    self.differs(node, f"{source} is named {name} as {target}")
                if target != source or value.anode != name:
                    self.differs(node, f"{source} is named {name} as {target}")
                self.unnamed.remove(value)
            case _:
                self.check_named(node)
                super().statement(node)

    def check_named(self, node: ast.AST) -> None:
        """FB0945 where something that is kept has no name yet."""
        if self.unnamed:
            self.differs(node, f"%{self.unnamed[0].anode} is kept and has no name")

    def executed(self, now: Execution) -> None:
        self.unnamed = [slot for slot in now.slots if slot.anode in self._names]


class _ModelReader(EndedFunction):
    """`model`: its segments, each as it is called."""

    def __init__(
        self,
        machine: AbstractMachine,
        reader: JaxReader,
        node: ast.FunctionDef,
        file: str,
        regions: RegionReader,
        form: Form,
    ):
        super().__init__(machine, reader, node, file, regions)
        graph = machine.graph
        acts = {a.name for a in graph.anodes if a.kind == "act"}
        self.names = frozenset(acts & (form.kept | form.offloaded))
        forward = [c.name for c in graph.in_phase("fwd")]
        ends = [*form.starts[1:], len(forward)]
        self._segments = [forward[a:b] for a, b in zip(form.starts, ends, strict=True)]
        self._done = 0
        self._defined: ast.FunctionDef | None = None

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef() if self._defined is None:
                self._defined = node
            case ast.Assign(
                targets=[target],
                value=ast.Call(
                    func=ast.Call(
                        func=ast.Attribute(value=ast.Name(id="jax"), attr="checkpoint"),
                        args=[ast.Name(id=name)],
                        keywords=[ast.keyword(arg="policy", value=ast.Name(id="KEEP"))],
                    ),
                    args=given,
                    keywords=[],
                ),
            ) if self._defined is not None and self._defined.name == name:
                self._segment(node, self._defined, target, given)
                self._defined = None
            case ast.With() | ast.FunctionDef():
                self.differs(node, "it stands in no segment", self.next_step())
            case _ if self._defined is not None:
                self.differs(node, f"{self._defined.name} is not called under jax.checkpoint")
            case _:
                super().statement(node)

    def _segment(
        self, node: ast.stmt, function: ast.FunctionDef, target: ast.expr, given: list[ast.expr]
    ) -> None:
        number = function.name.removeprefix("segment_")
        if not number.isdigit() or not self._done < int(number) <= len(self._segments):
            self.differs(function, f"{function.name} stands there", self.next_step())
        self._leave_out(int(number) - 1)
        segment = _Segment(self, function)
        self._pass(function, given, segment)
        segment.run(function.body)
        segment.check_named(segment.end)
        end = self.machine.graph.cnode[self._segments[self._done][-1]]
        self._done += 1
        if not self.machine.runs[end.name] or self._early():
            self.differs(function, f"{function.name} is not {self._segments[self._done - 1]}")
        assert segment.returned is not None
        result = segment.value(segment.returned)
        self.unpack(node, target, result)

    def _early(self) -> bool:
        """Return whether something has run of a segment that is still to come."""
        return any(
            self.machine.runs[name] for part in self._segments[self._done :] for name in part
        )

    def _pass(self, function: ast.FunctionDef, given: list[ast.expr], segment: _Segment) -> None:
        takes = [argument.arg for argument in function.args.args]
        if ", ".join(takes) != ast.unparse(function.args) or function.decorator_list:
            unreadable(function, self.file, f"{function.name}({ast.unparse(function.args)})")
        if len(takes) != len(given):
            self.differs(function, f"it takes {len(takes)} values and is given {len(given)}")
        inner = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and _is_bound(n)}
        for name in self.variables:
            # Values of other segments are passed: JAX keeps what it sees as an argument.
            value = self.variables[name]
            made = any(not isinstance(s, ANodeInstance) or s.number for s in storages(value))
            if not made and name not in inner:
                segment.bind(name, value)
        for name, part in zip(takes, given, strict=True):
            segment.bind(name, self.value(part))

    def _leave_out(self, until: int) -> None:
        """Goes past segments without code: what would read them finds no variable."""
        while self._done < until:
            for _ in self._segments[self._done]:
                self.machine.compute(self.machine.execution())
            self._done += 1

    def end_of_model(self) -> None:
        """Compares outputs and new buffers."""
        if self._defined is not None:
            self.differs(self.end, f"{self._defined.name} is not called")
        self._leave_out(len(self._segments))
        self.finish()
        match self.returned:
            case ast.Tuple(elts=[outputs, ast.Dict() as updates]):
                pass
            case _:
                unreadable(self.end, self.file, ast.unparse(self.end))
        self.read_ends(outputs, updates)


def _is_bound(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)
