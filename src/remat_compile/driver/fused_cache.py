"""Fused plans that were made before, on disk beside the plans that they were fused from.

Neither runs of computations nor kernels are searched, timed or planned with again. What is read is
proven as what was just fused is, and its kernels are made, held against their calls and measured
in bytes again, which Inductor's own cache makes short.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..ir.diagnostics import Diagnostic, FBError
from .plan_cache import FUSED_SUFFIX, cache_warning, digest, first_line, one_plan, plan_of

if TYPE_CHECKING:
    from ..ir.program import Program
    from .plan import Plan
    from .plan_cache import PlanCache
    from .request import Fuse

__all__ = ["FusedCache"]


@dataclass(frozen=True)
class FusedCache:
    """The one file for what was asked under `key`."""

    cache: PlanCache
    key: str

    @classmethod
    def of(cls, cache: PlanCache, key: str, fuse: Fuse) -> FusedCache:
        """`key` is that of the plan, which is the same for every way to fuse it."""
        return cls(cache, digest(f"{key} {fuse}"))

    def find(self, plan: Plan) -> tuple[Program | None, tuple[Diagnostic, ...]]:
        """A program with one schedule that was fused from this plan, still to be proven; None
        where there is none, and FB0959 where what is there is none."""
        try:
            held = self.cache.read(self.key, FUSED_SUFFIX)
            text, _ = plan_of(held)
            if held.get("of") != _text_of(plan):
                return None, ()  # another time was measured, or another plan found
            return one_plan(text, str(self._path)), ()
        except FileNotFoundError:
            return None, ()
        except (OSError, ValueError, RecursionError, FBError) as error:
            return None, self.unused(first_line(error))

    def unused(self, why: str) -> tuple[Diagnostic, ...]:
        """FB0959: what was found is not used."""
        return (cache_warning(f"{self._path} is not used: {why}", "it is written again"),)

    def keep(self, plan: Plan, fused: Plan) -> tuple[Diagnostic, ...]:
        """Writes what was fused from `plan` and proven; FB0959 where it cannot."""
        from ..ir.text.printer import format_program

        text = format_program(fused.program)
        held = {"sha256": digest(text), "lower_bound_ns": None, "plan": text, "of": _text_of(plan)}
        return self.cache.hold(self.key, held, FUSED_SUFFIX)

    @property
    def _path(self) -> object:
        return self.cache.path(self.key, FUSED_SUFFIX)


def _text_of(plan: Plan) -> str:
    from ..ir.text.printer import format_program

    return digest(format_program(plan.program))
