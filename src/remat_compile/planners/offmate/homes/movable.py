"""An order with what could be elsewhere while it runs: parameters and the like, and gradients.

Between two steps storage of the caller may be on the host (`on host %w`, spec/semantics.md). Then
it is on the device from a prefetch before an entry that reads it until it is freed behind one, and
costs no copy out. A gradient that ends on the host is copied there behind its last writer.

Entries of an order are its positions; a *boundary* i is what happens just before entry i.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from ....ir.graph import CALLER_KINDS
from ....ir.program import Program
from ....ir.semantics.sizes import HOMES, Sizes
from ...instance import Instance, Order
from ...offload.copies.place import times_of


@dataclass(frozen=True, slots=True)
class Param:
    """Storage of the caller: `uses` are the entries that read it, none where nobody does."""

    name: str
    size_bytes: int
    uses: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Grad:
    """A gradient: there from entry `made` on, written last by `written`, used last by `last`.
    `existing_bytes` are those of the caller's own, which are there all the time."""

    name: str
    size_bytes: int
    existing_bytes: int
    made: int
    written: int
    last: int


@dataclass(frozen=True)
class MovableOrder:
    """`fixed_bytes` are there whatever is moved; `acts_bytes[i]` are those of activations during
    entry i."""

    program: Program
    order: Order
    fixed_bytes: int
    acts_bytes: list[int]
    times_ns: list[int]
    params: tuple[Param, ...]
    grads: tuple[Grad, ...]

    @cached_property
    def begins_ns(self) -> list[int]:
        """When entries begin if nothing is waited for, and the end."""
        return [0, *accumulate(self.times_ns)]

    @staticmethod
    def of(instance: Instance, order: Order) -> MovableOrder:
        """`instance` counts activations. Linear."""
        program, sizes = instance.program, Sizes.of(instance.program)
        graph = program.graph
        movable = movable_names(program)
        uses: dict[str, list[int]] = {name: [] for name in movable}
        writes: dict[str, list[int]] = {name: [] for name in movable}
        runs: Counter[int] = Counter()
        for i, c in enumerate(order):
            runs[c] += 1
            cnode = graph.cnodes[c]
            for name in dict.fromkeys(graph.reads(cnode, min(2, runs[c]))):
                if name in movable:
                    uses[name].append(i)
            for name in cnode.results_at(min(2, runs[c])):
                if name in movable:
                    writes[name].append(i)
        existing: Counter[str] = Counter()
        if program.binding.grads == "accumulate":
            for p in program.binding.params:
                if p.grad is not None:
                    existing[graph.storage[p.grad]] += sizes.anode[p.name]
        grads = tuple(
            Grad(name, sizes.anode[name], existing[name], written[0], written[-1],
                 max([*written, *uses[name]]))
            for name, written in writes.items() if written
        )  # fmt: skip
        params = tuple(
            Param(name, sizes.anode[name], tuple(uses[name]))
            for name in movable
            if not writes[name] and graph.anode[name].kind != "param_grad"
        )
        fixed = _callers_bytes(program, sizes) - sum(p.size_bytes for p in params)
        fixed += sum(n for name, n in existing.items() if name not in {g.name for g in grads})
        return MovableOrder(
            program,
            order,
            fixed,
            instance.profile(order),
            times_of(instance, order),
            tuple(sorted(params, key=lambda p: p.name)),
            tuple(sorted(grads, key=lambda g: (g.written, g.name))),
        )


def movable_names(program: Program) -> frozenset[str]:
    """The storages that may be on the host between two steps."""
    updated = {b.name for b in program.binding.buffers if b.update is not None}
    stay = updated | program.held_since_loss
    anodes = program.graph.anodes
    return frozenset(a.name for a in anodes if a.kind in HOMES and a.name not in stay)


def _callers_bytes(program: Program, sizes: Sizes) -> int:
    """Bytes of what the caller holds before the step, gradients left out."""
    return sum(sizes.anode[a.name] for a in program.graph.anodes if a.kind in CALLER_KINDS)
