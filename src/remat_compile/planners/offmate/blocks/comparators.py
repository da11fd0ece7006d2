"""Plans of other systems on the same instance.

All recompute or keep by the same rule: of the plans with the first j blocks recomputed, the
fastest that fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .courses import Course, Stay, StepPlan, absences, bytes_T, gap_after, host_bytes, tensors_of
from .instance import Group, StepInstance, Tensor

Comparator = Callable[[StepInstance], "StepPlan | None"]


def zero_offload(instance: StepInstance) -> StepPlan | None:
    """ZeRO-Offload: parameters on the device, all states on the host, all updates on the CPU. A
    gradient leaves as soon as it is made. Of a tensor that is used too soon after its gradient for
    that, the device updates it."""
    return _fastest(instance, lambda w, tensor: _by_cpu(instance, w, tensor, lazy=False))


def zero_infinity(instance: StepInstance) -> StepPlan | None:
    """ZeRO-Infinity: as ZeRO-Offload, and a block's parameters are on the device only while it
    runs, and in the step before."""
    return _fastest(instance, lambda w, tensor: _by_cpu(instance, w, tensor, lazy=True))


def paged_states(instance: StepInstance) -> StepPlan | None:
    """Paged optimizers: states come to the device for the update, and leave after it."""

    def course(w: int, tensor: Tensor) -> Course:
        return Course(w, tensor, states=_paged(instance, instance.groups[w]))

    return _fastest(instance, course)


def all_on_device(instance: StepInstance) -> StepPlan | None:
    """Everything stays on the device."""
    return _fastest(instance, Course)


COMPARATORS: dict[str, Comparator] = {
    "zero-offload": zero_offload,
    "zero-infinity": zero_infinity,
    "paged-states": paged_states,
    "on-device": all_on_device,
}


def _paged(inst: StepInstance, group: Group) -> Stay:
    last, count = group.last_grad(inst.blocks), inst.steps
    steps = [(last + n) % count for n in range(1, count)]
    stay = absences(steps, 0, len(steps) - 1)
    return Stay(stay.absent, stay.fetched, last) if stay.absent else stay


def _by_cpu(inst: StepInstance, w: int, tensor: Tensor, *, lazy: bool) -> Course:
    group = inst.groups[w]
    last = group.last_grad(inst.blocks)
    between = list(group.between(inst.blocks))
    on_cpu = inst.cpu_updates and tensor.grad_bytes > 0 and len(between) >= 2
    absent: set[int] = set()
    fetched: set[int] = set()
    if on_cpu:
        stay = absences(between, 0, len(between) - 1 if lazy else 1)
        absent, fetched = set(stay.absent), set(stay.fetched)
    for use in group.uses(inst.blocks) if lazy else ():
        gap = gap_after(group, inst.blocks, use)
        if use == last and (on_cpu or len(gap) < 2):
            continue
        stay = absences(gap, 0, len(gap) - 1)
        absent |= stay.absent
        fetched |= stay.fetched
    if on_cpu:
        weight = Stay(frozenset(absent), frozenset(fetched))
        return Course(w, tensor, weight, grad_sent=last, updated=between[0])
    sent = last if absent and tensor.grad_bytes else None
    weight = Stay(frozenset(absent), frozenset(fetched), sent)
    return Course(w, tensor, weight, _paged(inst, group) if tensor.grad_bytes else Stay())


def _option_rows(instance: StepInstance) -> Iterator[tuple[int, ...]]:
    """The first j blocks recompute, the others keep, for all j."""

    def of(name: str, i: int) -> int:
        names = [option.name for option in instance.options_L[i]]
        return names.index(name) if name in names else 0

    for j in range(instance.blocks + 1):
        yield tuple(of("recompute" if i < j else "keep", i) for i in range(instance.blocks))


def _fastest(instance: StepInstance, course: Callable[[int, Tensor], Course]) -> StepPlan | None:
    courses = tuple(course(w, tensor) for w, tensor in tensors_of(instance))
    for options in _option_rows(instance):
        plan = StepPlan(options, courses)
        if fits(instance, plan):
            return plan
    return None


def fits(instance: StepInstance, plan: StepPlan) -> bool:
    """True within both memories."""
    host = instance.target.host_bytes
    within = max(bytes_T(instance, plan)) <= instance.memory_bytes
    return within and (host is None or host_bytes(instance, plan) <= host)
