"""The step of an optimizer on a graph that was written by hand."""

from __future__ import annotations

from dataclasses import replace

from remat_compile.ir.expr import Const
from remat_compile.ir.graph import UPDATE_OP, ANode, Call, CNode, Ref
from remat_compile.ir.program import Program


def trained(program: Program, *, device_ns: int = 4, host_ns: int = 40) -> Program:
    """The program with an update of each parameter by an optimizer that has two states; so many
    nanoseconds each, and a state has the bytes of its parameter."""
    graph, bound = program.graph, list(program.binding.params)
    anodes, cnodes, consumed = list[ANode](), list[CNode](), set[str]()
    for place, param in enumerate(bound):
        if param.grad is None:
            continue
        like = graph.anode[param.name]
        states = [
            replace(like, name=f"{like.name}.{key}", kind="opt_state", span=None) for key in "mv"
        ]
        old = [like, *states]
        new = [replace(a, name=f"{a.name}.new", kind="updated", span=None) for a in old]
        read = (*(Ref(a.name) for a in old), Ref(param.grad))
        call = Call(UPDATE_OP, (*read, "torch.optim.Adam", 0))
        made = CNode(f"U{place + 1}", "opt", tuple(a.name for a in new), call)
        cnodes.append(replace(made, workspace=Const(0), time_ns=device_ns, host_time_ns=host_ns))
        anodes += [*states, *new]
        consumed.add(graph.storage[param.grad])
        bound[place] = replace(param, grad=None)
    known = tuple(replace(a, kind="grad") if a.name in consumed else a for a in graph.anodes)
    graph = replace(graph, anodes=(*known, *anodes), cnodes=(*graph.cnodes, *cnodes))
    return replace(program, graph=graph, binding=replace(program.binding, params=tuple(bound)))
