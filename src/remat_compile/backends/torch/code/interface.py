"""Tensors that cross the border of the generated forward and backward, and their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, replace

from ....ir.graph import CALLER_KINDS
from ....ir.program import Program
from ....ir.rewrites.updates import has_updates
from ....ir.schedule import Compute, Free, Home, HostFree, Offload, Prefetch, Schedule, Wait
from ...python.names import loss_index

COPIES = "copies of the call"
"""The key of what is saved last by the forward of a plan that copies to the host; it is also
the last input of that forward. No aNode has a name with blanks."""

TICKET = "ticket of the call"
"""The key of what is saved behind all else by the forward of a step that graphs may run."""


@dataclass(frozen=True)
class Interface:
    """Names in order; None stands for a slot that is not used.

    forward: `inputs -> (*outputs, *saved, *symbols)`;
    backward: `(*symbols, *saved, *tangents) -> grads`.
    With copies to the host: `(*inputs, COPIES)` and `(*saved, COPIES)`.
    """

    inputs: tuple[str | None, ...]
    outputs: tuple[str | None, ...]
    tangents: tuple[str, ...]
    grads: tuple[str | None, ...]

    def without(self, program: Program, homes: Container[str]) -> Interface:
        """Arguments and results of generated code: `homes` are on the host, where copies know
        them."""

        def here(name: str | None) -> str | None:
            away = name is not None and program.graph.storage[name] in homes
            return None if away else name

        return replace(
            self, inputs=tuple(map(here, self.inputs)), grads=tuple(map(here, self.grads))
        )


def default_interface(program: Program) -> Interface:
    """Inputs: parameters, buffers, arguments. Outputs: new buffer contents, results.

    Gradients: of the parameters, then of the arguments.
    """
    binding = program.binding
    constants = {a.name for a in program.graph.anodes if a.kind == "const"}
    input_grads = dict(binding.input_grads)
    return Interface(
        inputs=(
            *(p.name for p in binding.params),
            *(b.name for b in binding.buffers if b.name not in constants),
            *(a.name for a in binding.arguments),
        ),
        outputs=(
            *(b.update for b in binding.buffers if b.update is not None),
            *(r.name for r in binding.results),
        ),
        tangents=tuple(r.tangent for r in binding.results if r.tangent is not None),
        grads=(
            *(p.grad for p in binding.params),
            *(input_grads.get(i) for i in range(len(binding.arguments))),
        ),
    )


def copies_of(program: Program, schedule: Schedule) -> tuple[str, ...]:
    """`COPIES` where the schedule copies to the host or updates parameters, else nothing."""
    return (COPIES,) if schedule.has_copies or has_updates(program) else ()


def saved_at_loss(program: Program, schedule: Schedule) -> tuple[str, ...]:
    """aNodes carried from forward to backward, in order of declaration.

    Every instance made before the loss that something after it reads or copies, or of which a
    copy is under way: activations, tokens, and what the caller holds; constants excepted.
    """
    graph, schedule = program.graph, schedule.elementary
    border = loss_index(graph, schedule)
    executions: Counter[str] = Counter()
    carried = {a.name for a in graph.anodes if a.kind in CALLER_KINDS}
    needed: set[str] = set()
    flying: set[str] = set()
    for index, step in enumerate(schedule.steps):
        match step:
            case Free(name):
                carried.discard(name)
            case Offload(name):
                needed.update({name} & carried if index > border else ())
                flying.add(name)
            case Prefetch(name):
                carried.update((name,) if index < border else ())
                flying.add(name)
            case Wait(name):
                flying.discard(name)
            case Home(name):
                carried.discard(name)
            case HostFree() | Compute():
                pass
        if not isinstance(step, Compute):
            continue
        if index == border:
            needed.update(flying)
        c = graph.cnode[step.cnode]
        executions[c.name] += 1
        n = executions[c.name]
        if step.on_host:
            flying.update((*graph.reads(c), *c.results))
            continue
        reads = {*graph.reads(c, n), *((c.token,) if c.token is not None and n > 1 else ())}
        if index > border:
            needed.update(reads & carried)
        elif index < border:
            carried.update(c.results_at(n), (c.token,) if c.token is not None else ())
        if step.nosave:
            carried.difference_update(
                name for name in c.results_at(n) if graph.anode[name].kind == "phantom"
            )
        carried.difference_update(dict(c.takes_over))
    # A gradient that was made before the loss leaves through the backward.
    ends = (*(p.grad for p in program.binding.params), *(g for _, g in program.binding.input_grads))
    needed.update(graph.storage[g] for g in ends if g is not None and graph.storage[g] in carried)
    return tuple(a.name for a in graph.anodes if a.name in needed and a.kind != "const")
