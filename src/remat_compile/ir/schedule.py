"""Schedules: the steps of one training step, in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from .span import Span

__all__ = [
    "Compute",
    "CopyStep",
    "Free",
    "HostFree",
    "Offload",
    "Prefetch",
    "Schedule",
    "Step",
    "Wait",
]


@dataclass(frozen=True, slots=True)
class Compute:
    """Run a cNode. With `nosave` the phantoms it writes are freed at once after it."""

    cnode: str
    nosave: bool = False
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Free:
    """Give back the bytes of an aNode."""

    anode: str
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Offload:
    """Begin to copy an aNode to the host. Takes host bytes, frees nothing on the device."""

    anode: str
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Begin to copy an aNode back from its host copy. Takes device bytes at once."""

    anode: str
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Wait:
    """Let the compute stream wait for the end of the copy of an aNode that is in flight."""

    anode: str
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class HostFree:
    """Give back the bytes of the host copy of an aNode."""

    anode: str
    span: Span | None = field(default=None, compare=False, repr=False)


CopyStep = Offload | Prefetch | Wait | HostFree
"""Steps of the asynchronous copies between device and host."""

Step = Compute | Free | CopyStep


@dataclass(frozen=True)
class Schedule:
    """Steps under a name; `planner` is the planner's text form, e.g. `periodic{segments=4}`."""

    name: str
    planner: str
    steps: tuple[Step, ...]
    span: Span | None = field(default=None, compare=False, repr=False)

    @property
    def first_copy(self) -> CopyStep | None:
        """The first step about a copy to or from the host; None where nothing is copied."""
        return next((step for step in self.steps if isinstance(step, CopyStep)), None)
