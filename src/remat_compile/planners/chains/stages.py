"""Costs of a stage of a chain, for the dynamic programs: time and bytes of its ways to run.

The three forward operations of Shilova 2021, table 2.1, are here: without saving
(`skim`; F^0, and F^ck where the input stays), and saving for the backward (an option;
F^all, or several as in Zhao 2024, section 2.5). Each has a form for the first execution
and one for the others, and a saving one a form without the output, for when its backward
comes next.

A run is a list of cNode indices. Forward cNodes run in their first form or in their form
for a replay; backward cNodes run once, in their first form.

Four layers x1 = F0(x0) to x4 = F3(x3), each of 100 bytes, 10 ns and 5 bytes of workspace. For
the second, its output, 100, and the workspace; with its input given up, 100 more. B7 and B8 read
x1, x2 and two gradients: 400.

    >>> chain = chain_of_program(step)
    >>> stage = stages_of(chain, [[save_all(chain, i)] for i in range(len(chain))])[1]
    >>> stage.skim_first.peak_bytes, stage.skim_first.dropping_bytes, stage.cross_bytes
    (105, 205, 100)
    >>> stage.options[0].backward.time_ns, stage.options[0].backward.peak_bytes
    (40, 400)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..instance import Instance
from .chain import Chain

Run = tuple[int, ...]
Form = tuple[int, bool]
"""A cNode and whether it runs for the first time."""


@dataclass(frozen=True, slots=True)
class StageRun:
    """A run with its time, and its peak beside what others hold at that moment."""

    time_ns: int
    peak_bytes: int
    run: Run = ()


def forms(instance: Instance, run: Iterable[int], *, again: bool) -> Iterator[Form]:
    """The cNodes of a run with their forms; with `again` the forward has run before."""
    seen: set[int] = set()
    for c in run:
        yield c, c not in seen and not (again and instance.phase_C[c] == "fwd")
        seen.add(c)


def _effects(instance: Instance, form: Form) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The reads and writes of a form, without tokens."""
    c, first = form
    if first:
        return instance.reads_C[c], instance.writes_C[c]
    return instance.rereads_C[c], instance.rewrites_C[c]


def written_by(instance: Instance, run: Iterable[int], *, again: bool) -> set[int]:
    return {a for form in forms(instance, run, again=again) for a in _effects(instance, form)[1]}


def needed_at_start(instance: Instance, run: Sequence[int], *, again: bool) -> set[int]:
    """The aNodes that a run reads before it writes them."""
    return set(_deaths(instance, list(forms(instance, run, again=again)), ())[-1])


def needed_part(
    instance: Instance,
    run: Sequence[int],
    wanted: Collection[int],
    given: Collection[int] = (),
    *,
    again: bool,
    must: Collection[int] = (),
) -> tuple[int, ...]:
    """The entries of `run` that make `wanted`, directly or through others of them.

    aNodes in `given` are there throughout, so that nothing runs for them. cNodes in `must`
    stay. Backward cNodes always stay.
    """
    missing = set(wanted) - set(given)
    kept: list[int] = []
    for form in reversed(list(forms(instance, run, again=again))):
        c = form[0]
        reads, writes = _effects(instance, form)
        asked = any(a in missing for a in writes)
        if asked or c in must or instance.phase_C[c] != "fwd":
            missing.difference_update(writes)
            missing.update(a for a in reads if a not in given)
            kept.append(c)
    return tuple(reversed(kept))


def cost_of(
    instance: Instance,
    run: Sequence[int],
    alive: Collection[int],
    keep: Collection[int],
    *,
    again: bool,
    tokens: Collection[int] = (),
) -> StageRun:
    """Time and memory of a run that frees after last use.

    `alive` counts from the start; of it and of what the run writes, `keep` stays to the end.
    Whatever else is read is somewhere else's to count. `tokens` are the generator states
    that first executions store.
    """
    time_ns, during = profile_of(instance, run, alive, keep, again=again, tokens=tokens)
    return StageRun(time_ns, max(during), tuple(run))


def profile_of(
    instance: Instance,
    run: Sequence[int],
    alive: Collection[int],
    keep: Collection[int],
    *,
    again: bool,
    tokens: Collection[int] = (),
) -> tuple[int, list[int]]:
    """As `cost_of`: the time, and the bytes during each entry of the run (one for an empty run)."""
    steps = list(forms(instance, run, again=again))
    dies = _deaths(instance, steps, keep)
    size = instance.size_A
    live = {a: size[a] for a in dies[-1] if a in alive}
    total = sum(live.values())
    during: list[int] = []
    time_ns = 0
    for form, dead in zip(steps, dies, strict=False):
        c, first = form
        time_ns += instance.time_C[c] if first else instance.retime_C[c]
        workspace = instance.workspace_C[c] if first else instance.reworkspace_C[c]
        writes = list(_effects(instance, form)[1])
        if first and instance.token_C[c] in tokens and instance.token_C[c] >= 0:
            writes.append(instance.token_C[c])
        ends = instance.ends_C[c]
        if ends >= 0:  # an accumulate adds in place: no byte but the workspace
            during.append(total + workspace)
            total -= live.pop(ends, 0)
        else:
            during.append(total + workspace + sum(size[a] for a in writes))
        for a in writes:
            if a not in live:
                live[a] = size[a]
                total += size[a]
        for a in dead:
            total -= live.pop(a, 0)
    return time_ns, during or [total]


def _deaths(instance: Instance, steps: Sequence[Form], keep: Collection[int]) -> list[list[int]]:
    """For each step the aNodes whose last use it is; then, as the last entry, those that
    must be alive at the start."""
    wanted = set(keep)
    last_uses: list[list[int]] = []
    for form in reversed(steps):
        reads, writes = _effects(instance, form)
        unread = [a for a in writes if a not in wanted]
        ended = {instance.ends_C[form[0]]}
        last = [a for a in reads if a not in wanted and a not in ended]
        last_uses.append(unread + [a for a in last if a not in unread])
        # A kept aNode that is made again is dropped: its first instance lives on.
        wanted.difference_update(a for a in writes if form[1] or not instance.kept_A[a])
        wanted.update(reads)
    last_uses.reverse()
    last_uses.append(list(wanted))
    return last_uses


@dataclass(frozen=True, slots=True)
class BlockOption:
    """A way to run a stage so that its backward can follow: the forward, what is kept of
    it (tokens included), and the backward with the recomputations it wants."""

    forward: Run
    backward: Run
    kept: frozenset[int]


@dataclass(frozen=True, slots=True)
class Skim:
    """A forward without saving: `peak_bytes` where the input stays (it is counted by
    others), `dropping_bytes`, the input included, where it goes after its last use."""

    time_ns: int
    peak_bytes: int
    dropping_bytes: int
    run: Run = ()


@dataclass(frozen=True, slots=True)
class SavingOption:
    """`hold_bytes`: what lives between forward and backward, the output included.
    `backward.peak_bytes` is all that is there but the input and what earlier stages hold."""

    first: StageRun
    again: StageRun
    last: StageRun
    backward: StageRun
    hold_bytes: int


@dataclass(frozen=True, slots=True)
class Stage:
    """`held_first`: permanent bytes when the stage runs for the first time. `held_again`:
    permanent bytes and gradients between the backward of the next stage and its own."""

    skim_first: Skim
    skim_again: Skim
    options: tuple[SavingOption, ...]
    cross_bytes: int
    token_bytes: int
    held_first: int
    held_again: int


def save_all(chain: Chain, i: int) -> BlockOption:
    """F^all: everything that the backward of stage i reads is kept."""
    inst = chain.instance
    own = written_by(inst, chain.forward_N[i], again=True)
    read = {a for c in chain.backward_N[i] for a in inst.reads_C[c]}
    return BlockOption(
        chain.forward_N[i], chain.backward_N[i], frozenset((own & read) - chain.permanent)
    )


def stages_of(chain: Chain, options_N: Sequence[Iterable[BlockOption]]) -> list[Stage]:
    """The stages of a chain with these options for each."""
    inst = chain.instance
    size = inst.size_A
    stages: list[Stage] = []
    made_bytes = 0
    until_bytes = [0] * (len(chain) + 1)
    for a, until in chain.until_A.items():
        until_bytes[max(until, 0)] += size[a]
    lasting = 0
    for i, options in enumerate(options_N):
        lasting += until_bytes[i]
        pricer = _StagePricer(chain, i, lasting)
        stages.append(
            Stage(
                pricer.skim(again=False),
                pricer.skim(again=True),
                tuple(pricer.option(o) for o in options),
                pricer.bytes_of(chain.cross_N[i]),
                pricer.bytes_of(pricer.tokens),
                made_bytes,
                lasting + pricer.grad_bytes,
            )
        )
        made_bytes += pricer.bytes_of(pricer.made)
    return stages


class _StagePricer:
    """Prices of one stage; `lasting` are the bytes of permanent aNodes in its backward."""

    def __init__(self, chain: Chain, i: int, lasting: int):
        self.chain, self.i, self.lasting = chain, i, lasting
        self.instance = chain.instance
        forward = chain.forward_N[i]
        self.forward = forward
        self.made = written_by(self.instance, forward, again=False) & chain.permanent
        self.musts = chain.musts & set(forward)
        # A backward cNode never runs twice, so its token is never stored.
        self.tokens = {
            self.instance.token_C[c]
            for c in forward
            if self.instance.token_C[c] >= 0 and self.instance.makable_C[c]
        }
        self.input = chain.cross_N[i - 1] if i else frozenset()
        self.grad_bytes = self.bytes_of(chain.grads_N[i])
        if i == len(chain) - 1:
            self.made |= chain.grads_N[i]
            self.musts |= {self.instance.loss}

    def bytes_of(self, anodes: Iterable[int]) -> int:
        return sum(self.instance.size_A[a] for a in anodes)

    def skim(self, *, again: bool) -> Skim:
        inst, output = self.instance, self.chain.cross_N[self.i]
        run = self._part(self.forward, output, again=again)
        keep = set(output)
        if not again:
            keep |= self.made | self.tokens
        kept = cost_of(inst, run, (), keep, again=again, tokens=self.tokens)
        dropped = cost_of(inst, run, self.input, keep, again=again, tokens=self.tokens)
        return Skim(kept.time_ns, kept.peak_bytes, dropped.peak_bytes, run)

    def _part(self, run: Run, wanted: Iterable[int], *, again: bool) -> Run:
        given = self.chain.permanent if again else ()
        must = () if again else self.musts
        return needed_part(self.instance, run, set(wanted), given, again=again, must=must)

    def option(self, option: BlockOption) -> SavingOption:
        inst = self.instance
        output = self.chain.cross_N[self.i]
        held = option.kept | output
        # Gradients that this backward does not touch only pass by.
        given, left = self._touched_grads()
        passing = self.grad_bytes - self.bytes_of(given)
        back = cost_of(inst, option.backward, option.kept | given, left, again=True)
        return SavingOption(
            self._way(option.forward, held, again=False),
            self._way(option.forward, held, again=True),
            self._way(option.forward, option.kept, again=True),
            StageRun(back.time_ns, self.lasting + passing + back.peak_bytes, option.backward),
            self.bytes_of(held),
        )

    def _touched_grads(self) -> tuple[set[int], set[int]]:
        """Among the reads and writes of the backward: the gradients that are alive at its start,
        and those that are at its end."""
        inst, chain, i = self.instance, self.chain, self.i
        run = chain.backward_N[i]
        touched = {a for c in run for a in (*inst.reads_C[c], *inst.writes_C[c])}
        if i:
            return touched & chain.grads_N[i], touched & chain.grads_N[i - 1]
        return touched & chain.grads_N[i], {a for a in touched if inst.kept_A[a]}

    def _way(self, run: Run, keep: frozenset[int], *, again: bool) -> StageRun:
        part = self._part(run, keep, again=again)
        stays = keep if again else keep | self.made
        return cost_of(self.instance, part, (), stays, again=again, tokens=keep)
