"""Towers of a forward: independent chains that meet at the loss or in a short tail.

A cNode *joins* where it reads what two towers made, each of at least two stages. It and all
that depends on it are the tail, which runs once, with the loss. Globals and what the
caller holds join nothing.

Towers of 2, 4 and 5 layers whose last values one cNode adds up: it joins, so it is the tail, and
the stages are 2 + 4 + 5, the tail, and the loss. This is the join graph of Shilova 2021,
section 1.3, with the tail as part of its loss.

    >>> found = towers_of(three_towers)
    >>> found.lengths, found.spans, len(found.chain)
    ([2, 4, 5], ((0, 2), (2, 6), (6, 11)), 13)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..instance import Instance
from .chain import Chain, chain_from_stages


@dataclass(frozen=True)
class Towers:
    """`chain` holds the stages of all towers one after another, then the tail (if any), then
    the loss; `spans[k]` are the first stage of tower k and the one behind its last."""

    chain: Chain
    spans: tuple[tuple[int, int], ...]

    @property
    def lengths(self) -> list[int]:
        return [end - start for start, end in self.spans]


def towers_of(instance: Instance) -> Towers | str:
    """The towers, or why there are none. Near-linear time."""
    global_A = {a for a, aside in enumerate(instance.aside_A) if aside}
    groups, tail = _split(instance, global_A)
    if len(groups) < 2:
        return "no two independent towers of at least two stages meet in its forward"
    stages: list[list[int]] = []
    outputs: set[int] = set()
    behind = {a for c in (*tail, instance.loss) for a in instance.reads_C[c]}
    for group in groups:
        outputs.update(a for c in group for a in instance.writes_C[c] if a in behind)
        stages += _stages(instance, group, global_A)
    if tail:
        stages.append(tail)
    chain = chain_from_stages(instance, stages, outputs)
    spans = []
    for k, group in enumerate(groups):
        own = [i for i, cs in enumerate(chain.forward_N) if set(cs) & set(group)]
        if sum(len(chain.forward_N[i]) for i in own) != len(group):
            return "its backward ties two of its towers together"
        if len(own) < 2:
            return f"tower {k + 1} is not a chain: its backward ties its stages together"
        spans.append((own[0], own[-1] + 1))
    return Towers(chain, tuple(spans))


def _split(instance: Instance, global_A: set[int]) -> tuple[list[list[int]], list[int]]:
    """The cNodes of each tower, and of the tail, in the order of capture."""
    group: dict[int, list[int]] = {}
    of: dict[int, int] = {}
    tail: list[int] = []
    in_tail: set[int] = set()
    for c in instance.capture:
        if instance.phase_C[c] != "fwd":
            continue
        parts = {id(group[of[a]]): group[of[a]] for a in instance.reads_C[c] if a in of}
        late = any(a in in_tail for a in instance.reads_C[c])
        if late or _joins(instance, list(parts.values()), global_A):
            tail.append(c)
            in_tail.update(instance.writes_C[c])
            continue
        # The larger part takes the smaller ones in, so that each cNode moves rarely.
        largest, *others = sorted([*parts.values(), [c]], key=len, reverse=True)
        for part in others:
            largest += part
            group.update(dict.fromkeys(part, largest))
        of.update((a, c) for a in instance.writes_C[c] if a not in global_A)
        group[c] = largest
    parts_of_forward = [sorted(g) for g in {id(g): g for g in group.values()}.values()]
    towers = sorted(g for g in parts_of_forward if len(_stages(instance, g, global_A)) >= 2)
    if towers:
        # Small pieces on their own, such as masks, run with the first tower.
        rest = [c for g in parts_of_forward if g not in towers for c in g]
        towers[0] = sorted([*towers[0], *rest])
    return towers, tail


def _joins(instance: Instance, parts: Sequence[Sequence[int]], global_A: set[int]) -> bool:
    """True if at least two of these are towers."""
    if len(parts) < 2:
        return False
    return sum(len(_stages(instance, sorted(p), global_A)) >= 2 for p in parts) >= 2


def _stages(instance: Instance, group: Sequence[int], global_A: set[int]) -> list[list[int]]:
    """A tower cut at its own 1-separators."""
    last: dict[int, int] = {}
    for place, c in enumerate(group):
        for a in instance.reads_C[c]:
            last[a] = place
    stages: list[list[int]] = [[]]
    crossing: set[int] = set()
    for place, c in enumerate(group):
        stages[-1].append(c)
        crossing.update(
            a for a in instance.writes_C[c] if a not in global_A and last.get(a, -1) > place
        )
        crossing -= {a for a in instance.reads_C[c] if last[a] == place}
        if len(crossing) == 1 and place < len(group) - 1 and crossing & set(instance.writes_C[c]):
            stages.append([])
    return stages
