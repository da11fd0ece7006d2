"""The copies of all calls of one plan: each call has a state of its own, which ends with its
ticket (`tickets.py`)."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from ....device.shards import is_sharded, own_rows, whole
from ....device.strides import is_dense, outermost_first
from ....ir.diagnostics import fail
from ....ir.expr import evaluate
from ....ir.program import Program
from ....ir.schedule import Schedule
from ....operators.instances import Instances
from .arena import HostLayout, host_layout
from .call import Arena, HostCopies
from .choice import engine_for
from .engine import CopyEngine, Flight
from .sharded import ShardedCopies, ShardEngine, check_away
from .tickets import Tickets
from .updates import Optimizer, Updates


class PlanCopies:
    """Begins the copies of each call, and keeps one arena from call to call.

    `engine` may be exchanged between two calls; `arenas` counts those that are there, idle or
    not; `last_host_peak_bytes` is of the call that ended a forward or a backward last.
    """

    def __init__(
        self,
        program: Program,
        schedule: Schedule,
        inputs: Sequence[str | None],
        optimizer: Optimizer | None = None,
        away: Tensor | None = None,
    ) -> None:
        """`inputs` are the aNodes of the forward's arguments, `away` a parameter where none lies
        on the device. FB0912 for a device that cannot copy beside its computations, FB0549 where
        what is at home on the host lies on an accelerator."""
        homes, device = schedule.homes, torch.device(program.header.device)
        frozen: frozenset[str] = frozenset()
        if away is not None:
            frozen = check_away(program, schedule, is_sharded=is_sharded(away))
        elif homes and device.type != "cpu":
            message = f"%{min(homes)} is at home on the host in the plan, and lies on {device}"
            fail("FB0549", message, schedule.span, hint="keep the model on the host: model.cpu()")
        self._frozen = [(at, name) for at, name in enumerate(inputs) if name in frozen]
        self._there: dict[str | None, tuple[Tensor, int, Tensor]] = {}
        self._homes = {name: at for at, name in enumerate(inputs) if name in homes}
        self._inputs = inputs
        self._gradients = homes - self._homes.keys()
        self._updates = None if optimizer is None else Updates(program.graph, optimizer)
        trained = {} if optimizer is None else optimizer.parameters
        self._trained = [(at, trained[n]) for at, n in enumerate(inputs) if n and n in trained]
        self.engine = (
            engine_for(device) if away is None or not is_sharded(away) else ShardEngine(away)
        )
        self.arenas = 0
        self.last_host_peak_bytes = 0
        self._program, self._schedule = program, schedule
        arguments = program.binding.arguments
        self._dimensions = {
            s.name: (inputs.index(arguments[s.argument].name), s.dim) for s in program.symbols
        }
        self._layouts: dict[tuple[int, ...], HostLayout] = {}
        self._idle: list[tuple[CopyEngine, Arena]] = []
        self._tickets: Tickets[HostCopies] = Tickets()

    def __deepcopy__(self, memo: object) -> PlanCopies:
        # A copy of the module runs the same functions, which know these copies.
        return self

    def look(self, given: Sequence[object]) -> None:
        """FB0544 where a parameter among the forward's arguments is not the optimizer's."""
        for at, parameter in self._trained:
            if given[at] is not parameter:
                name = self._inputs[at]
                path = next(p.names[0] for p in self._program.binding.params if p.name == name)
                message = f"{path} is another tensor than the optimizer updates"
                fail("FB0544", message, hint="compile again with an optimizer of these parameters")

    def states(self) -> list[Tensor]:
        """The states of the optimizer, which the forward is given behind all else."""
        return [] if self._updates is None else self._updates.optimizer.tensors()

    def begin(self, args: list[Tensor]) -> HostCopies:
        """The state of a call of the forward with these arguments, in which those that the plan has
        on the device come to lie there. FB0549 for a tensor at home on the host that is not
        dense."""
        for at, name in self._frozen:
            args[at] = self._copy_of(name, args[at])
        env = {name: int(args[i].shape[dim]) for name, (i, dim) in self._dimensions.items()}
        is_shared = isinstance(self.engine, ShardEngine)
        layout = HostLayout(0, {}) if is_shared else self._layout(env)
        engine, arena = self._arena(layout.size_bytes)
        homes = {name: args[at].detach() for name, at in self._homes.items()}
        for name, tensor in homes.items():
            strides = own_rows(tensor).stride()
            if not is_dense(own_rows(tensor).shape, strides, outermost_first(strides)):
                message = f"%{name}, at home on the host, has gaps between its elements"
                fail("FB0549", message, hint="give the model a copy of it: tensor.contiguous()")
        pin = engine.device.type != "cpu"
        gradients = {
            name: torch.empty(size, dtype=torch.uint8, pin_memory=pin)
            for name, size in self._sizes(env, self._gradients).items()
        }
        given = homes, gradients, self._updates
        kind = ShardedCopies if is_shared else HostCopies
        copies = kind(engine, arena, layout.slots, *given)
        copies.env = env
        ended = weakref.finalize(copies, self._end, engine, arena, copies.flights)
        ended.atexit = False
        return copies

    def ticket(self, copies: HostCopies) -> Tensor:
        """Return a ticket that stands for a state while autograd keeps it: int64[1]. The forward is
        done."""
        copies.pause()
        self.last_host_peak_bytes = copies.host_peak_bytes
        return self._tickets.issue(copies)

    def redeem(self, ticket: Tensor) -> HostCopies:
        """The state behind a ticket, once. FB0953 where it has ended."""
        copies = self._tickets.redeem(ticket)
        if copies is None:
            fail(
                "FB0953",
                "the host copies of this call are gone: they serve one backward",
                hint="call the module again; leave out retain_graph and hooks on saved tensors",
            )
        if changed := copies.changed():
            message = (
                f"{', '.join(f'%{name}' for name in changed)}, on the host between two steps, was "
                "written to between the forward and the backward of a planned step"
            )
            fail("FB0962", message, hint="write to it after the backward")
        return copies

    def gradients(self, copies: HostCopies, grads: Sequence[str | None]) -> dict[int, Tensor]:
        """Return the gradients of `grads` that a backward left on the host, by place."""
        graph = self._program.graph
        made = Instances(
            graph, copies.env, {name: copies.gradient(name) for name in self._gradients}
        )
        return {
            at: made[name]
            for at, name in enumerate(grads)
            if name is not None and graph.storage[name] in self._gradients
        }

    def end(self, copies: HostCopies) -> None:
        """The backward is done."""
        copies.pause()
        self.last_host_peak_bytes = copies.host_peak_bytes

    def _copy_of(self, name: str | None, tensor: Tensor) -> Tensor:
        """A parameter on the device, copied again where it was written to."""
        source, version, copy = self._there.get(name, (None, 0, tensor))
        if source is not tensor or version != tensor._version:
            copy = whole(tensor, self.engine.device)
            self._there[name] = tensor, tensor._version, copy
        return copy

    def _sizes(self, env: Mapping[str, int], names: Collection[str]) -> dict[str, int]:
        """Bytes of storages, not rounded."""
        return {n: evaluate(self._program.graph.anode[n].size, env) for n in names}

    def _layout(self, env: Mapping[str, int]) -> HostLayout:
        key = tuple(env.values())
        if key not in self._layouts:
            if len(self._layouts) >= 64:  # of as many sizes of a batch
                self._layouts.clear()
            self._layouts[key] = host_layout(self._program, self._schedule, env)
        return self._layouts[key]

    def _arena(self, size_bytes: int) -> tuple[CopyEngine, Arena]:
        """One from an earlier call, after its last copies, or a new one."""
        while self._idle:
            engine, arena = self._idle.pop()
            for flight in arena.abandoned:
                engine.settle(flight)
            arena.abandoned.clear()
            if arena.left is not None:
                engine.wait(arena.left)
            if engine is self.engine and arena.size_bytes >= size_bytes:
                break
            self.arenas -= 1
        else:
            engine, arena = self.engine, Arena(self.engine, size_bytes)
            self.arenas += 1
        return engine, arena

    def _end(self, engine: CopyEngine, arena: Arena, flights: dict[str, Flight | None]) -> None:
        """A call is over. This may run in any thread, so it waits for nothing: what is under
        way is settled before the next call begins."""
        arena.abandoned += [flight for flight in flights.values() if flight is not None]
        if self._idle:
            self.arenas -= 1  # one is kept, for the ordinary case of one call at a time
        else:
            self._idle.append((engine, arena))
