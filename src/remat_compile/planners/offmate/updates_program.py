"""From the O-ILP of a program's blocks to an order and a way for each update.

The rows are those of `blocks/program.py`, whose tensors are what each update takes. Of a group of
tensors they say which share goes which way. Updates are taken in the order of their gradients, and
each goes the way that is owed most bytes: with 0.5 of `states`, two of four equal ones do.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.program import Program
from ..instance import Instance
from ..solvers import MilpSolver
from .blocks.instance import StepInstance, blocks_of
from .blocks.program import Fractions
from .blocks.solve import best_fractions
from .updates_place import WAYS, UpdateOrder, Way

Options = tuple[int, ...]

_SMALL = 12
"""Updates of less than 2 ** -12 of the budget stay on the device."""


class UpdatesProgram:
    """The O-ILP for `limit_bytes`. `base` is of `for_planners(program)`, and counts activations."""

    def __init__(
        self, program: Program, base: Instance, limit_bytes: int, most_blocks: int = 40
    ) -> None:
        self.program, self.base = program, base
        small = max(1, limit_bytes >> _SMALL)
        self.blocks = blocks_of(program, small_bytes=small, most_blocks=most_blocks)
        self.instance = self.blocks.instance.under(limit_bytes)
        self._views: dict[Options, UpdateOrder] = {}

    def view(self, options: Options) -> UpdateOrder:
        """The order with an option for each block; of one that has fewer, its last."""
        rows = self.instance.options_L
        options = tuple(min(k, len(row) - 1) for k, row in zip(options, rows, strict=True))
        if options not in self._views:
            order = self.blocks.order(options)
            self._views[options] = UpdateOrder(self.program, self.base, order)
        return self._views[options]

    def choices(
        self, solver: MilpSolver, deadline: float
    ) -> Iterator[tuple[Options, tuple[Way, ...]]]:
        """Options of blocks and ways of updates that the program says, by the deadline."""
        for fractions in best_fractions(self.instance, solver, deadline):
            view = self.view(fractions.options)
            yield fractions.options, _ways(view, self.instance, fractions)


def _ways(view: UpdateOrder, instance: StepInstance, fractions: Fractions) -> tuple[Way, ...]:
    shares = {
        tensor.name: _shares(instance, fractions, w)
        for w, group in enumerate(instance.groups)
        for tensor in group.tensors
    }
    owed = dict.fromkeys(WAYS, 0.0)
    ways: list[Way] = []
    for update in view.updates:
        size = view.bytes_of((*update.params, *update.states))
        of = shares.get(update.cnode.name)
        if of is None:
            ways.append("device")
            continue
        for way in WAYS:
            owed[way] += of[way] * size
        ways.append(max(WAYS, key=owed.__getitem__))
        owed[ways[-1]] -= size
    return tuple(ways)


def _shares(instance: StepInstance, fractions: Fractions, w: int) -> dict[Way, float]:
    """Which share of a group goes which way, by where it is missing."""
    group, of = instance.groups[w], fractions.of
    used, last = group.uses(instance.blocks), group.last_grad(instance.blocks)
    middle = [t for t in range(group.first, last) if t not in used]
    host = float(of["Opt"][w].sum())
    through = 0.0 if 0 in used else max(0.0, 1 - of["Sto"][w][0] - host)
    states = max(0.0, 1 - of["StoO"][w][0] - host - through) if group.grad_bytes else 0.0
    dropped = max((1 - of["Sto"][w][t] - of["Prf"][w][t] for t in middle), default=0.0)
    return {
        "device": 1 - host - through - states,
        "states": states,
        "through": max(0.0, through - dropped),
        "through-dropped": min(through, dropped),
        "host": max(0.0, host - max(0.0, dropped - through)),
        "host-dropped": max(0.0, min(host, dropped - through)),
    }
