"""A program as a chain of stages, cut at the 1-separators of its forward.

Stage i holds forward cNodes and the backward cNodes that belong to them; the last stage
is the loss. What crosses from one stage to the next is the separator. Stages that the
backward does not keep apart (one of its cNodes reads what two of them made) are joined.

Values that are not made again are *permanent*: outputs, globals that several stages
read, and what a cNode makes that may not run twice. They do not cross.

Index legend: `x_N` has one entry per stage, the loss included, in the order of the forward.

Four layers F0 to F3 and their backward B8 to B5. The first stage has no backward of its own: B8
reads only what F1's stage finds at hand, x0 (the caller's) and x1.

    >>> chain = chain_of_program(step)
    >>> [[step.names_C[c] for c in cnodes] for cnodes in chain.forward_N]
    [['F0'], ['F1'], ['F2'], ['F3'], ['L4']]
    >>> [[step.names_C[c] for c in cnodes] for cnodes in chain.backward_N]
    [[], ['B7', 'B8'], ['B6'], ['B5'], []]
    >>> [[step.names_A[a] for a in anodes] for anodes in chain.cross_N]
    [['x1'], ['x2'], ['x3'], [], []]
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from ...ir.analysis.blocks import fingerprint
from ...ir.analysis.separators import chain_of
from ..instance import Instance


@dataclass(frozen=True)
class Chain:
    """`forward_N[i]` and `backward_N[i]` are cNodes in the order they run; `cross_N[i]` is
    what stage i + 1 reads of stage i; `until_A` gives, for a permanent aNode, the first
    stage whose backward still needs it (-1: to the end of the step)."""

    instance: Instance
    forward_N: tuple[tuple[int, ...], ...]
    backward_N: tuple[tuple[int, ...], ...]
    cross_N: tuple[frozenset[int], ...]
    until_A: dict[int, int]

    def __len__(self) -> int:
        return len(self.forward_N)

    @cached_property
    def permanent(self) -> frozenset[int]:
        return frozenset(self.until_A)

    @cached_property
    def stage_C(self) -> list[int]:
        stages_C = [-1] * len(self.instance.names_C)
        for i in range(len(self)):
            for c in (*self.forward_N[i], *self.backward_N[i]):
                stages_C[c] = i
        return stages_C

    @cached_property
    def musts(self) -> frozenset[int]:
        """Forward cNodes whose first execution cannot be left out: they draw random
        numbers, have a form of their own for replays, or make permanent values."""
        inst = self.instance
        return frozenset(
            c
            for cs in self.forward_N
            for c in cs
            if inst.token_C[c] >= 0
            or inst.replay_C[c]
            or inst.must_C[c]
            or any(a in self.until_A for a in inst.writes_C[c])
        )

    @cached_property
    def grads_N(self) -> list[frozenset[int]]:
        """The values that the loss and later stages' backward made, alive when each stage's
        backward begins."""
        inst = self.instance
        after = [c for i in reversed(range(len(self))) for c in self.backward_N[i]]
        made = {a for c in after for a in inst.writes_C[c]}
        made.update(inst.writes_C[inst.loss])
        last = {a: self.stage_C[c] for c in after for a in inst.reads_C[c] if a in made}
        alive: set[int] = set()
        grads_N: list[frozenset[int]] = [frozenset()] * len(self)
        for i in reversed(range(len(self))):
            if i == len(self) - 1:
                alive.update(self._lasting(inst.writes_C[inst.loss], last, i + 1))
            grads_N[i] = frozenset(alive)
            for c in self.backward_N[i]:
                alive.update(inst.writes_C[c])
                alive.discard(inst.ends_C[c])
            alive = set(self._lasting(alive, last, i))
        return grads_N

    def _lasting(self, some: Sequence[int] | set[int], last: dict[int, int], i: int) -> list[int]:
        """The members of `some` that are kept or read by the backward of a stage before i."""
        kept = self.instance.kept_A
        return [a for a in some if kept[a] or last.get(a, i) < i]


def chain_of_program(instance: Instance) -> Chain:
    """The chain of a program; it has two stages (the forward and the loss) where there is
    no separator. Linear time."""
    index = {name: c for c, name in enumerate(instance.names_C)}
    stages = [[index[name] for name in names] for names in chain_of(instance.program)]
    return chain_from_stages(instance, stages)


def chain_from_stages(
    instance: Instance, stages: Sequence[Sequence[int]], lasting: Collection[int] = ()
) -> Chain:
    """The chain with these stages of the forward, joined where they must be. `lasting`
    aNodes are permanent too."""
    while True:
        made = ForwardCut(instance, stages, lasting)
        joined = made.joined()
        if len(joined) == len(stages):
            return Chain(*made.fields())
        stages = joined


ChainFields = tuple[
    Instance,
    tuple[tuple[int, ...], ...],
    tuple[tuple[int, ...], ...],
    tuple[frozenset[int], ...],
    dict[int, int],
]


class ForwardCut:
    """A forward cut into stages; finds what crosses, and where the cut is too fine."""

    def __init__(
        self, instance: Instance, stages: Sequence[Sequence[int]], lasting: Collection[int] = ()
    ):
        self.instance = instance
        self.stages = [list(cs) for cs in stages]
        self.loss_stage = len(self.stages)
        self.stage_C = {c: i for i, cs in enumerate(self.stages) for c in cs}
        self.stage_C[instance.loss] = self.loss_stage
        self.made_in = {a: i for i, cs in enumerate(self.stages) for c in cs
                        for a in instance.writes_C[c]}  # fmt: skip
        self.readers: dict[int, set[int]] = {a: set() for a in self.made_in}
        for c, i in self.stage_C.items():
            for a in (*instance.reads_C[c], *instance.rereads_C[c]):
                if a in self.readers:
                    self.readers[a].add(i)
        self.permanent = self._permanent() | set(lasting)
        home_A = {a: self.home(a) for a in self.made_in if a not in self.permanent}
        self.backward_stage = backward_stages(instance, self.stage_C, home_A)

    def _permanent(self) -> set[int]:
        inst = self.instance
        permanent = set()
        for i, cs in enumerate(self.stages):
            for c in cs:
                again = set(inst.rewrites_C[c]) if inst.makable_C[c] else set()
                for a in inst.writes_C[c]:
                    crosses = any(j > i for j in self.readers[a])
                    if inst.kept_A[a] or a not in again or (crosses and inst.aside_A[a]):
                        permanent.add(a)
        return permanent

    def home(self, a: int) -> int:
        """The latest stage whose backward finds `a` at hand."""
        i = self.made_in[a]
        return i + 1 if i + 1 in self.readers[a] else i

    def joined(self) -> list[list[int]]:
        """The stages, with those joined that values reach across."""
        tie = list(range(len(self.stages)))
        spans = [
            (i, j - 1)
            for a, i in self.made_in.items()
            if a not in self.permanent
            for j in self.readers[a]
            if j > i + 1
        ]
        for c, b in self.backward_stage.items():
            for a in self.instance.reads_C[c]:
                if a in self.made_in and a not in self.permanent:
                    i = self.made_in[a]
                    if not i <= b <= self.home(a):
                        spans.append((min(i, b), max(i, b)))
        for low, high in spans:
            tie[low] = max(tie[low], high)
        joined: list[list[int]] = []
        reach = -1
        for i, cs in enumerate(self.stages):
            if i > reach:
                joined.append([])
            joined[-1] += cs
            reach = max(reach, tie[i])
        return joined

    def crosses(self, a: int, i: int) -> bool:
        """True if a value that stage i makes crosses to another."""
        return i + 1 in self.readers[a]

    def fields(self) -> ChainFields:
        """The fields of a `Chain`."""
        inst = self.instance
        n = self.loss_stage + 1
        backward: list[list[int]] = [[] for _ in range(n)]
        for c in inst.capture:
            if c in self.backward_stage:
                backward[self.backward_stage[c]].append(c)
        cross: list[set[int]] = [set() for _ in range(n)]
        for a, i in self.made_in.items():
            if a not in self.permanent and self.crosses(a, i):
                cross[i].add(a)
        return (
            inst,
            (*(tuple(cs) for cs in self.stages), (inst.loss,)),
            tuple(tuple(cs) for cs in backward),
            tuple(frozenset(x) for x in cross),
            self._until(),
        )

    def _until(self) -> dict[int, int]:
        until_A = {a: min(self.readers[a], default=self.loss_stage) for a in self.permanent}
        for c, b in self.backward_stage.items():
            for a in self.instance.reads_C[c]:
                if a in until_A:
                    until_A[a] = min(until_A[a], b)
        return {a: -1 if self.instance.kept_A[a] else until for a, until in until_A.items()}


def backward_stages(
    instance: Instance, stage_C: Mapping[int, int], home_A: Mapping[int, int]
) -> dict[int, int]:
    """The stage of each backward cNode: the latest that has all it reads, no later than that of
    the cNodes it depends on.

    `stage_C` are the stages of the forward and the loss (the last one), `home_A` the latest
    stage whose backward finds a forward aNode at hand.
    """
    inst = instance
    stage_of: dict[int, int] = {}
    maker: dict[int, int] = {}
    read_by: dict[int, list[int]] = {}
    loss_stage = drawn = now = stage_C[inst.loss]
    for c in inst.capture:
        if c in stage_C:
            continue
        limits = []
        for a in inst.reads_C[c]:
            if a in maker:
                limits.append(stage_of[maker[a]])
            elif a in home_A:
                limits.append(home_A[a])
        if inst.ends_C[c] >= 0:
            limits += [stage_of[other] for other in read_by.get(inst.ends_C[c], ())]
        if not limits and not any(a in inst.writes_C[inst.loss] for a in inst.reads_C[c]):
            limits.append(now)  # reads nothing of the step: stays where it was captured
        if inst.token_C[c] >= 0:
            limits.append(drawn)
        stage_of[c] = min(limits, default=loss_stage)
        if inst.token_C[c] >= 0:
            drawn = stage_of[c]
        now = stage_of[c]
        for a in inst.writes_C[c]:
            maker[a] = c
        for a in inst.reads_C[c]:
            read_by.setdefault(a, []).append(c)
    return stage_of


_LONGEST = 12
"""Periods of more stages are not looked for."""


def fingerprints(chain: Chain) -> list[str]:
    """One for each stage, the loss left out: equal for stages that are identical up to names,
    and whose values are of the same use to the others."""
    inst = chain.instance
    names, graph = inst.names_C, inst.program.graph
    uses = {inst.names_A[a]: "held" for a in chain.permanent}
    uses.update((inst.names_A[a], "crosses") for cross in chain.cross_N for a in cross)
    return [
        fingerprint(graph, (names[c] for c in forward), (names[c] for c in backward), uses=uses)
        for forward, backward in zip(chain.forward_N[:-1], chain.backward_N[:-1], strict=True)
    ]


def period_of(kinds: Sequence[object]) -> tuple[int, int, int]:
    """(start, end, period) of the longest run in which `kinds` repeats with a period;
    (0, 0, 1) where nothing does."""
    best = (0, 0, 1)
    for period in range(1, _LONGEST + 1):
        start = 0
        for i in range(len(kinds) - period + 1):
            same = i + period < len(kinds) and kinds[i] == kinds[i + period]
            if same:
                continue
            if i > start and i + period - start > best[1] - best[0]:
                best = (start, i + period, period)
            start = i + 1
    return best


def grouped(chain: Chain, most: int) -> Chain:
    """The chain with neighbours joined into blocks of at most `most` forward cNodes, or one
    period where that is longer."""
    sizes = [len(cnodes) for cnodes in chain.forward_N[:-1]]
    start, end, period = period_of(fingerprints(chain))
    cuts = _greedy(sizes, 0, start, most)
    if end > start:
        whole = sum(sizes[start : start + period])
        step = period * max(1, most // max(1, whole))
        repeats = range(start, end - step + 1, step)
        cuts += list(repeats)
        start = repeats[-1] + step if repeats else start
    cuts += _greedy(sizes, start, len(sizes), most)
    cuts.append(len(sizes))
    stages = [[c for i in range(a, b) for c in chain.forward_N[i]] for a, b in pairwise(cuts)]
    return chain_from_stages(chain.instance, stages)


def shortened(chain: Chain, most_stages: int) -> Chain:
    """The chain itself, or with neighbours joined where it has more stages than this."""
    cnodes = sum(len(cs) for cs in chain.forward_N)
    most = max(1, cnodes // most_stages)
    while len(chain) > most_stages:
        most *= 2
        chain = grouped(chain, most)
    return chain


def _greedy(sizes: Sequence[int], start: int, end: int, most: int) -> list[int]:
    """First stages of blocks of at most `most` cNodes."""
    starts: list[int] = []
    total = 0
    for i in range(start, end):
        if not starts or total + sizes[i] > most:
            starts.append(i)
            total = 0
        total += sizes[i]
    return starts
