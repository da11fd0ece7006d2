"""Solves the leaves of a flat plan anew, each in its context: around it all stays as it is.

A level prices a child by one peak; in the flat plan every step of it has another room. So for one
leaf after the other, the most recomputed first, the compact integer program decides which of its
computations run again before which of its backward, and which replays of the plan are not needed.
Zhao 2024, section 3.5.5, has only frees as early as possible, which are implied here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from ..instance import Instance, Order
from ..programs.events import Pairs, Window, window_events
from ..programs.solve_compact import solve_events
from ..solvers import MilpSolver

_EACH_S = 5.0
_CHECKS = 40
_SWEEPS = 3
_MOST_PAIRS = 600
"""A window has at most so many options."""


@dataclass(frozen=True)
class Refined:
    """`late`: the deadline ended it."""

    order: Order
    late: bool


def refined(
    instance: Instance,
    order: Order,
    leaves: Sequence[Sequence[int]],
    limit_bytes: int,
    deadline: float,
    solver: MilpSolver,
) -> Refined:
    """An order that is no slower and within the budget. `leaves` are the forward cNodes of
    each; backward cNodes belong to the leaf that most of what they read is made in."""
    pairs = Pairs(instance, backward=False)
    members = _backward_of(instance, leaves)
    late = False
    for _ in range(_SWEEPS):
        before = instance.time_ns(order)
        for k in _by_overhead(instance, order, leaves):
            left = deadline - monotonic()
            if left <= 0.05:
                return Refined(order, True)
            window = _window(instance, pairs, leaves[k], members[k])
            if not window.size or instance.time_ns(order) <= instance.base_time_ns:
                continue
            events, runs = window_events(instance, order, window)
            began = monotonic()
            limit_s = min(_EACH_S, left)
            answer = solve_events(
                instance,
                events,
                limit_bytes,
                time_limit_s=limit_s,
                start=runs,
                cutoff_ns=instance.time_ns(order),
                solver=solver,
                most_checks=_CHECKS,
            )
            unproven = answer.status in ("feasible", "unknown")
            late = late or (unproven and monotonic() - began >= 0.9 * limit_s)
            if answer.order is not None and answer.time_ns < instance.time_ns(order):
                order = answer.order
        if instance.time_ns(order) >= before:
            break
    return Refined(order, late)


def _backward_of(instance: Instance, leaves: Sequence[Sequence[int]]) -> list[list[int]]:
    """The backward cNodes that read what each leaf makes."""
    leaf_A = {a: k for k, cs in enumerate(leaves) for c in cs for a in instance.writes_C[c]}
    members: list[list[int]] = [[] for _ in leaves]
    for c in range(instance.loss + 1, len(instance.names_C)):
        for k in sorted({leaf_A[a] for a in instance.reads_C[c] if a in leaf_A}):
            members[k].append(c)
    return members


def _by_overhead(instance: Instance, order: Order, leaves: Sequence[Sequence[int]]) -> list[int]:
    """Leaves by the time of their replays, the most first; all of them."""
    leaf_C = {c: k for k, cs in enumerate(leaves) for c in cs}
    again = [0] * len(leaves)
    seen: set[int] = set()
    for c in order:
        if c in seen and c in leaf_C:
            again[leaf_C[c]] += instance.retime_C[c]
        seen.add(c)
    return sorted(range(len(leaves)), key=lambda k: (-again[k], k))


def _window(
    instance: Instance, pairs: Pairs, leaf: Sequence[int], backward: Sequence[int]
) -> Window:
    own = set(leaf)
    options: dict[int, list[int]] = {}
    total = 0
    for c in backward:
        some = [k for k in pairs.of(c, instance.reads_C[c]) if k in own]
        if total + len(some) > _MOST_PAIRS:
            break
        if some:
            options[c] = some
            total += len(some)
    return Window(options)
