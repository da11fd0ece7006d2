"""Decisions made elsewhere, read as plans: what another tool saves, and what it computes again."""

from .decision import Decision, schedule_of
from .names import decide_names
from .regions import Region, decide_regions

__all__ = ["Decision", "Region", "decide_names", "decide_regions", "schedule_of"]
