"""A part of a step as a step of its own, so that it can be planned, and a part of it again.

Forward cNodes, a loss that takes what the part makes for others and gives the gradients that its
backward starts from, then backward cNodes. What others make or hold is left out: it is there in
any case, and whoever put the parts together counts it. What a part needs to know of its
surroundings is in its instance: `must_C`, `after_C`,
`makable_C`, `kept_A`, `aside_A`, `replay_C`.

The second of four layers, x2 = F1(x1), of which the backward B7 reads both sides and dx2: the loss
takes x2 and gives dx2. x1 is not there, though F1 and B7 read it.

    >>> second = part_of(step, [1], [7], held=set(), given=[gradient], passed=[], output=[x2])
    >>> second.names_C, second.names_A, second.reads_C
    (['F1', 'loss', 'B7'], ['x2', 'dx2', 'dw1', 'dx1'], [(), (0,), (0, 1)])
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ...ir.graph import Graph
from ...ir.program import Program
from ..instance import Instance

_NO_PROGRAM = Program(Graph("part", (), (), ()))
"""The whole's would travel along with every part that is planned elsewhere."""


def part_of(
    whole: Instance,
    forward: Sequence[int],
    backward: Sequence[int],
    *,
    held: Collection[int],
    given: Collection[int],
    passed: Collection[int],
    output: Collection[int],
) -> Instance:
    """These cNodes of `whole`, each list in the order it runs, numbered anew: the forward, the
    loss, the backward. aNodes are numbered in the order in which they are made, so that equal
    parts have equal numbers.

    The loss reads `output` and makes `given`; `passed` are alive to the end. `held` is the
    whole's: what makes it must run, and runs once. Backward cNodes run once. Linear time.
    """
    nodes = [*forward, -1, *backward]
    number = _numbers(whole, forward, backward, held, given)
    taken, made = (sorted(number[a] for a in some if a in number) for some in (output, given))

    def ids(anodes: Sequence[int]) -> tuple[int, ...]:
        return tuple(number[a] for a in anodes if a in number)

    def each(values: Sequence[int]) -> list[int]:
        return [0 if c < 0 else values[c] for c in nodes]

    def lists(values: Sequence[tuple[int, ...]], at_loss: Sequence[int]) -> list[tuple[int, ...]]:
        return [tuple(at_loss) if c < 0 else ids(values[c]) for c in nodes]

    writes = lists(whole.writes_C, made)
    tokens = [-1 if c < 0 else number.get(whole.token_C[c], -1) for c in nodes]
    writer = [-1] * len(number)
    for k, anodes in enumerate(writes):
        for a in anodes:
            writer[a] = k
        if tokens[k] >= 0:
            writer[tokens[k]] = k
    ours = set(held)
    return Instance(
        program=_NO_PROGRAM,
        kind=whole.kind,
        base_bytes=0,
        names_C=["loss" if c < 0 else whole.names_C[c] for c in nodes],
        phase_C=["loss" if c < 0 else whole.phase_C[c] for c in nodes],
        reads_C=lists(whole.reads_C, taken),
        rereads_C=lists(whole.rereads_C, taken),
        writes_C=writes,
        rewrites_C=lists(whole.rewrites_C, made),
        token_C=tokens,
        workspace_C=each(whole.workspace_C),
        reworkspace_C=each(whole.reworkspace_C),
        time_C=each(whole.time_C),
        retime_C=each(whole.retime_C),
        ends_C=[-1 if c < 0 else number.get(whole.ends_C[c], -1) for c in nodes],
        names_A=[whole.names_A[a] for a in number],
        size_A=[whole.size_A[a] for a in number],
        writer_A=writer,
        kept_A=[a in passed for a in number],
        makable_C=[
            0 <= k < len(forward) and whole.makable_C[c] and ours.isdisjoint(whole.rewrites_C[c])
            for k, c in enumerate(nodes)
        ],
        replay_C=[c >= 0 and whole.replay_C[c] for c in nodes],
        must_C=[
            c >= 0 and (whole.must_C[c] or not ours.isdisjoint(whole.writes_C[c])) for c in nodes
        ],
        after_C=_after(whole, nodes, ours),
        aside_A=[whole.aside_A[a] for a in number],
        loss=len(forward),
    )


def _after(whole: Instance, nodes: Sequence[int], held: set[int]) -> list[tuple[int, ...]]:
    """For each cNode those of the part that make what it reads and the whole holds."""
    place = {c: k for k, c in enumerate(nodes) if c >= 0}
    maker = {a: k for c, k in place.items() for a in whole.writes_C[c] if a in held}
    return [
        tuple(
            sorted(
                {maker[a] for a in whole.reads_C[c] if a in maker}
                | {place[b] for b in whole.after_C[c] if b in place}
            )
        )
        if c >= 0
        else ()
        for c in nodes
    ]


def _numbers(
    whole: Instance,
    forward: Sequence[int],
    backward: Sequence[int],
    held: Collection[int],
    given: Collection[int],
) -> dict[int, int]:
    """The new number of each aNode that is counted in the part."""
    order: dict[int, None] = {}
    for c in forward:
        order.update((a, None) for a in whole.writes_C[c] if a not in held)
        if whole.token_C[c] >= 0:
            order[whole.token_C[c]] = None
    first_read = (a for c in backward for a in whole.reads_C[c] if a in given)
    order.update(dict.fromkeys((*first_read, *sorted(given))))
    for c in backward:
        order.update(dict.fromkeys(whole.writes_C[c]))
    return {a: k for k, a in enumerate(order)}


def content_key(part: Instance) -> tuple[object, ...]:
    """Equal for instances that are the same problem: all that planning asks, names left out.

    That includes what a part is to its surroundings: which of its values are read outside (the
    loss reads them), kept, held by the whole, or globals.
    """
    fields: tuple[list[Any], ...] = (
        part.phase_C, part.reads_C, part.rereads_C, part.writes_C, part.rewrites_C, part.token_C,
        part.workspace_C, part.reworkspace_C, part.time_C, part.retime_C, part.ends_C,
        part.size_A, part.kept_A, part.makable_C, part.replay_C, part.must_C, part.after_C,
        part.aside_A,
    )  # fmt: skip
    return (*map(tuple, fields), part.base_bytes, part.loss)
