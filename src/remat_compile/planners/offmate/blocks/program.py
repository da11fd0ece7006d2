"""O-ILP: which option each block has, and where each part of each group is in each step.

Zhao 2024, section 4.5, re-derived; what differs from print is in docs/notes/offmate.md. Fractions
in [0, 1] of group w in step t, sums over steps run through the turn (after 2 L - 1 comes 0):

    Sto, StoO    valid and on the device: parameter, states of what the device updates
    Prf, PrfO    on the way to the device; there from the next step on, or in time for the step's
                 own use, which waits: parameters before the computation, states before the update
    Ofl, OflO    on the way to the host, as the device updated it
    OflG         gradient on the way to the host, of what the CPU updates
    Opt          updated by the CPU;  X_w = sum of Opt

    Sto = 1                                              where w is used             (4.5)
    StoO[g] >= 1 - X                                                                 (4.6)
    Sto[t]  + sum Ofl[g..t-1]  >= |w|_g/|w| (1 - X)      or the host's is old        (4.7)
    StoO[t] + sum OflO[g..t-1] >= 1 - X                                              (4.8)
    Sto[t+1] <= Sto[t] + Prf[t] (+ Prf[t+1] where used);  StoO alike            (4.9, 4.10)
    sum Opt[..t] <= sum OflG[g..t-1];  sum OflG = X      a gradient goes first       (4.12)
    |w| (Sto[t] + Prf[t]) + |w|_g (X - sum Opt[..t-1]) <= |w|   after g; at f no Prf (4.13)

    device: sum |w| (Sto + Prf) + k |w|_g (StoO + PrfO), Prf where not used,
            + |w|_g (X - sum OflG[g..t-1]) + gradients being made + interface
            + saved + the option's own <= M                                          (4.17)
    host:   sum |w| + O Comp + |w|_g sum (k OflO + (k+1) Opt) <= M_CPU               (4.18)

    Time >= sum Comp T + |w| Prf / h2d where used                                    (4.19)
    and for g_w = t, with L = (|w| Ofl + k |w|_g OflO) / d2h:                        (4.20)
    Time >= sum Comp T + (1 - X) |w|_g / a_G + L;  >= sum Comp T + |w|_g OflG / d2h + L
    Time >= k |w|_g PrfO / h2d + (1 - X) |w|_g / a_G + L
    Time >= bytes / h2d;  >= bytes / d2h;  >= all / both;  >= H + |w|_g Opt / a_C    (4.21-4.23)

(4.11) follows: Sto[g+1] <= 1 - |w|_g/|w| X, and at f all of w is there. With `lag` a copy,
the update behind it and the copy back take a step each, so that steps with barriers between them
take `Time`. Without it (sums up to t, no H) the program is relaxed, and what it answers is a lower
bound for every plan that takes and gives back bytes between steps, however its copies run on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ...solvers import Milp, MilpBuilder
from ...solvers.milp import INFINITY, Terms, Vector, merged
from .instance import Group, StepInstance

_TRANSFER_PRICE = 0.01
"""The price of a second of copies in seconds of the step: of plans as fast, the one with fewer."""
KINDS = ("Sto", "Prf", "Ofl", "OflG", "Opt", "StoO", "PrfO", "OflO")


@dataclass(frozen=True)
class Fractions:
    """A point of the program: arrays [group, step] by the names above, the option of each block,
    and the nanoseconds of the steps together."""

    of: dict[str, Vector]
    options: tuple[int, ...]
    time_ns: float


class StepProgram:
    """The rows for an instance. `lag`: see above. `whole`: groups are moved as a whole. `priced`:
    copies cost a little. `in_time`: what comes back may do so in the step that uses it. `less_T`:
    bytes of the budget to leave in a step. Index legend: columns `x[kind][w][t]`."""

    def __init__(
        self,
        instance: StepInstance,
        *,
        lag: bool = True,
        whole: bool = False,
        priced: bool = True,
        in_time: bool = True,
        less_T: Sequence[int] = (),
    ):
        self.instance, self.lag, self.whole, self.in_time = instance, lag, whole, in_time
        self.less_T = less_T or [0] * instance.steps
        self.builder = MilpBuilder()
        self.steps = range(instance.steps)
        self.unit_ns = max(1.0, instance.unlimited_ns / instance.steps)
        self.price = _TRANSFER_PRICE if priced else 0.0
        self.x = {kind: [self._columns(kind, g) for g in instance.groups] for kind in KINDS}
        self.comp = [[self.builder.column() for _ in options] for options in instance.options_L]
        self.time = [
            self.builder.column(cost=1.0, upper=INFINITY, integer=False) for _ in self.steps
        ]
        for columns in self.comp:
            self.builder.row([(c, 1.0) for c in columns], 1.0, 1.0)
        for w in range(len(instance.groups)):
            self._group(w)
        self._memory()
        self._times()

    def build(self) -> Milp:
        return self.builder.build()

    # Columns

    def _columns(self, kind: str, group: Group) -> list[int]:
        inst = self.instance
        used, last = group.uses(inst.blocks), group.last_grad(inst.blocks)
        trained = group.grad_bytes > 0
        states = trained and inst.rates.states > 0
        between = list(group.between(inst.blocks))
        open_T: dict[str, set[int]] = {
            "Sto": set(self.steps),
            "Prf": set(self.steps) if self.in_time else set(self.steps) - used,
            "Ofl": set(self.steps) if trained else set(),
            "OflG": {last, *between} if trained and inst.cpu_updates else set(),
            "Opt": set(between) if trained and inst.cpu_updates else set(),
            "StoO": set(self.steps) if states else set(),
            "PrfO": (set(self.steps) if self.in_time else set(self.steps) - {last})
            if states
            else set(),
            "OflO": set(self.steps) if states else set(),
        }
        if not self.lag and open_T["OflG"]:
            open_T["Opt"] = {last, *between, group.first}
        if not inst.through_turn:
            behind = set(range(last, inst.steps))
            for name in ("Ofl", "OflG", "Opt", "OflO"):
                open_T[name] &= behind
            open_T["Prf"] -= behind - used
            open_T["PrfO"] -= behind - {last}
        return [
            self.builder.column(
                lower=float(kind == "Sto" and t in used),
                upper=float(t in open_T[kind]),
                integer=self.whole,
            )
            for t in self.steps
        ]

    def _sum(self, kind: str, w: int, begin: int, end: int, value: float = 1.0) -> Terms:
        """`value` times the sum over the steps from begin to before end, through the turn; all of
        it where they are the same."""
        count = len(self.steps)
        x = self.x[kind][w]
        return [(x[(begin + n) % count], value) for n in range((end - begin - 1) % count + 1)]

    def _all(self, kind: str, w: int, value: float = 1.0) -> Terms:
        return [(c, value) for c in self.x[kind][w]]

    def _group(self, w: int) -> None:
        inst, row = self.instance, self.builder.row
        group = inst.groups[w]
        count, last = inst.steps, group.last_grad(inst.blocks)
        share = group.grad_bytes / group.size_bytes
        sto, prf, stoo, prfo = (self.x[kind][w] for kind in ("Sto", "Prf", "StoO", "PrfO"))
        cpu = self._all("Opt", w)
        for t in self.steps:
            after = (t + 1) % count
            own = [(prf[after], -1.0)] if after in group.uses(inst.blocks) else []
            row([(sto[after], 1.0), (sto[t], -1.0), (prf[t], -1.0), *own], upper=0.0)
            if t != last and share:
                sent = self._sum("Ofl", w, last, t)
                row([(sto[t], 1.0), *sent, *_times(cpu, share)], lower=share)
        home = not inst.through_turn and group.first > 0
        for t in self.steps[1:] if home else ():
            row([(sto[t], 1.0), (sto[0], -1.0)], lower=0.0)
            row([(stoo[t], 1.0), (stoo[0], -1.0)], lower=0.0)
        if not share:
            return
        row([*self._all("OflG", w), *_times(cpu, -1.0)], 0.0, 0.0)
        row([(sto[(last + 1) % count], 1.0), *_times(cpu, share)], upper=1.0)
        between = list(group.between(inst.blocks))
        for t in (*between, group.first):
            done = t + (not self.lag)
            row(
                [*self._sum("Opt", w, last, t + 1), *self._sum("OflG", w, last, done, -1.0)],
                upper=0,
            )
            pending = [*_times(cpu, share), *self._sum("Opt", w, last, done, -share)]
            coming = [(prf[t], 1.0)] if t != group.first else []
            row(merged([(sto[t], 1.0), *coming, *pending]), upper=1.0)
        if not self.lag:
            row([(self.x["Opt"][w][last], 1.0), (self.x["OflG"][w][last], -1.0)], upper=0.0)
        if not inst.rates.states:
            return
        for t in self.steps:
            after = (t + 1) % count
            own = [(prfo[after], -1.0)] if after == last else []
            row([(stoo[after], 1.0), (stoo[t], -1.0), (prfo[t], -1.0), *own], upper=0.0)
            sent = self._sum("OflO", w, last, t) if t != last else []
            row([(stoo[t], 1.0), *sent, *cpu], lower=1.0)

    # Resources

    def _bytes(self, w: int) -> tuple[int, int, float]:
        """|w|, |w|_g and the bytes of the states of it."""
        group = self.instance.groups[w]
        return group.size_bytes, group.grad_bytes, self.instance.rates.states * group.grad_bytes

    def _memory(self) -> None:
        inst = self.instance
        unit = max(1, *(g.size_bytes for g in inst.groups), *inst.interface_T)
        if inst.target.memory_bytes is not None:
            for t in self.steps:
                terms, fixed = (
                    [*self._moved(t), *self._activations(t)],
                    self._fixed(t) + self.less_T[t],
                )
                room = (inst.memory_bytes - fixed) / unit
                self.builder.row(merged(_times(terms, 1 / unit)), upper=room)
        if inst.target.host_bytes is not None:
            room = (inst.target.host_bytes - sum(g.size_bytes for g in inst.groups)) / unit
            self.builder.row(merged(_times(list(self._on_host()), 1 / unit)), upper=room)

    def _fixed(self, t: int) -> int:
        """Bytes that no decision changes: interface, and gradients that are being made."""
        inst = self.instance
        making = (
            g.grad_bytes
            for g in inst.groups
            if 2 * inst.blocks - 1 - g.blocks[-1] <= t <= g.last_grad(inst.blocks)
        )
        return inst.interface_T[t] + sum(making)

    def _moved(self, t: int) -> Iterator[tuple[int, float]]:
        inst = self.instance
        for w, group in enumerate(inst.groups):
            size, grad, states = self._bytes(w)
            yield self.x["Sto"][w][t], size
            yield self.x["StoO"][w][t], states
            if t not in group.uses(inst.blocks):
                yield self.x["Prf"][w][t], size
            if t != group.last_grad(inst.blocks):
                yield self.x["PrfO"][w][t], states
            if t in group.between(inst.blocks):
                yield from self._all("OflG", w, grad)
                yield from self._sum("OflG", w, group.last_grad(inst.blocks), t, -grad)

    def _activations(self, t: int) -> Iterator[tuple[int, float]]:
        inst = self.instance
        now = inst.block(t)
        for i, options in enumerate(inst.options_L[: now + 1]):
            for column, option in zip(self.comp[i], options, strict=True):
                own = option.forward_bytes if t < inst.blocks else option.backward_bytes
                yield column, float(own if i == now else option.saved_bytes)
        yield from self._coming(t)

    def _coming(self, t: int) -> Iterator[tuple[int, float]]:
        """The bytes that options sent to the host, coming back for the next step's backward."""
        inst = self.instance
        if inst.blocks - 1 <= t < inst.steps - 1:
            i = inst.block(t + 1)
            for column, option in zip(self.comp[i], inst.options_L[i], strict=True):
                yield column, float(option.sent_bytes)

    def _leaving(self, t: int) -> Iterator[tuple[int, float]]:
        inst = self.instance
        if t < inst.blocks:
            for column, option in zip(self.comp[t], inst.options_L[t], strict=True):
                yield column, float(option.sent_bytes)

    def _on_host(self) -> Iterator[tuple[int, float]]:
        for t in self.steps:
            yield from self._leaving(t)
        for w in range(len(self.instance.groups)):
            _, grad, states = self._bytes(w)
            yield from self._all("OflO", w, states)
            yield from self._all("Opt", w, states + grad)

    def _times(self) -> None:
        inst, target, rates = self.instance, self.instance.target, self.instance.rates
        d2h, h2d = target.d2h_bytes_per_s, target.h2d_bytes_per_s
        for t in self.steps:
            out, back = [*self._out(t), *self._leaving(t)], [*self._back(t), *self._coming(t)]
            self._at_least(t, [*self._compute(t), *_times(self._in_time(t), 1e9 / (h2d or 1))])
            self._at_least(t, _times(out, 1e9 / d2h) if d2h else [])
            self._at_least(t, _times(back, 1e9 / h2d) if h2d else [])
            if both := target.shared_bytes_per_s:
                self._at_least(t, _times([*out, *back], 1e9 / both))
            updates = [
                (self.x["Opt"][w][t], rates.cpu_ns(g.grad_bytes)) for w, g in enumerate(inst.groups)
            ]
            self._at_least(t, updates, rates.manage_ns if self.lag else 0.0)
            self._update(t, 1e9 / d2h if d2h else 0.0, 1e9 / h2d if h2d else 0.0)
            for terms, rate in ((out, d2h), (back, h2d)):
                for column, size in terms if rate else ():
                    self._add_price(column, self.price * size * 1e9 / (rate or 1) / self.unit_ns)

    def _add_price(self, column: int, cost: float) -> None:
        self.builder.price(column, self.builder.cost(column) + cost)

    def _in_time(self, t: int) -> Terms:
        """Bytes that come in the step that uses them: it waits for them."""
        inst = self.instance
        if inst.target.h2d_bytes_per_s is None:
            return []
        return [
            (self.x["Prf"][w][t], float(g.size_bytes))
            for w, g in enumerate(inst.groups)
            if t in g.uses(inst.blocks)
        ]

    def _update(self, t: int, ns_per_byte: float, back_ns: float) -> None:
        """(4.20): what follows the backward that completes gradients, one after the other."""
        inst = self.instance
        mine = [w for w, g in enumerate(inst.groups) if g.last_grad(inst.blocks) == t]
        mine = [w for w in mine if inst.groups[w].grad_bytes]
        if not mine:
            return
        fixed, update, sent, grads, came = 0.0, Terms(), Terms(), Terms(), Terms()
        for w in mine:
            size, grad, states = self._bytes(w)
            takes = inst.rates.device_ns(grad)
            fixed += takes
            update += self._all("Opt", w, -takes)
            sent += [(self.x["Ofl"][w][t], size), (self.x["OflO"][w][t], states)]
            grads.append((self.x["OflG"][w][t], grad))
            came.append((self.x["PrfO"][w][t], states))
        sent, grads = _times(sent, ns_per_byte), _times(grads, ns_per_byte)
        computed = [*self._compute(t), *_times(self._in_time(t), back_ns)]
        self._at_least(t, [*_times(came, back_ns), *update, *sent], fixed)
        self._at_least(t, [*computed, *update, *sent], fixed)
        self._at_least(t, [*computed, *sent, *grads])

    def _out(self, t: int) -> Iterator[tuple[int, float]]:
        for w in range(len(self.instance.groups)):
            size, grad, states = self._bytes(w)
            for kind, value in (("Ofl", size), ("OflG", grad), ("OflO", states)):
                yield self.x[kind][w][t], value

    def _back(self, t: int) -> Iterator[tuple[int, float]]:
        for w in range(len(self.instance.groups)):
            size, _, states = self._bytes(w)
            yield self.x["Prf"][w][t], size
            yield self.x["PrfO"][w][t], states

    def _compute(self, t: int) -> Terms:
        inst = self.instance
        i = inst.block(t)
        forward = t < inst.blocks
        return [
            (column, float(o.alone_ns(inst.target) if forward else o.backward_ns))
            for column, o in zip(self.comp[i], inst.options_L[i], strict=True)
        ]

    def _at_least(self, t: int, terms: Terms, fixed_ns: float = 0.0) -> None:
        """Time_t >= the terms, in nanoseconds."""
        terms = [(c, -v) for c, v in _times(merged(terms), 1 / self.unit_ns)]
        self.builder.row([(self.time[t], 1.0), *terms], lower=fixed_ns / self.unit_ns)

    # Answers

    def fractions(self, point: Vector) -> Fractions:
        """A point of the program in words."""
        of = {
            kind: np.clip(np.array([[point[c] for c in row] for row in rows]), 0.0, 1.0)
            for kind, rows in self.x.items()
        }
        options = tuple(int(np.argmax([point[c] for c in columns])) for columns in self.comp)
        return Fractions(of, options, float(sum(point[c] for c in self.time)) * self.unit_ns)

    def fixed(self, options: tuple[int, ...]) -> Milp:
        """The program with these options."""
        milp = self.build()
        for columns, chosen in zip(self.comp, options, strict=True):
            for k, column in enumerate(columns):
                milp.lower[column] = milp.upper[column] = float(k == chosen)
        return milp


def _times(terms: Terms, factor: float) -> Terms:
    return [(column, value * factor) for column, value in terms]
