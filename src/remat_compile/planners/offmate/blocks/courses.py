"""A plan for whole tensors, step by step: its bytes, and the rules that it breaks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .instance import Group, StepInstance, Tensor


@dataclass(frozen=True, slots=True)
class Stay:
    """Bytes that leave the device: in the steps `absent` none of them is there. In `fetched` steps
    a copy back begins, which counts from then on; a use in that step waits for it. `sent` is the
    step in which the copy to the host begins; None where the host has it, or nothing leaves."""

    absent: frozenset[int] = frozenset()
    fetched: frozenset[int] = frozenset()
    sent: int | None = None


@dataclass(frozen=True, slots=True)
class Course:
    """One tensor. With `updated`, the step in which the CPU updates it, `grad_sent` is that in
    which its gradient leaves, and its states are on the host for good."""

    group: int
    tensor: Tensor
    weight: Stay = Stay()
    states: Stay = Stay()
    grad_sent: int | None = None
    updated: int | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The option of each block, and the course of each tensor."""

    options: tuple[int, ...]
    courses: tuple[Course, ...]


def bytes_T(instance: StepInstance, plan: StepPlan) -> list[int]:
    """Bytes on the device in each step."""
    inst = instance
    held = list(inst.interface_T)
    for t in range(inst.steps):
        now = inst.block(t)
        for i in range(now + 1):
            option = inst.options_L[i][plan.options[i]]
            own = option.forward_bytes if t < inst.blocks else option.backward_bytes
            held[t] += own if i == now else option.saved_bytes
        if inst.blocks - 1 <= t < inst.steps - 1:
            after = inst.block(t + 1)
            held[t] += inst.options_L[after][plan.options[after]].sent_bytes
    for course in plan.courses:
        for t, size in _held(inst, course):
            held[t] += size
    return held


def _held(inst: StepInstance, course: Course) -> Iterator[tuple[int, int]]:
    group, tensor = inst.groups[course.group], course.tensor
    last = group.last_grad(inst.blocks)
    states = round(inst.rates.states * tensor.grad_bytes) if course.updated is None else 0
    for t in range(inst.steps):
        if t not in course.weight.absent:
            yield t, tensor.size_bytes
        if states and t not in course.states.absent:
            yield t, states
        if 2 * inst.blocks - 1 - group.blocks[-1] <= t <= last:
            yield t, tensor.grad_bytes
    if course.grad_sent is not None:
        for n in range(1, (course.grad_sent - last) % inst.steps + 1):
            yield (last + n) % inst.steps, tensor.grad_bytes


def host_bytes(instance: StepInstance, plan: StepPlan) -> int:
    """Bytes of the host's buffers, which are kept (Zhao 2024, (4.18)): all parameters, what blocks
    send, states that are there at some time, gradients for the CPU."""
    total = sum(
        options[k].sent_bytes for options, k in zip(instance.options_L, plan.options, strict=True)
    )
    for course in plan.courses:
        tensor, states = course.tensor, round(instance.rates.states * course.tensor.grad_bytes)
        total += tensor.size_bytes
        if course.updated is not None:
            total += states + tensor.grad_bytes
        elif course.states.absent:
            total += states
    return total


def faults(instance: StepInstance, plan: StepPlan) -> list[str]:
    """The faults of a plan, which no step can do: none where it is right."""
    return [fault for course in plan.courses for fault in course_faults(instance, course)]


def course_faults(inst: StepInstance, course: Course) -> Iterator[str]:
    """The faults of one tensor's course."""
    group, name = inst.groups[course.group], course.tensor.name
    last, count = group.last_grad(inst.blocks), inst.steps
    between = list(group.between(inst.blocks))
    yield from _stay_faults(name, course.weight, group.uses(inst.blocks), count)
    if course.updated is None:
        yield from _stay_faults(f"states of {name}", course.states, frozenset({last}), count)
        trained = course.tensor.grad_bytes > 0
        for what, stay in ((name, course.weight), (f"states of {name}", course.states)):
            since = _since(last, count, stay.absent)
            if trained and since and (stay.sent is None or since[0] <= (stay.sent - last) % count):
                yield f"{what} is dropped before the host has it"
        return
    if course.grad_sent is None or course.grad_sent not in (last, *between):
        yield f"the gradient of {name} is not sent after its last writer"
        return
    turn = [last, *between, group.first]
    sent = turn.index(course.grad_sent)
    if course.updated not in between or turn.index(course.updated) <= sent:
        yield f"{name} is updated before its gradient is there"
        return
    updated = turn.index(course.updated)
    fetched = [n for n, t in enumerate(turn) if n and t in course.weight.fetched]
    if not set(turn[1 : updated + 1]) <= course.weight.absent or not fetched:
        yield f"{name} is on the device while the CPU updates it"
    elif fetched[0] <= updated:
        yield f"{name} comes back before it is updated"


def _since(last: int, count: int, steps: frozenset[int]) -> list[int]:
    """Steps, counted from the last gradient."""
    return sorted((t - last) % count for t in steps)


def _stay_faults(name: str, stay: Stay, uses: frozenset[int], count: int) -> Iterator[str]:
    if stay.absent & uses:
        yield f"{name} is absent where it is used"
    if stay.absent & stay.fetched:
        yield f"{name} comes back while it is absent"
    returns = {(t + 1) % count for t in stay.absent} - stay.absent
    if returns != stay.fetched:
        yield f"{name} does not come back where its absence ends"


def tensors_of(instance: StepInstance) -> Iterator[tuple[int, Tensor]]:
    for w, group in enumerate(instance.groups):
        for tensor in group.tensors:
            yield w, tensor


def absences(steps: list[int], begin: int, end: int) -> Stay:
    """Absent from place `begin` of some steps in a row to before place `end`, where it comes
    back."""
    if begin >= end:
        return Stay()
    return Stay(frozenset(steps[begin:end]), frozenset({steps[end]}))


def gap_after(group: Group, blocks: int, use: int) -> list[int]:
    """The steps after a use to before the next one, through the turn."""
    count, gap = 2 * blocks, []
    t = (use + 1) % count
    while t not in group.uses(blocks):
        gap.append(t)
        t = (t + 1) % count
    return gap
