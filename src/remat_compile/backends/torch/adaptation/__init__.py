"""A ladder of plans for one model and budget, from exact to most lossy: which runs at each step."""

from __future__ import annotations

from .rule import Rules
from .step import AdaptiveStep, Rung, reserved_bytes

__all__ = ["AdaptiveStep", "Rules", "Rung", "reserved_bytes"]
