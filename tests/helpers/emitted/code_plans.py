"""A small plan, the sources of all forms of generated code, and programs full of foreign text."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor, nn

from remat_compile.backends.jax.checkpoint.annotated import emit_form, fitting_form
from remat_compile.backends.jax.emit.module import emit as emit_jax
from remat_compile.backends.jax.lowerings import source_of
from remat_compile.backends.torch import emit as emit_torch
from remat_compile.capture.torch import export, lower
from remat_compile.ir.analysis.order import frees_after_last_use
from remat_compile.ir.graph import Arg, Call, CNode
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.span import Loc

FORMS = ("torch", "jax", "annotated")
PAYLOAD = 'open("PWNED","w").write("x")'


class Net(nn.Module):
    """Views, a token, a replay form, an argument that is text, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)
        self.bn = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.gelu(self.lin(x), approximate="tanh")
        out: Tensor = self.bn(self.drop(h).relu())
        return out


@cache
def planned() -> tuple[Program, Schedule]:
    """The program of `Net`, and a schedule that runs its linear layer twice."""
    with lower(export(Net(), (torch.zeros(2, 4),))) as lowered:
        program = lowered.program
    graph = program.graph
    forward = [c.name for c in graph.in_phase("fwd")]
    backward = [c.name for c in graph.in_phase("bwd")]
    again = [c.name for c in graph.in_phase("fwd") if c.token is not None or c.name == "F1"]
    order = [*forward, graph.loss.name, *again, *backward]
    schedule = Schedule("plan", "by hand", frees_after_last_use(graph, order))
    return program, schedule


def source(form: str, program: Program, schedule: Schedule) -> str:
    """The generated code, which has passed its own check."""
    if form == "torch":
        return emit_torch(program, schedule)
    if form == "jax":
        return emit_jax(program, schedule, source_of)
    return emit_form(program, schedule, fitting_form(program, schedule, nearest=True), source_of)


def filled(text: str) -> tuple[Program, Schedule]:
    """The plan with `text` wherever a program holds any text."""
    program, schedule = planned()
    graph, binding = program.graph, program.binding
    graph = replace(graph, name=text, cnodes=tuple(_cnode(c, text) for c in graph.cnodes))
    binding = replace(
        binding,
        arguments=tuple(replace(a, path=f"{text}{i}") for i, a in enumerate(binding.arguments)),
        params=tuple(replace(p, names=(f"{text}{i}",)) for i, p in enumerate(binding.params)),
        buffers=tuple(replace(b, names=(f"{text}{i}",)) for i, b in enumerate(binding.buffers)),
    )
    header = replace(program.header, source=text, torch_version=text, sha256=text)
    target = replace(program.target, name=text)
    program = replace(program, graph=graph, binding=binding, header=header, target=target)
    return program, Schedule(text, text, schedule.steps)


def _cnode(c: CNode, text: str) -> CNode:
    return replace(c, loc=Loc(text, 3, text), call=_call(c.call, text))


def _call(call: Call, text: str) -> Call:
    def swap(arg: Arg) -> Arg:
        return text if isinstance(arg, str) else arg

    kwargs = tuple((key, swap(value)) for key, value in call.kwargs)
    return replace(call, args=tuple(map(swap, call.args)), kwargs=kwargs)


def executable(text: str) -> str:
    """What a source does, whatever its docstring and its literal strings say."""

    class Blank(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.Constant:
            return ast.Constant("") if isinstance(node.value, str) else node

    tree = ast.parse(text)
    return ast.dump(Blank().visit(tree))
