"""Engines of copies that make misuse visible on the CPU, without luck and without timing.

`LateEngine` runs each copy at its wait and no earlier; until then there is poison where it
writes, and it does not keep alive what it reads. `traced` gives the accelerator's engine with
streams that are clocks: two accesses of the same bytes, one of them a write, that no event
orders are a race.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from remat_compile.backends.torch.runtime import AcceleratorEngine, CopyEngine
from remat_compile.backends.torch.runtime.accelerator import Streams
from remat_compile.backends.torch.runtime.engine import moves, storage_bytes
from remat_compile.ir.schedule import Direction

POISON = 0xFF
"""Of floats, these bytes are nan."""

Copy = tuple[Direction, str, StorageWeakRef, Sequence[Tensor]]
"""It is the storage that must not be freed: autograd may save another tensor of the same."""


class LateEngine(CopyEngine):
    """`deaf_to` is the number of a wait that does nothing, as if the code did not have it."""

    def __init__(self, deaf_to: int | None = None) -> None:
        self.device = torch.device("cpu")
        self.deaf_to, self.waits = deaf_to, 0
        self.pending: list[str] = []

    def host_memory(self, size_bytes: int) -> tuple[Tensor, ...]:
        return (torch.full((size_bytes,), POISON, dtype=torch.uint8),)

    def issue(
        self, direction: Direction, name: str, tensor: Tensor, host: Sequence[Tensor]
    ) -> Copy:
        for filled in host if direction == "d2h" else (storage_bytes(tensor),):
            filled.fill_(POISON)
        self.pending.append(name)
        read = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        return direction, name, read, host

    def wait(self, flight: Copy) -> None:
        self.waits += 1
        if self.waits - 1 == self.deaf_to:
            return
        direction, name, reference, host = flight
        storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
        if storage is None:
            raise RuntimeError(f"%{name} was freed while a copy of it was under way")
        tensor = torch.tensor((), dtype=torch.uint8).set_(storage)
        self.pending.remove(name)
        for destination, source in moves(direction, tensor, host):
            destination.copy_(source)

    def mark(self) -> None:
        return None

    def settle(self, flight: Copy) -> None:
        return None

    def forget(self, host: Sequence[Tensor]) -> None:
        for piece in host:
            piece.fill_(POISON)


Clock = dict[str, int]
EVERY_BYTE = (0, 1 << 60)


@dataclass(frozen=True)
class _Access:
    stream: str
    time: int
    write: bool
    what: str
    begin: int
    end: int


@dataclass
class _Event:
    clock: Clock = field(default_factory=dict)

    def record(self, stream: _Stream) -> None:
        self.clock = dict(stream.races.clock(stream.name))

    def synchronize(self) -> None:
        pass


@dataclass
class _Stream:
    races: Races
    name: str

    def wait_event(self, event: _Event) -> None:
        own = self.races.clock(self.name)
        for stream, time in event.clock.items():
            own[stream] = max(own.get(stream, 0), time)

    def __enter__(self) -> None:
        self.races.now = self.name

    def __exit__(self, *_: object) -> None:
        self.races.now = "compute"


class Races(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator. An allocation and a free count as writes of the compute stream,
    as the bytes may have been, or may be, another tensor's there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = "compute"
        self.reports: list[str] = []
        self.host: set[int] = set()
        self._clocks: dict[str, Clock] = {}
        self._accesses: dict[int, list[_Access]] = {}
        self._known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def clock(self, stream: str) -> Clock:
        return self._clocks.setdefault(stream, {})

    def access(
        self, key: int, write: bool, what: str, span: tuple[int, int], stream: str | None = None
    ) -> None:
        name = stream or self.now
        clock = self.clock(name)
        clock[name] = clock.get(name, 0) + 1
        mine = _Access(name, clock[name], write, what, *span)
        for other in self._accesses.get(key, ()):
            meets = other.begin < mine.end and mine.begin < other.end
            unordered = clock.get(other.stream, 0) < other.time
            if meets and other.stream != name and (write or other.write) and unordered:
                self.reports.append(f"{what} on {name} races with {other.what} on {other.stream}")
        self._accesses.setdefault(key, []).append(mine)

    def touch(self, tensor: Tensor, write: bool, what: str) -> None:
        storage = tensor.untyped_storage()
        key, span = storage._cdata, EVERY_BYTE
        if key in self.host:
            first = int(tensor.storage_offset())
            span = (first, first + tensor.nbytes)
        elif self._known.get(key) is not storage:
            self._known[key] = storage
            self._accesses.pop(key, None)
            self.access(key, True, "an allocation", EVERY_BYTE, "compute")
            weakref.finalize(storage, self._freed, key).atexit = False
        self.access(key, write, what, span)

    def _freed(self, key: int) -> None:
        if key in self._accesses:
            self.access(key, True, "a free", EVERY_BYTE, "compute")
            del self._accesses[key]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        returns = func._schema.returns
        if "set_" in func.__name__ or any(
            r.alias_info is not None and not r.alias_info.is_write for r in returns
        ):
            return made  # looks at bytes and touches none
        for argument, value in zip(func._schema.arguments, args, strict=False):
            writes = argument.alias_info is not None and argument.alias_info.is_write
            for tensor in value if isinstance(value, list | tuple) else (value,):
                if isinstance(tensor, Tensor):
                    self.touch(tensor, writes, str(func))
        for tensor in made if isinstance(made, list | tuple) else (made,):
            if isinstance(tensor, Tensor):
                self.touch(tensor, True, str(func))
        return made


class _TracedEngine(AcceleratorEngine):
    def __init__(self, races: Races, deaf_to: int | None) -> None:
        names = iter(("d2h", "h2d"))
        streams = Streams(
            lambda _: _Stream(races, next(names)),
            lambda _: _Event(),
            lambda _: _Stream(races, "compute"),
            pin_memory=False,
        )
        super().__init__(torch.device("cpu"), streams)
        self.races, self.deaf_to, self.waits = races, deaf_to, 0

    def host_memory(self, size_bytes: int) -> tuple[Tensor, ...]:
        blocks = super().host_memory(size_bytes)
        self.races.host.update(block.untyped_storage()._cdata for block in blocks)
        return blocks

    def wait(self, flight: Any) -> None:
        self.waits += 1
        if self.waits - 1 != self.deaf_to:
            super().wait(flight)


@contextmanager
def traced(deaf_to: int | None = None) -> Any:
    """An engine on clocks and, inside the block, the races that it finds."""
    races = Races()
    with races:
        yield _TracedEngine(races, deaf_to), races
