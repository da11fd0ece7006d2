"""Schedules: the steps of one training step, in order.

A step computes a cNode, or does something about the storage of one aNode. What a kind of step is
stands here once, with its class: how it is spelled, which copy it issues, whether it waits, what
it gives back. Reader, writer, checks and simulator go by that and name no kind;
CONTRIBUTING.md says what else a new kind needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain
from typing import ClassVar, Literal, get_args

from .span import Span

Side = Literal["device", "host"]

Direction = Literal["d2h", "h2d"]
"""The direction of a copy: device to host, or host to device."""


@dataclass(frozen=True, slots=True)
class Compute:
    """Run a cNode. With `nosave` the phantoms it writes are freed at once after it. An update may
    run `on_host`, on the host copies of what it reads, until the `wait` for each of them."""

    cnode: str
    nosave: bool = False
    on_host: bool = False
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class _OnStorage:
    """A step about the storage of one aNode, spelled `word %anode`.

    It issues a `copies`, which takes bytes where it goes to; then it `waits` for the copy in
    flight; then it gives bytes back on the side `gives_back`. Each is done or not (`None`).
    A step that does none of these says where the storage is before the first step.
    """

    word: ClassVar[str]
    copies: ClassVar[Direction | None] = None
    waits: ClassVar[bool] = False
    gives_back: ClassVar[Side | None] = None

    anode: str
    span: Span | None = field(default=None, compare=False, repr=False)

    def parts(self) -> tuple[ElementaryStep, ...]:
        """The elementary steps that do the same one after another; itself where it is one."""
        done: list[type[ElementaryStep]] = []
        if self.copies is not None:
            done.append(Offload if self.copies == "d2h" else Prefetch)
        if self.waits:
            done.append(Wait)
        if self.gives_back is not None:
            done.append(Free if self.gives_back == "device" else HostFree)
        return tuple(kind(self.anode, self.span) for kind in done)


@dataclass(frozen=True, slots=True)
class Free(_OnStorage):
    """Give back the bytes of an aNode."""

    word = "free"
    gives_back = "device"


@dataclass(frozen=True, slots=True)
class Offload(_OnStorage):
    """Begin to copy an aNode to the host. Takes host bytes, frees nothing on the device."""

    word = "offload"
    copies = "d2h"


@dataclass(frozen=True, slots=True)
class Prefetch(_OnStorage):
    """Begin to copy an aNode back from its host copy. Takes device bytes at once."""

    word = "prefetch"
    copies = "h2d"


@dataclass(frozen=True, slots=True)
class Wait(_OnStorage):
    """Let the compute stream wait for the end of the copy of an aNode that is in flight."""

    word = "wait"
    waits = True


@dataclass(frozen=True, slots=True)
class HostFree(_OnStorage):
    """Give back the bytes of the host copy of an aNode."""

    word = "hostfree"
    gives_back = "host"


@dataclass(frozen=True, slots=True)
class Home(_OnStorage):
    """Storage of the caller is on the host between two steps. Stands before what is done."""

    word = "on host"


CopyStep = Offload | Prefetch | Wait | HostFree
"""Steps of the asynchronous copies between device and host."""

ElementaryStep = Free | Offload | Prefetch | Wait | HostFree
"""Steps about storage that do one thing."""

StorageStep = Free | CopyStep | Home

Step = Compute | StorageStep

STORAGE_STEPS: dict[str, type[StorageStep]] = {kind.word: kind for kind in get_args(StorageStep)}
"""The kinds of steps about storage by the words of the language."""


@dataclass(frozen=True)
class Schedule:
    """Steps under a name; `planner` is the planner's text form, e.g. `periodic{segments=4}`."""

    name: str
    planner: str
    steps: tuple[Step, ...]
    span: Span | None = field(default=None, compare=False, repr=False)

    @property
    def homes(self) -> frozenset[str]:
        """The storages that are on the host between two steps."""
        return frozenset(step.anode for step in self.steps if isinstance(step, Home))

    @property
    def elementary(self) -> Schedule:
        """The same with every step about storage in its parts; for who knows those only."""
        parts = ((s,) if isinstance(s, Compute | Home) else s.parts() for s in self.steps)
        return replace(self, steps=tuple(chain.from_iterable(parts)))

    @property
    def has_copies(self) -> bool:
        """True if a step copies to or from the host."""
        return any(isinstance(step, CopyStep) for step in self.elementary.steps)
