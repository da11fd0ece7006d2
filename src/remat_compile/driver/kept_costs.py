"""Costs that were measured before, on disk beside the plans: of a graph, and of kernels in it.

Plans of one graph for several budgets then rest on the same times, so that they differ by their
budgets alone, and only the first of them measures. Looked up by the captured graph, how its tensors
lie in memory, and everything else that times depend on; who plans, and what was asked, does not
count. Where a file cannot be used, measuring goes on without it, and one warning (FB0959) says why.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..ir.diagnostics import Diagnostic, FBError
from .plan_cache import (
    COSTS_SUFFIX,
    PRICES_SUFFIX,
    cache_warning,
    digest,
    ensure_captured,
    first_line,
    key_of,
    surroundings,
)

if TYPE_CHECKING:
    from .._torch.lowered import Lowered
    from ..ir.program import Program
    from .plan_cache import PlanCache

__all__ = ["KeptCosts", "Times"]

Times = Mapping[str, tuple[int, int]]
"""Nanoseconds of kernels and of their calls, by digests of what they compute."""

MOST_NS = 10**15
"""Eleven days: no computation of a step takes as long."""


@dataclass(frozen=True)
class KeptCosts:
    """The two files for a graph under `key`."""

    cache: PlanCache
    key: str

    @classmethod
    def of(cls, cache: PlanCache, lowered: Lowered) -> KeptCosts:
        return cls(cache, key_of(lowered.program, lowered.layouts(), "costs", surroundings()))

    def find(self, captured: Program) -> tuple[Program | None, tuple[Diagnostic, ...]]:
        """The captured program with the costs that were measured; None where there are none, and
        FB0959 where what is there are none."""
        try:
            return _costed(self.cache.read(self.key, COSTS_SUFFIX), captured), ()
        except OSError:  # where it cannot be written, that is told
            return None, ()
        except (ValueError, RecursionError, FBError) as error:
            return None, self._unused(COSTS_SUFFIX, error)

    def keep(self, program: Program) -> tuple[Diagnostic, ...]:
        """Writes the costs of a program, measured just now; FB0959 where it cannot."""
        from ..ir.text.printer import format_program

        text = format_program(program)
        return self.cache.hold(self.key, {"sha256": digest(text), "costs": text}, COSTS_SUFFIX)

    def prices(self) -> tuple[Times, tuple[Diagnostic, ...]]:
        """Of the kernels that were measured; FB0959 where what is there are none."""
        try:
            return _times(self.cache.read(self.key, PRICES_SUFFIX)), ()
        except OSError:
            return {}, ()
        except (ValueError, RecursionError) as error:
            return {}, self._unused(PRICES_SUFFIX, error)

    def keep_prices(self, measured: Times) -> tuple[Diagnostic, ...]:
        """Adds what was measured just now to what is there, which stays as it is: plans rest on
        it. FB0959 where it cannot be written."""
        known, _ = self.prices()
        if measured.keys() <= known.keys():
            return ()
        times = {**measured, **known}
        held = {"sha256": digest(_text(times)), "times": times}
        return self.cache.hold(self.key, held, PRICES_SUFFIX)

    def _unused(self, suffix: str, error: Exception) -> tuple[Diagnostic, ...]:
        path = self.cache.path(self.key, suffix)
        message = f"{path} is not used: {first_line(error)}"
        return (cache_warning(message, "it is measured and written again"),)


def _costed(held: Mapping[str, Any], captured: Program) -> Program:
    """ValueError or FBError where it is not what `keep` wrote for this graph."""
    from ..ir.text.parser import parse_program

    match held:
        case {"sha256": str(known), "costs": str(text)} if known == digest(text):
            program = parse_program(text, "<costs>")
        case _:
            raise ValueError("it was changed or cut short")
    ensure_captured(program, captured)
    was = captured
    if captured.header.device.startswith("cuda"):  # whose memory and link are measured, too
        was = replace(was, target=program.target)
    parts = (program.schedules, program.symbols, program.binding, program.target)
    if parts != ((), was.symbols, was.binding, was.target):
        raise ValueError("it is no graph with costs")
    if any(c.time_ns is None for c in program.graph.cnodes):
        raise ValueError("a computation has no time")
    return program


def _times(held: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    match held:
        case {"sha256": str(known), "times": dict(times)} if known == digest(_text(times)):
            return {name: _pair(pair) for name, pair in times.items()}
    raise ValueError("it was changed or cut short")


def _pair(pair: object) -> tuple[int, int]:
    match pair:
        case [int(kernel_ns), int(calls_ns)] if max(kernel_ns, calls_ns) <= MOST_NS:
            if min(kernel_ns, calls_ns) >= 0:
                return kernel_ns, calls_ns
    raise ValueError("a time is no number")


def _text(times: Mapping[str, Any]) -> str:
    return json.dumps(times, sort_keys=True)
