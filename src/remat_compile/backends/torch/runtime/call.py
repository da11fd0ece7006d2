"""The copies of one call of a step: tensors on the host, and copies in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from typing import NoReturn, Self

import torch
from torch import Tensor

from ....device.shards import is_sharded, own_rows
from ....ir.diagnostics import fail
from ....ir.graph import CNode
from ....ir.schedule import Direction
from ....ir.wording import worded
from ....operators.instances import Instances
from .arena import Pieces
from .choice import engine_for
from .engine import CopyEngine, Flight, storage_bytes
from .updates import Updates


class Arena:
    """Host memory of one call at a time, in blocks that follow one another."""

    def __init__(self, engine: CopyEngine, size_bytes: int) -> None:
        """FB0951 where the memory is not to be had."""
        self.size_bytes = size_bytes
        try:
            self.blocks = engine.host_memory(size_bytes)
        except RuntimeError as error:
            line = str(error).strip().splitlines()[0]
            fail(
                "FB0951",
                f"{size_bytes} bytes of host memory for copies are not to be had: {line}",
                hint=worded(
                    "plan with a smaller {host_budget}, or let more memory be pinned (ulimit -l)"
                ),
            )
        # Of the call before, when the next one begins: copies that nobody waited for, and the
        # computations after which it left the arena.
        self.abandoned: list[Flight] = []
        self.left: Flight | None = None

    def views(self, pieces: Pieces) -> tuple[Tensor, ...]:
        """The bytes of `pieces`, in order, as parts of blocks."""
        parts, first = [], 0
        for block in self.blocks:
            last = first + block.numel()
            for address, length in pieces:
                begin, end = max(address, first), min(address + length, last)
                if begin < end:
                    parts.append((address, begin, block[begin - first : end - first]))
            first = last
        places = {address: place for place, (address, _) in enumerate(pieces)}
        parts.sort(key=lambda part: (places[part[0]], part[1]))
        return tuple(part for _, _, part in parts)


@dataclass(frozen=True)
class HostCopy:
    """The bytes of a tensor, and what makes a tensor of them again."""

    host: tuple[Tensor, ...]
    size_bytes: int
    dtype: torch.dtype
    device: torch.device
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    kept: Tensor | None
    """A tensor that lies on the host of an accelerator anyway, such as a random state."""
    rows: Tensor | None = None
    """The rows of this rank, of a tensor that is sharded."""

    @classmethod
    def of(cls, tensor: Tensor, host: tuple[Tensor, ...] = (), kept: Tensor | None = None) -> Self:
        """The copy of a tensor on the device, in the memory given."""
        size, offset = tensor.untyped_storage().nbytes(), int(tensor.storage_offset())
        form = tensor.dtype, tensor.device, tensor.shape, tensor.stride()
        return cls(host, size, *form, offset, kept)

    def tensor(self) -> Tensor:
        """The copy itself, as a tensor on the host; one like it where it lies in several pieces, or
        its elements at odd addresses; of a sharded one, the rows of this rank."""
        if self.rows is not None:
            return self.rows
        like = torch.empty(0, dtype=self.dtype)
        whole = self.host[0]
        if len(self.host) > 1 or int(whole.storage_offset()) % like.element_size():
            whole = torch.cat(self.host)
        first = int(whole.storage_offset()) // like.element_size() + self.offset
        return like.set_(whole.untyped_storage(), first, self.shape, self.stride)

    def empty(self) -> Tensor:
        """A tensor like the one that was copied, with bytes of its own on the same device."""
        made = torch.empty(self.size_bytes, dtype=torch.uint8, device=self.device)
        like = torch.empty(0, dtype=self.dtype, device=self.device)
        storage = made.untyped_storage()
        return like.set_(storage, self.offset, self.shape, self.stride)


class HostCopies:
    """The object that generated code calls `copies`: it belongs to one call, forward and backward.

    `host_bytes` are those of the copies that are there now, `host_peak_bytes` the most so far,
    `moved_bytes` those copied in each direction. A step that no valid schedule has is FB0955.
    """

    def __init__(
        self,
        engine: CopyEngine,
        arena: Arena,
        slots: Mapping[str, tuple[Pieces, ...]],
        homes: Mapping[str, Tensor] | None = None,
        gradients: Mapping[str, Tensor] | None = None,
        updates: Updates | None = None,
    ) -> None:
        """`homes` are tensors of the caller on the host, `gradients` memory, uint8[bytes], of what
        is left there for him."""
        self.moved_bytes: Counter[str] = Counter()
        self.flights: dict[str, Flight | None] = {}
        self._engine, self._arena, self._slots = engine, arena, slots
        self._turns: Counter[str] = Counter()
        self._homes = {name: (tensor, tensor._version) for name, tensor in (homes or {}).items()}
        self._host = {
            name: _at_home(tensor, engine.device) for name, (tensor, _) in self._homes.items()
        }
        self._gradients = gradients or {}
        self._updates = updates
        self.env: Mapping[str, int] = {}
        self._last = {} if updates is None else updates.ended
        self._landed: list[Flight] = []  # copies of what the caller reads or writes on the host
        self.host_bytes = self.host_peak_bytes = sum(c.size_bytes for c in self._host.values())

    @property
    def arena(self) -> Arena:
        """The host memory of this call."""
        return self._arena

    def another(self) -> HostCopies:
        """Copies of a call with the same host memory, to record what it does."""
        return HostCopies(self._engine, self._arena, self._slots)

    def join(self) -> None:
        """Let what follows run after all copies under way."""
        for name, flight in self.flights.items():
            if flight is not None:
                self._engine.wait(flight)
            self.flights[name] = None

    def update(self, name: str, *tensors: Tensor) -> tuple[Tensor, ...]:
        """An update of an optimizer on the device: the tensors that it changed, in order."""
        assert self._updates is not None
        return self._updates.run(name, tensors)

    def update_on_host(self, name: str) -> None:
        """Begins an update of what is at home on the host, in a thread of its own."""
        assert self._updates is not None
        c, graph = self._updates.of(name), self._updates.graph
        storages = {graph.storage[ref] for ref in c.call.refs()}
        if any(storage not in self._host or storage in self.flights for storage in storages):
            _misused("update_on_host", name)
        held = {storage: self._host[storage] for storage in storages}

        def tensors() -> list[Tensor]:  # once all have arrived
            return self._operands(c, held)

        arrived = [flight for flight in self._landed if not isinstance(flight, Future)]
        self._landed = [flight for flight in self._landed if isinstance(flight, Future)]
        flight = self._updates.begin(name, tensors, lambda: [*map(self._engine.settle, arrived)])
        old = dict(c.takes_over)
        for storage in storages - old.keys():
            self.flights[storage] = flight
        for ended, named in c.takes_over:
            self._host[named] = self._host.pop(ended)
            self.flights[named] = flight

    def _operands(self, c: CNode, held: Mapping[str, HostCopy]) -> list[Tensor]:
        """The tensors that an update takes over and reads, of the storages on the host."""
        assert self._updates is not None
        values = {storage: copy.tensor() for storage, copy in held.items()}
        instances = Instances(self._updates.graph, self.env, values)
        return [instances[ref] for ref in c.operands]

    def offload(self, name: str, tensor: Tensor) -> None:
        """Begins to copy a tensor to the host. FB0954 where it is larger than was planned."""
        turn, is_given = self._turns[name], name in self._gradients
        if home := self._homes.get(self._last.get(name, "")):
            if name in self._host or name in self.flights:
                _misused("offload", name)
            self._host[name] = _at_home(home[0], self._engine.device)
            self._take(name, tensor)
            return
        slots = self._slots.get(name, ())
        if name in self._host or name in self.flights or turn >= len(slots) + is_given:
            _misused("offload", name)
        pieces = () if is_given else slots[turn]
        size, planned = tensor.untyped_storage().nbytes(), sum(length for _, length in pieces)
        if size > planned and not is_given:
            fail(
                "FB0954",
                f"%{name} is to be copied to the host and takes {size} bytes, {planned} planned",
                hint=worded("plan with {costs}, which looks at the real sizes", costs="measured"),
            )
        self._turns[name] += 1
        on_host = tensor.device.type == "cpu" != self._engine.device.type
        host = () if on_host else self._arena.views(_first(pieces, size))
        if is_given:
            host = (self._gradients[name],)
        self._host[name] = HostCopy.of(tensor, host, tensor if on_host else None)
        self._take(name, tensor)

    def _take(self, name: str, tensor: Tensor) -> None:
        """Counts the bytes of a copy, and begins to fill them."""
        self._count(name)
        self._issue("d2h", name, tensor)

    def _count(self, name: str) -> None:
        self.host_bytes += self._host[name].size_bytes
        self.host_peak_bytes = max(self.host_peak_bytes, self.host_bytes)

    def prefetch(self, name: str) -> Tensor:
        """Begins to copy a tensor back; what is given may be read after its wait."""
        if name not in self._host or name in self.flights:
            _misused("prefetch", name)
        copy = self._host[name]
        tensor = copy.empty() if copy.kept is None else copy.kept
        self._issue("h2d", name, tensor)
        return tensor

    def wait(self, name: str) -> None:
        """Let what follows run after the copy under way. FB0952 where it failed."""
        if name not in self.flights:
            _misused("wait", name)
        flight = self.flights[name]  # stays there while it may be under way
        if flight is not None:
            self._arrive(name, flight)
        del self.flights[name]

    def _arrive(self, name: str, flight: Flight) -> None:
        if (self._homes or self._gradients) and not isinstance(flight, Future):
            self._landed.append(self._engine.waited(flight))
        try:
            if isinstance(flight, Future):
                flight.result()
            else:
                self._engine.wait(flight)
        except Exception as error:
            del self.flights[name]
            message = f"a copy of %{name} between host and device failed: {error}"
            hint = "this step is lost; the next one begins anew"
            if name in self._last:
                message = f"the update of %{name} or its copy failed: {error}"
                hint = (
                    "this step is lost, and some parameters may have their update: go on from a "
                    "checkpoint, or with the next step"
                )
            fail("FB0952", message, hint=hint)

    def abandon(self) -> None:
        """Returns when nothing of a call that failed is under way: what is the caller's on the host
        is at rest then."""
        for flight in self.flights.values():
            if isinstance(flight, Future):
                wait_for((flight,))
            elif flight is not None:
                self._engine.settle(flight)
        self.flights.clear()

    def gradient(self, name: str) -> Tensor:
        """A gradient that the step left on the host: the caller's from here on."""
        copy = self._host.pop(name)
        self.host_bytes -= copy.size_bytes
        return copy.tensor()

    def changed(self) -> list[str]:
        """The tensors of the caller that were written to since the call began."""
        return [name for name, (tensor, seen) in self._homes.items() if tensor._version != seen]

    def hostfree(self, name: str) -> None:
        """Gives the host bytes of a copy back."""
        if name not in self._host or name in self.flights:
            _misused("hostfree", name)
        copy = self._host.pop(name)
        self.host_bytes -= copy.size_bytes
        self._engine.forget(copy.host)

    def pause(self) -> None:
        """Is called at the end of the forward and of the backward: the caller's memory on the host
        is at rest then."""
        for flight in self._landed:
            self._engine.settle(flight)
        self._landed.clear()
        self._arena.left = self._engine.mark()

    def _issue(self, direction: Direction, name: str, tensor: Tensor) -> None:
        copy = self._host[name]
        self.moved_bytes[direction] += copy.size_bytes
        moves = copy.kept is None
        self.flights[name] = (
            self._engine.issue(direction, name, tensor, copy.host) if moves else None
        )


def _at_home(tensor: Tensor, device: torch.device) -> HostCopy:
    """The host copy that a dense tensor of the caller is, or all ranks' rows of a sharded one."""
    own, each = own_rows(tensor), tensor.element_size()
    first = int(own.storage_offset()) * each
    host = storage_bytes(own)[first : first + own.numel() * each]
    size, rows = tensor.numel() * each, own if is_sharded(tensor) else None
    shape, stride = tensor.shape, tensor.stride()
    return HostCopy((host,), size, tensor.dtype, device, shape, stride, 0, None, rows)


def single_call(
    device: str, size_bytes: int, slots: Iterable[tuple[str, tuple[Pieces, ...]]]
) -> HostCopies:
    """The copies of a step that runs once, as a script of generated code does."""
    engine = engine_for(torch.device(device))
    return HostCopies(engine, Arena(engine, size_bytes), dict(slots))


def _first(pieces: Pieces, size_bytes: int) -> Pieces:
    """The pieces that the first bytes take."""
    used_pieces = []
    for address, length in pieces:
        used = min(length, size_bytes)
        if used:
            used_pieces.append((address, used))
        size_bytes -= used
    return tuple(used_pieces)


def _misused(step: str, name: str) -> NoReturn:
    message = f"{step} %{name} is not possible here: the code that runs is not the plan's"
    fail("FB0955", message, hint="run the code as it was generated")
