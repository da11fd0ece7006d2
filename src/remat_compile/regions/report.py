"""Proofs by region, and the regions that run without a plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..ir.units import format_bytes

Status = Literal["planned", "eager", "no gradient"]


@dataclass(frozen=True)
class RegionReport:
    """One region, at one set of shapes.

    Of a planned one, `proven_bytes` are its activations at the most, `saved_bytes` those that it
    holds until its backward, and `calls` how many of it were in flight together. `why` says
    why another one is not planned.
    """

    name: str
    status: Status
    proven_bytes: int | None = None
    saved_bytes: int | None = None
    calls: int = 0
    why: str = ""

    def __str__(self) -> str:
        if self.status != "planned":
            return f"{self.name}: {self.status}" + (f" ({self.why})" if self.why else "")
        assert self.proven_bytes is not None
        assert self.saved_bytes is not None
        times = f", {self.calls} in flight" if self.calls > 1 else ""
        proven, saved = format_bytes(self.proven_bytes), format_bytes(self.saved_bytes)
        return f"{self.name}: proven <= {proven} of activations, {saved} saved{times}"


@dataclass(frozen=True)
class RegionsReport:
    """All regions of one budget. `bound_bytes` is what those that are planned take together at
    the most: activations, or all device bytes where `budget_kind` says so. What runs in
    eager, between regions or as one of them, comes on top and is not bounded.
    """

    regions: tuple[RegionReport, ...]
    bound_bytes: int
    budget_bytes: int | None
    budget_kind: Literal["device", "activation"]

    @property
    def holds(self) -> bool:
        """Return whether the planned regions are proven to fit the budget together."""
        return self.budget_bytes is None or self.bound_bytes <= self.budget_bytes

    def __str__(self) -> str:
        planned = [region for region in self.regions if region.status == "planned"]
        of = "all device bytes" if self.budget_kind == "device" else "activations"
        bound = (
            f"{len(planned)} planned, together proven <= {format_bytes(self.bound_bytes)} of {of}"
        )
        if self.budget_bytes is not None:
            verdict = "within" if self.holds else "OVER"
            bound += f", {verdict} the budget of {format_bytes(self.budget_bytes)}"
        return "\n".join((*map(str, self.regions), f"{bound}; what runs in eager comes on top"))
