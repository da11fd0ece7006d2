"""Runs of cNodes inside a block: what they need, and the bytes they take on the spot.

A run is a list of cNode indices. Forward cNodes run in their first form or in their form
for a replay; backward cNodes run once, in their first form.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..instance import Instance

__all__ = ["Cost", "cost_of", "forms", "needed_at_start", "needed_part", "written_by"]

Form = tuple[int, bool]
"""A cNode and whether it runs for the first time."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Nanoseconds of a run, and its peak bytes."""

    time_ns: int
    peak_bytes: int


def forms(instance: Instance, run: Iterable[int], *, again: bool) -> Iterator[Form]:
    """The cNodes of a run with their forms; with `again` the forward has run before."""
    seen: set[int] = set()
    for c in run:
        yield c, c not in seen and not (again and instance.phase_C[c] == "fwd")
        seen.add(c)


def _effects(instance: Instance, form: Form) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What a form reads and writes, tokens left out."""
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
) -> Cost:
    """Time and memory of a run that frees after last use.

    `alive` counts from the start; of it and of what the run writes, `keep` stays to the end.
    Whatever else is read is somewhere else's to count. `tokens` are the generator states
    that first executions store.
    """
    steps = list(forms(instance, run, again=again))
    dies = _deaths(instance, steps, keep)
    size = instance.size_A
    live = {a: size[a] for a in dies[-1] if a in alive}
    total = peak = sum(live.values())
    time_ns = 0
    for form, dead in zip(steps, dies, strict=False):
        c, first = form
        time_ns += instance.time_C[c] if first else instance.retime_C[c]
        workspace = instance.workspace_C[c] if first else instance.reworkspace_C[c]
        writes = list(_effects(instance, form)[1])
        if first and instance.token_C[c] in tokens and instance.token_C[c] >= 0:
            writes.append(instance.token_C[c])
        ends = instance.ends_C[c]
        if ends >= 0:
            peak = max(peak, total + workspace)
            total -= live.pop(ends, 0)
        else:
            peak = max(peak, total + workspace + sum(size[a] for a in writes))
        for a in writes:
            if a not in live:
                live[a] = size[a]
                total += size[a]
        for a in dead:
            total -= live.pop(a, 0)
    return Cost(time_ns, peak)


def _deaths(instance: Instance, steps: Sequence[Form], keep: Collection[int]) -> list[list[int]]:
    """For each step the aNodes whose last use it is; then, as the last entry, those that
    must be alive at the start."""
    wanted = set(keep)
    found: list[list[int]] = []
    for form in reversed(steps):
        reads, writes = _effects(instance, form)
        unread = [a for a in writes if a not in wanted]
        ended = {instance.ends_C[form[0]]}
        last = [a for a in reads if a not in wanted and a not in ended]
        found.append(unread + [a for a in last if a not in unread])
        # A kept aNode that is made again is dropped: its first instance lives on.
        wanted.difference_update(a for a in writes if form[1] or not instance.kept_A[a])
        wanted.update(reads)
    found.reverse()
    found.append(list(wanted))
    return found
