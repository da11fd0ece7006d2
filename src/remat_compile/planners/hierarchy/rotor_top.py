"""Rk-Rotor across the leaves of a hierarchy, where they form a chain: exact for what they offer.

The reduced program has a column for each replay of a child before each backward, so long chains are
not for it; the dynamic program of `chains/persistent.py` takes all options of all leaves at once.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..chains.answer import least_order, persistent_orders
from ..chains.block_options import block_instance, option_of
from ..chains.chain import Chain, chain_from_stages
from ..chains.recurrences.persistent import DeadlinePassed
from ..chains.stages import BlockOption, save_all, stages_of
from ..instance import Order
from ..results import Task
from .partition.levels import Member, Tree
from .reduced.options import Offer, pareto, quick_orders

_MOST_STAGES = 200
_SLOTS = 500
_OFFERED = 40
"""Tables grow with the options of a stage."""


def chain_orders(task: Task, tree: Tree) -> Iterator[Order]:
    """Schedules of the chain of leaves, the fastest first, then that of least memory; none where
    the leaves are no chain."""
    members = [member for member in tree.members() if member.forward]
    chain = chain_from_stages(task.instance, [member.forward for member in members])
    if not 2 < len(chain) <= _MOST_STAGES:
        return
    by_forward = {member.forward: member for member in members}
    offered: dict[int, list[Order]] = {}
    options_N = [
        _options(chain, i, by_forward.get(chain.forward_N[i]), offered)
        for i in range(len(chain) - 1)
    ]
    stages = stages_of(chain, [*options_N, [save_all(chain, len(chain) - 1)]])
    try:
        yield from persistent_orders(task, stages, _SLOTS)
        yield least_order(task, stages)
    except DeadlinePassed:
        return


def _options(
    chain: Chain, i: int, member: Member | None, offered: dict[int, list[Order]]
) -> list[BlockOption]:
    """All that the class of stage i found; closed forms for a stage that is no leaf."""
    if member is not None and member.backward == chain.backward_N[i]:
        part = member.part
        if id(part) not in offered:
            some = pareto(Offer.of(part.instance, order) for order in part.orders)
            offered[id(part)] = [list(offer.order) for offer in some[:: 1 + len(some) // _OFFERED]]
        orders = offered[id(part)]
    else:
        orders = list(quick_orders(block_instance(chain, i)))
    return [*(option_of(chain, i, order) for order in orders), save_all(chain, i)]
