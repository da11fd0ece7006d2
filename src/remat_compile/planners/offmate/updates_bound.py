"""A lower bound on the time of a step with an optimizer, from the moment of its loss.

Beside the rows of `bounds/links.py`, each update has shares in [0, 1]:

    D    runs on the device; else on the host, its gradient leaves and its parameters come
    P    parameters are on the device while the loss runs
    S    states are there; those that the host updates need not be
    A    the device updates parameters that are not there while the loss runs
    H    parameters come from the host at some time

    S <= D;  A >= D - P;  H >= 1 - D;  H >= 1 - P
    sum |w| P + |s| S + activations  <=  budget
    after >= what is left to compute + replays + sum D time on the device
    after >= sum (1 - D) time on the host
    after >= time of the loss + (activations + sum |s| (D - S) + |w| (1 - P)) / h2d
             (of parameters that the backward does not read: |w| A)
    before + after >= (activations + sum |w| A + |s| (D - S) + |g| (1 - D)) / d2h
    before + after >= (activations + sum |w| H + |s| (D - S)) / h2d

A parameter or a state has another value after each step. If the device makes that and the old or
the new one is away at some time, one leaves and one comes back. Updates begin behind the loss.
The relaxation is solved. It holds for first executions in the order of capture.
"""

from __future__ import annotations

from math import ceil, isfinite

from ..bounds.links import LinkRows, moving
from ..instance import Instance
from ..solvers import Milp, MilpSolver
from ..solvers.milp import Terms
from .updates_place import UpdateOrder


def least_time_ns(
    view: UpdateOrder, base: Instance, limit_bytes: int, solver: MilpSolver, limit_s: float
) -> int:
    """Nanoseconds that no plan under the budget takes less than. `base` is of the program without
    the times of updates."""
    rows = _UpdateRows(view, base, limit_bytes - view.fixed_bytes)
    solved = solver.solve(rows.whole().relaxed(), limit_s)
    least = solved.bound * rows.unit_ns if isfinite(solved.bound) else 0.0
    return max(base.base_time_ns, ceil(least * (1 - 1e-6)))


class _UpdateRows(LinkRows):
    def __init__(self, view: UpdateOrder, base: Instance, room: int):
        super().__init__(base, view.program.target, room, base.loss)
        self.view = view
        self.columns = [self._of_update(k) for k in range(len(view.updates))]

    def _sizes(self, k: int) -> tuple[int, int, int]:
        update, view = self.view.updates[k], self.view
        size, states, grads = map(view.bytes_of, (update.params, update.states, update.grads))
        return size, states, grads

    def _of_update(self, k: int) -> tuple[int, ...]:
        """The columns D, P, S, A, H."""
        d, p, s, a, h = made = tuple(self.b.column() for _ in range(5))
        size, states, _ = self._sizes(k)
        self.beside += [(p, size), (s, states)]
        self.b.row([(d, 1.0), (s, -1.0)], lower=0.0)
        self.b.row([(a, 1.0), (p, 1.0), (d, -1.0)], lower=0.0)
        self.b.row([(h, 1.0), (d, 1.0)], lower=1.0)
        self.b.row([(h, 1.0), (p, 1.0)], lower=1.0)
        return made

    def whole(self) -> Milp:
        super().whole()
        inst, target, step = self.inst, self.target, [(self.before_ns, 1.0), (self.after_ns, 1.0)]
        on_device, on_host = Terms(), Terms()
        back, out, late = Terms(), Terms(), Terms()
        for k, (d, p, s, a, h) in enumerate(self.columns):
            update, (size, states, grads) = self.view.updates[k], self._sizes(k)
            on_device.append((d, float(update.cnode.time_ns or 0)))
            on_host.append((d, float(update.cnode.host_time_ns or 0)))
            back += [(h, size), (d, states), (s, -states)]
            out += [(a, size), (d, states - grads), (s, -states)]
            late += [(d, states), (s, -states)]
            for name in update.params:
                is_read = any(i > self.view.loss for i in update.uses[name])
                late.append((p, -self.view.size[name]) if is_read else (a, self.view.size[name]))
        read_late = sum(
            self.view.size[name]
            for u in self.view.updates
            for name in u.params
            if any(i > self.view.loss for i in u.uses[name])
        )
        all_grads = sum(self._sizes(k)[2] for k in range(len(self.columns)))
        all_host = sum(u.cnode.host_time_ns or 0 for u in self.view.updates)
        done = sum(inst.time_C[: self.k])
        after = [(self.after_ns, 1.0)]
        self._least([*after, *self.replays()], on_device, 1.0, inst.base_time_ns - done)
        self._least(after, on_host, -1.0, all_host)
        h2d, d2h = (moving(rate, 1.0) for rate in (target.h2d_bytes_per_s, target.d2h_bytes_per_s))
        acts_back, acts_out = (
            self.copies(r) for r in (target.h2d_bytes_per_s, target.d2h_bytes_per_s)
        )
        own = inst.time_C[self.k]
        self._least([*after, *acts_back], late, h2d, own + read_late * h2d)
        self._least([*step, *acts_back], back, h2d, 0.0)
        self._least([*step, *acts_out], out, d2h, all_grads * d2h)
        return self.b.build()

    def _least(self, left: Terms, terms: Terms, factor: float, fixed_ns: float) -> None:
        """`left` >= the terms times the factor, and what is fixed, in nanoseconds."""
        merged: dict[int, float] = {}
        for column, value in terms:
            merged[column] = merged.get(column, 0.0) - value * factor / self.unit_ns
        self.b.row([*left, *merged.items()], lower=fixed_ns / self.unit_ns)
