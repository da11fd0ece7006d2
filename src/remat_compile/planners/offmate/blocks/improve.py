"""Makes a plan for whole tensors faster, where the clock says that the device stands still.

Tries, the longest stall first, each kept if the turn gets faster and all fits:

* what leaves stays a step longer, or does not leave, so that its copy overlaps the next step;
* what comes back begins a step earlier (one that waits for the CPU: later);
* the CPU updates in the order in which tensors come back (earliest deadline first);
* a tensor that the CPU is late with is updated by the device, one that stalls behind it by the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from heapq import heappop, heappush
from time import monotonic

from .clock import Cause, Timing, timing_of
from .comparators import fits
from .courses import Course, Stay, StepPlan, bytes_T, course_faults, faults
from .instance import StepInstance

_MOST_TRIES = 1500
_MOST_IDLE = 60


def improved(instance: StepInstance, plan: StepPlan, deadline: float) -> tuple[StepPlan, Timing]:
    """The plan that hill climbing from this one ends at, with its timing; by the deadline."""
    best, timing = plan, timing_of(instance, plan)
    tries = _MOST_TRIES
    while tries > 0:
        before = timing.time_ns
        for k, other in enumerate(_neighbours(instance, best, timing)):
            tries -= 1
            if tries <= 0 or k > _MOST_IDLE or monotonic() > deadline:
                return best, timing
            if faults(instance, other) or not fits(instance, other):
                continue
            found = timing_of(instance, other)
            if found.time_ns < timing.time_ns:
                best, timing = other, found
                break
        if timing.time_ns >= before:
            break
    return best, timing


def shrunk(instance: StepInstance, plan: StepPlan) -> StepPlan:
    """With more away, as long as steps hold too much: in the fullest step the tensor that is enough
    with the fewest bytes, else the largest one, what comes back early before what else is there."""
    for _ in range(_MOST_TRIES):
        held = bytes_T(instance, plan)
        over = max(held) - instance.memory_bytes
        if over <= 0:
            break
        t = held.index(max(held))
        ways = [(n, size, k, course) for k, old in enumerate(plan.courses)
                for n, size, course in _leaner(instance, old, t)]  # fmt: skip
        if not ways:
            break
        _, _, k, course = min(
            ways, key=lambda way: (way[0], way[1] < over, abs(way[1] - over), way[2])
        )
        courses = [*plan.courses]
        courses[k] = course
        plan = replace(plan, courses=tuple(courses))
    return plan


def _leaner(inst: StepInstance, course: Course, t: int) -> Iterator[tuple[int, int, Course]]:
    """The course with nothing of its parameter or of its states in step t: first where a copy back
    can begin later, then where something can go."""
    group, count = inst.groups[course.group], inst.steps
    last = group.last_grad(inst.blocks)
    states = round(inst.rates.states * course.tensor.grad_bytes)
    kinds = [("weight", course.weight, group.uses(inst.blocks), course.tensor.size_bytes)]
    if course.updated is None and states:
        kinds.append(("states", course.states, frozenset({last}), states))
    for kind, stay, uses, size in kinds:
        if t in uses or t in stay.absent:
            continue
        absent = stay.absent | {t}
        sent = stay.sent
        if t not in stay.fetched:
            if course.tensor.grad_bytes and (kind == "states" or course.updated is None):
                first = min((n - last) % count for n in absent)
                sent = last if sent is None or (sent - last) % count >= first else sent
            after = (t + 1) % count
            while after not in uses and after not in absent:
                absent |= {after}
                after = (after + 1) % count
        fetched = frozenset((n + 1) % count for n in absent if (n + 1) % count not in absent)
        other = Stay(absent, fetched, sent)
        is_states = kind == "states"
        leaner = replace(course, states=other) if is_states else replace(course, weight=other)
        if not list(course_faults(inst, leaner)):
            yield int(t not in stay.fetched), size, leaner


def _neighbours(inst: StepInstance, plan: StepPlan, timing: Timing) -> Iterator[StepPlan]:
    yield in_order_of_return(inst, plan, timing.starts_T)
    for cause, _ in sorted(timing.stalls_ns.items(), key=lambda item: (-item[1], item[0])):
        _, _, (kind, k) = cause
        if kind != "act":
            for course in _other_courses(inst, plan.courses[k], cause):
                courses = [*plan.courses]
                courses[k] = course
                yield replace(plan, courses=tuple(courses))


def _other_courses(inst: StepInstance, course: Course, cause: Cause) -> Iterator[Course]:
    t, why, (kind, _) = cause
    count = inst.steps
    group = inst.groups[course.group]
    last = group.last_grad(inst.blocks)
    if kind == "grad":
        if course.grad_sent is not None:
            yield replace(course, grad_sent=(course.grad_sent + 1) % count)
        yield _on_device(course)
        return
    stay = course.states if kind == "states" else course.weight
    others: list[Stay] = []
    if why == "d2h":
        others = [_staying(stay, t, count), _without_gap(stay, t, count)]
    elif why == "h2d":
        others = [_fetched_earlier(stay, t, count)]
    else:
        others = [_fetched_later(stay, t, count)]
        yield _on_device(course)
    for other in others:
        if not other.absent:
            other = Stay()
        yield replace(course, states=other) if kind == "states" else replace(course, weight=other)
    between = list(group.between(inst.blocks))
    if why == "d2h" and course.updated is None and inst.cpu_updates and between:
        yield _on_cpu(course, last, between, count)


def _staying(stay: Stay, t: int, count: int) -> Stay:
    """A step longer on the device."""
    after = (t + 1) % count
    if after not in stay.absent:
        return _without_gap(stay, t, count)
    return replace(stay, absent=stay.absent - {t})


def _without_gap(stay: Stay, t: int, count: int) -> Stay:
    """On the device all through the absence that begins at t."""
    absent, end = set(stay.absent), t
    while end in absent:
        absent.discard(end)
        end = (end + 1) % count
    return replace(stay, absent=frozenset(absent), fetched=stay.fetched - {end})


def _fetched_earlier(stay: Stay, t: int, count: int) -> Stay:
    """The copy back whose end step t waits for begins a step earlier."""
    fetch = t
    for _ in range(count):
        fetch = (fetch - 1) % count
        if fetch in stay.fetched:
            break
    before = (fetch - 1) % count
    absent = stay.absent - {before}
    fetched = stay.fetched - {fetch}
    if (before - 1) % count in stay.absent:
        fetched |= {before}
    return replace(stay, absent=absent, fetched=fetched)


def _fetched_later(stay: Stay, t: int, count: int) -> Stay:
    after = (t + 1) % count
    return replace(stay, absent=stay.absent | {t}, fetched=(stay.fetched - {t}) | {after})


def _on_device(course: Course) -> Course:
    """Updated by the device, with nothing of it leaving on the way to its first use."""
    if course.updated is None:
        return course
    return Course(course.group, course.tensor)


def _on_cpu(course: Course, last: int, between: list[int], count: int) -> Course:
    """Updated by the CPU, and back just before the first use; elsewhere as it was."""
    rest = course.weight.absent - set(between)
    absent = rest | set(between[: max(1, len(between) - 1)])
    fetched = frozenset((t + 1) % count for t in absent if (t + 1) % count not in absent)
    weight = Stay(frozenset(absent), fetched)
    return Course(course.group, course.tensor, weight, grad_sent=last, updated=between[0])


def in_order_of_return(inst: StepInstance, plan: StepPlan, starts_T: list[int]) -> StepPlan:
    """The CPU takes of the gradients that have come the one whose tensor comes back first, and a
    tensor comes back no earlier than it is ready, where there is a later step for that."""
    count, half = inst.steps, inst.blocks
    turn = [(half + n) % count for n in range(count)]
    place = {t: n for n, t in enumerate(turn)}
    total = starts_T[half]
    begins = [(starts_T[t] - total) if t >= half else 0 for t in turn]
    length = max(begins, default=0)
    for n in range(count - half, count):
        begins[n] = length + starts_T[turn[n]]
    jobs = sorted(
        (place[c.grad_sent] + 1, k) for k, c in enumerate(plan.courses) if c.grad_sent is not None
    )
    courses = list(plan.courses)
    waiting: list[tuple[int, int]] = []
    now = 0.0
    n = 0
    while n < count and (jobs or waiting):
        now = max(now, begins[n])
        while jobs and jobs[0][0] <= n:
            _, k = jobs.pop(0)
            heappush(waiting, (_first_fetch(inst, courses[k], place), k))
        if waiting and (n + 1 == count or now < begins[n + 1]):
            _, k = heappop(waiting)
            now += inst.rates.cpu_ns(courses[k].tensor.grad_bytes)
            courses[k] = _moved_update(inst, courses[k], turn, n, begins, now)
        else:
            n += 1
    return replace(plan, courses=tuple(courses))


def _first_fetch(inst: StepInstance, course: Course, place: dict[int, int]) -> int:
    between = list(inst.groups[course.group].between(inst.blocks))
    first = inst.groups[course.group].first
    return min(place[t] for t in (*between, first) if t in course.weight.fetched)


def _moved_update(
    inst: StepInstance, course: Course, turn: list[int], n: int, begins: list[int], end: float
) -> Course:
    between = list(inst.groups[course.group].between(inst.blocks))
    place = {t: m for m, t in enumerate(turn)}
    fetch = turn[_first_fetch(inst, course, place)]
    latest = place[inst.groups[course.group].first]
    ready = next((m for m in range(n + 1, latest) if begins[m] >= end), latest)
    wanted = max(place[fetch], ready)
    if n >= latest or turn[n] not in between:
        return course
    absent = course.weight.absent | {turn[m] for m in range(place[fetch], wanted)}
    fetched = (course.weight.fetched - {fetch}) | {turn[wanted]}
    weight = replace(course.weight, absent=absent, fetched=fetched)
    return replace(course, weight=weight, updated=turn[n])
