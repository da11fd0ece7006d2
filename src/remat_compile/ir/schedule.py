"""Schedules: the steps of one training step, in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from .span import Span

__all__ = ["Compute", "Free", "Schedule", "Step"]


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


Step = Compute | Free


@dataclass(frozen=True)
class Schedule:
    """Steps under a name; `planner` is the planner's text form, e.g. `periodic{segments=4}`."""

    name: str
    planner: str
    steps: tuple[Step, ...]
    span: Span | None = field(default=None, compare=False, repr=False)
