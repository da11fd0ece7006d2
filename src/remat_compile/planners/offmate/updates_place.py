"""Where updates and their copies stand in an order, for a way of each update; and the schedule.

Ways of an update of an optimizer, with its parameters, states and gradients:

* `device`: all at home on the device, updated there;
* `states`: the states at home on the host; they come for the update and go back;
* `through`: the parameters too; each comes before it is used, and goes back behind the update;
* `host`: as `through`, but the gradients go to the host and the update runs there, beside all that
  follows (Zhao 2024, section 4.3; Ren et al. 2021);
* `through-dropped`, `host-dropped`: as these, and between forward and backward the parameters are
  not on the device.

Entries of an order are its positions, updates among them; a *boundary* i is before entry i.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ...ir.graph import CALLER_KINDS, CNode
from ...ir.program import Program
from ...ir.rewrites.updates import for_planners, gradients_of, update_places
from ...ir.schedule import Compute, Free, Home, HostFree, Offload, Prefetch, Schedule, Step, Wait
from ...ir.semantics.sizes import Sizes
from ..instance import Instance, Order
from ..offload.copies.place import copy_ns, fits_from, times_of

Way = Literal["device", "states", "through", "through-dropped", "host", "host-dropped"]
WAYS: tuple[Way, ...] = get_args(Way)
_AT_HOME = ("device", "states")
_ON_HOST = ("host", "host-dropped")


@dataclass(frozen=True)
class Update:
    """`at` is its entry; `uses` are the entries that read a parameter of it, by parameter."""

    cnode: CNode
    at: int
    params: tuple[str, ...]
    states: tuple[str, ...]
    grads: tuple[str, ...]
    uses: Mapping[str, tuple[int, ...]]

    @cached_property
    def named(self) -> dict[str, str]:
        """The aNode that takes over each storage."""
        return dict(self.cnode.takes_over)


class UpdateOrder:
    """An order of the computations of a program with updates, each of these where it can be first.

    `fixed_bytes` are on the device in every way of the updates, `acts_bytes[i]` what entry i takes
    but for parameters and states."""

    def __init__(self, program: Program, base: Instance, order: Order) -> None:
        """`base` is of `for_planners(program)` and counts activations, `order` one of it."""
        graph, sizes = program.graph, Sizes.of(program)
        self.program, self.size = program, sizes.anode
        updates = {c.name for c in graph.cnodes if c.is_update}
        index = {name: c for c, name in enumerate(base.names_C)}
        bare = [c for c in order if base.names_C[c] not in updates]
        after = defaultdict(list)
        steps = [Compute(base.names_C[c]) for c in bare]
        for name, place in update_places(graph, steps).items():
            after[place].append(index[name])
        self.order: Order = [x for i, c in enumerate(bare) for x in (c, *after.get(i, ()))]
        self.base = base
        self.acts_bytes = base.profile(self.order)
        self.begins_ns = [0, *accumulate(times_of(base, self.order))]
        self.updates = self._updates()
        moved = {name for u in self.updates for name in (*u.params, *u.states)}
        held = (a.name for a in graph.anodes if a.kind in CALLER_KINDS and a.name not in moved)
        self.fixed_bytes = sum(self.size[name] for name in held)

    def _updates(self) -> list[Update]:
        """In the order in which they stand."""
        graph, base = self.program.graph, self.base
        reads: dict[str, list[int]] = defaultdict(list)
        at: dict[str, int] = {}
        runs: dict[str, int] = defaultdict(int)
        for i, c in enumerate(self.order):
            cnode = graph.cnode[base.names_C[c]]
            if cnode.is_update:
                at[cnode.name] = i
                continue
            runs[cnode.name] += 1
            for name in graph.reads(cnode, runs[cnode.name]):
                reads[name].append(i)
        made = []
        for name, i in sorted(at.items(), key=lambda item: item[1]):
            update = graph.cnode[name]
            old = [ended for ended, _ in update.takes_over]
            params = tuple(n for n in old if graph.anode[n].kind == "param")
            states = tuple(n for n in old if graph.anode[n].kind == "opt_state")
            uses = {n: tuple(reads[n]) for n in params}
            made.append(Update(update, i, params, states, gradients_of(graph, update), uses))
        return made

    @cached_property
    def loss(self) -> int:
        """The entry of the loss."""
        return self.order.index(self.base.loss)

    def bytes_of(self, names: Sequence[str]) -> int:
        """Bytes of storages."""
        return sum(self.size[name] for name in names)


@dataclass(frozen=True, slots=True)
class _Stay:
    """A storage on the device from its prefetch (`issue`) to behind entry `last`."""

    name: str
    first: int
    last: int
    issue: int = -1


class UpdatePlacement:
    """The ways of all updates, within `limit_bytes`."""

    def __init__(self, view: UpdateOrder, limit_bytes: int, ways: Sequence[Way]) -> None:
        self.view, self.ways = view, ways
        count = len(view.order)
        self.room: NDArray[np.int64] = np.empty(count + 1, dtype=np.int64)
        self.room[:count] = limit_bytes - view.fixed_bytes - np.array(view.acts_bytes, np.int64)
        self.room[count] = self.room[count - 1] if count else 0
        self.stays: list[_Stay] = []
        self.sent: dict[int, tuple[tuple[str, ...], int]] = {}
        """By the entry of an update: what is copied to the host behind it, and the boundary at
        which that has gone."""
        for update, way in zip(view.updates, ways, strict=True):
            self._hold(update, way)
        self._send()
        self._fetch()

    @property
    def fits(self) -> bool:
        """True if the bytes are within the limit wherever the copies are as fast as they should."""
        return bool(self.room.min() >= 0)

    def _hold(self, update: Update, way: Way) -> None:
        view = self.view
        if way in _ON_HOST:  # so its workspace is not on the device
            self.room[update.at] += view.base.workspace_C[view.order[update.at]]
        if way in _AT_HOME:
            self.room -= view.bytes_of(update.params)
        if way == "device":
            self.room -= view.bytes_of(update.states)
        if way not in _AT_HOME:
            for name in update.params:
                last = [] if way in _ON_HOST else [update.at]
                uses = [*update.uses[name], *last]
                inner = [i for i in uses if i <= view.loss], [i for i in uses if i > view.loss]
                parts = [part for part in inner if part] if way.endswith("dropped") else [uses]
                for part in parts:
                    self.stays.append(_Stay(name, part[0], part[-1]))
        if way != "device" and way not in _ON_HOST:
            self.stays += [_Stay(name, update.at, update.at) for name in update.states]

    def _send(self) -> None:
        view, target = self.view, self.view.program.target
        count, idle = len(view.order), 0
        for stay in self.stays:
            self.room[stay.first : stay.last + 1] -= view.size[stay.name]
        for update, way in zip(view.updates, self.ways, strict=True):
            if way == "device":
                continue
            old = update.states if way == "states" else (*update.params, *update.states)
            names = update.grads if way in _ON_HOST else tuple(update.named[n] for n in old)
            idle = max(idle, view.begins_ns[update.at + 1])
            for name in names:
                idle += copy_ns(view.size[name], target.d2h_bytes_per_s, target)
            gone = max(update.at + 1, bisect_left(view.begins_ns, idle, 0, count))
            size = view.bytes_of(names)
            short = np.flatnonzero(self.room[update.at + 1 : gone] < size)
            if short.size:
                gone = update.at + 1 + int(short[0])
            self.room[update.at + 1 : gone] -= size
            self.sent[update.at] = names, gone

    def _fetch(self) -> None:
        """Prefetches as early as there is room, in the order of the uses that wait for them."""
        free_from: dict[str, int] = {}
        before, placed = 0, []
        for stay in sorted(self.stays, key=lambda s: (s.first, s.name)):
            size = self.view.size[stay.name]
            begin = min(max(before, free_from.get(stay.name, 0)), stay.first)
            before = fits_from(self.room, begin, stay.first, size)
            self.room[before : stay.first] -= size
            free_from[stay.name] = stay.last + 1
            placed.append(_Stay(stay.name, stay.first, stay.last, before))
        self.stays = placed

    def schedule(self, planner: str) -> Schedule:
        """The steps. At a boundary: first what gives bytes back, then what takes them, then waits
        for what is used."""
        view, count = self.view, len(self.view.order)
        by_name = {u.cnode.name: (u, way) for u, way in zip(view.updates, self.ways, strict=True)}
        gradients = {name for u in view.updates for name in u.grads}
        taken = {name for u, way in by_name.values() for name in _taken(u, way)}
        before: list[list[Step]] = [[] for _ in range(count + 1)]
        ends: list[Step] = []
        for at, (names, gone) in sorted(self.sent.items()):
            steps = before[gone]
            for name in names:
                steps += [Wait(name), Free(name)]
            update, way = by_name[view.base.names_C[view.order[at]]]
            if way in _ON_HOST:
                steps.append(Compute(update.cnode.name, on_host=True))
                ends += [Wait(update.named[n]) for n in (*update.params, *update.states)]
                ends += [step for n in update.grads for step in (Wait(n), HostFree(n))]
        for stay in self.stays:
            if (stay.name, stay.last) not in taken:
                before[stay.last + 1].append(Free(stay.name))
        for stay in self.stays:
            before[stay.issue].append(Prefetch(stay.name))
        for stay in self.stays:
            before[stay.first].append(Wait(stay.name))
        home = sorted(
            name
            for update, way in by_name.values()
            if way != "device"
            for name in (*(() if way == "states" else update.params), *update.states)
        )
        steps = [Home(name) for name in home]
        entry = -1
        for step in view.base.schedule(view.order, planner).steps:
            if isinstance(step, Compute):
                entry += 1
                steps += before[entry]
                if step.cnode in by_name:
                    steps += self._update(*by_name[step.cnode])
                    continue
            elif isinstance(step, Free) and step.anode in gradients:
                continue
            steps.append(step)
        return Schedule("plan", planner, (*steps, *before[count], *ends))

    def _update(self, update: Update, way: Way) -> list[Step]:
        """The steps of an update at its entry."""
        if way in _ON_HOST:
            return [Offload(name) for name in update.grads]
        steps: list[Step] = [Compute(update.cnode.name)]
        if way != "device":
            old = (*(() if way == "states" else update.params), *update.states)
            steps += [HostFree(name) for name in old]
            steps += [Offload(update.named[name]) for name in old]
        return [*steps, *(Free(name) for name in update.grads)]


def _taken(update: Update, way: Way) -> list[tuple[str, int]]:
    """Storages that an update on the device takes over, and so end there without a `free`."""
    if way == "device" or way in _ON_HOST:
        return []
    names = update.states if way == "states" else (*update.params, *update.states)
    return [(name, update.at) for name in names]


def update_order(program: Program, order: Order | None = None) -> UpdateOrder:
    """An order of `for_planners(program)`, by default that of capture."""
    base = Instance.of(for_planners(program), "activation")
    return UpdateOrder(program, base, base.capture if order is None else order)
