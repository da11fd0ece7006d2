"""Calls of regions in flight together, and the share of the budget of each."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Literal

from ..ir.diagnostics import Diagnostic
from ..ir.units import format_bytes
from ..plans.budget import resolve_budget
from ..plans.request import PlanRequest
from .part import Calls, Part, contains, fall_back, planned
from .share import Needs, bound_bytes, fixed_bytes, fraction

FIRST_SHARE = Fraction(1, 4)
"""Share of the way from floor to peak: the least that a region is planned for in the step in which
it is first met, when those before it have taken their bytes without knowing of it."""
STARVED = Fraction(9, 10)
"""A region with less than this part of a fair share is planned again."""


class Sharing:
    """The sets of calls that were in flight together, and the bytes that `request` has for them.

    Those that do not fit by their floors run in eager from then on, if `fallback` allows that.
    """

    def __init__(self, request: PlanRequest, *, fallback: bool):
        self._budget = request.budget
        self._holds_gradients = request.grads == "accumulate"
        self._fallback = fallback
        self._met: list[dict[Part, int]] = []

    def meet(self, calls: Calls) -> bool:
        """Remembers calls that are in flight together; False where more of them were before."""
        for part, count in calls.items():
            part.most_in_flight = max(part.most_in_flight, count)
        if any(contains(met, calls) for met in self._met):
            return False
        self._met = [met for met in self._met if not contains(calls, met)] + [dict(calls)]
        return True

    def left_bytes(self, part: Part, calls: Calls) -> int:
        """Return the bytes that the others of `calls` leave to `part`."""
        assert part.needs is not None
        others = {of: n - (of is part) for of, n in calls.items() if n > (of is part)}
        used = {of: of.used for of in others if of.used is not None}
        left = self._bytes_for(calls) - sum(others[of] * u.saved_bytes for of, u in used.items())
        return max(left, part.needs.share_bytes(FIRST_SHARE))

    def is_unfair(self) -> bool:
        """Return whether the plans at hand break the budget together, or are far from fair."""
        if self._budget is None or all(sum(met.values()) == 1 for met in self._met):
            return False
        for met in map(planned, self._met):
            used = {part: part.used for part in met if part.used is not None}
            if len(used) < len(met) or bound_bytes(met, used) > self._bytes_for(met):
                return True
        return any(
            part.share_bytes is not None and part.share_bytes < STARVED * share
            for part, share in self.fair_shares().items()
        )

    def fair_shares(self) -> dict[Part, int]:
        """Bytes of activations for each; FB0958 where not even the floors fit."""
        parts: dict[Part, Fraction] = {}
        for met in map(planned, self._met):
            needs = {part: part.needs for part in met if part.needs is not None}
            room = self._bytes_for(met)
            part_of_way = fraction(met, needs, room)
            if part_of_way < 0:
                self._refuse_together(met, needs, room)
                continue
            for part in met:
                parts[part] = min(part_of_way, parts.get(part, part_of_way))
        return {
            part: part.needs.share_bytes(way)
            for part, way in parts.items()
            if part.needs is not None and not part.is_eager
        }

    @property
    def kind(self) -> Literal["device", "activation"]:
        """Return the kind of bytes that `worst` counts."""
        of_activations = self._budget is not None and self._budget.kind == "activation"
        return "activation" if of_activations else "device"

    def worst(self) -> tuple[int, int | None]:
        """The bound that is proven of planned calls, and the budget for them, where they come
        closest to it."""
        bounds: list[tuple[int, int | None]] = []
        for met in map(planned, self._met):
            used = {part: part.used for part in met if part.used is not None}
            if not used:
                continue
            calls = {part: met[part] for part in used}
            fixed = self._fixed(calls) if self.kind == "device" else 0
            alone = next(iter(calls)) if sum(calls.values()) == 1 else None
            if alone is not None and self.kind == "device":
                bound = alone.device_bytes
            else:
                bound = fixed + bound_bytes(calls, used)
            most = None
            if self._budget is not None:
                most = self._bytes_for(calls) + fixed
                if alone is not None and alone.baseline is not None:
                    most = resolve_budget(self._budget, alone.baseline).bytes
            bounds.append((bound, most))
        return max(bounds, key=lambda pair: pair[0] - (pair[1] or 0), default=(0, None))

    def _bytes_for(self, calls: Calls) -> int:
        """The bytes that these calls may take for activations, together."""
        budget = self._budget
        assert budget is not None
        needs = {part: part.needs for part in calls if part.needs is not None}
        calls = {part: calls[part] for part in needs}
        fixed = self._fixed(calls) if budget.kind == "device" else 0
        floor = sum(n * needs[part].floor_bytes for part, n in calls.items())
        peak = sum(n * needs[part].peak_bytes for part, n in calls.items())
        match budget.form:
            case "bytes":
                return int(budget.amount) - fixed
            case "share":
                return int(budget.amount * (fixed + peak)) - fixed
            case "range":
                return int(floor + budget.amount * (peak - floor))
            case "least" | "auto":
                raise AssertionError("refused when the options were read")

    def _fixed(self, calls: Calls) -> int:
        needs = {part: part.needs for part in calls if part.needs is not None}
        present = {part: n for part, n in calls.items() if part in needs}
        return fixed_bytes(present, needs, held_before=self._holds_gradients)

    def _refuse_together(self, met: Calls, needs: Mapping[Part, Needs], room: int) -> None:
        floor = sum(n * needs[part].floor_bytes for part, n in met.items())
        assert self._budget is not None
        message = (
            f"{len(met)} regions in flight together need {format_bytes(floor)} of activations "
            f'at the least, and the budget "{self._budget.text}" leaves '
            f"{format_bytes(max(0, room))}"
        )
        hint = f"give {format_bytes(floor - room)} more"
        full = [part for part in met if needs[part].room_bytes == 0]  # of which some may keep all
        for part in full or met:
            fall_back(part, (Diagnostic("FB0958", message, hint=hint),), may=self._fallback)
