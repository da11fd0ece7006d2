"""Fused plans that were made before, on disk beside the plans that they were fused from.

Neither runs of computations nor kernels are searched, timed or planned with again. What is read is
proven as what was just fused is, and its kernels are made, held against their calls and measured
in bytes again, which Inductor's own cache makes short.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..ir.diagnostics import Diagnostic
from .plan_cache import one_plan
from .store import Store, digest

if TYPE_CHECKING:
    from ..ir.program import Program
    from .plan import Plan
    from .plan_cache import PlanCache
    from .request import PlanRequest

__all__ = ["FusedCache"]


@dataclass(frozen=True)
class FusedCache:
    """The one file for what was asked under `key`."""

    store: Store
    key: str

    @classmethod
    def of(cls, cache: PlanCache, request: PlanRequest) -> FusedCache | None:
        """None where the plan is not kept, whose key is the same for every way to fuse it."""
        key = cache.plan_key(request)
        return None if key is None else cls(cache.store, digest(f"{key} {request.fuse}"))

    def find(self, plan: Plan) -> tuple[Program | None, tuple[Diagnostic, ...]]:
        """A program with one schedule that was fused from this plan, still to be proven; None
        where there is none, and FB0959 where what is there is none."""
        found, diagnostics = self.store.find("fused", self.key, self._read)
        if found is None or found[1] != _text_of(plan):
            return None, diagnostics  # another time was measured, or another plan found
        return found[0], ()

    def unused(self, why: str) -> tuple[Diagnostic, ...]:
        """FB0959: what was found is not used."""
        return self.store.unused("fused", self.key, why)

    def keep(self, plan: Plan, fused: Plan) -> tuple[Diagnostic, ...]:
        """Writes what was fused from `plan` and proven; FB0959 where it cannot."""
        from ..ir.text.printer import format_program

        return self.store.put("fused", self.key, [format_program(fused.program), _text_of(plan)])

    def _read(self, value: Any) -> tuple[Program, str]:
        match value:
            case [str(text), str(of)]:
                return one_plan(text, str(self.store.path("fused", self.key))), of
        raise ValueError("it is no plan")


def _text_of(plan: Plan) -> str:
    from ..ir.text.printer import format_program

    return digest(format_program(plan.program))
