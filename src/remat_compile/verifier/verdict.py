"""The answers of the verifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..ir.diagnostics import Diagnostic
from ..ir.program import Proven
from .assumptions import Assumption


@dataclass(frozen=True)
class Bound:
    """Proven at the sizes `env`: no step takes more than these bytes.

    `everywhere` says that it holds for every value of the symbols in their ranges.
    """

    env: Mapping[str, int]
    device_bytes: int
    activation_bytes: int
    everywhere: bool
    host_bytes: int = 0


@dataclass(frozen=True)
class ProvenPlan:
    """Every obligation is proven. `proven` carries the widest of `bounds` that holds.

    `beyond` shows a step over budget at other sizes than the sample, where there is one.
    `assuming` is what the proof rests on and does not cover.
    """

    proven: Proven
    bounds: tuple[Bound, ...]
    beyond: tuple[Diagnostic, ...] = ()
    assuming: tuple[Assumption, ...] = ()


@dataclass(frozen=True)
class Largest:
    """`value` of `symbol` is the largest for which the budgets hold, with `bound`.

    `gap` shows a smaller value that breaks them; without one they hold for all smaller
    values, proven. `blocked` shows the steps that break them at the next value; it is
    empty at the end of the range.
    """

    symbol: str
    value: int
    bound: Bound
    gap: tuple[Diagnostic, ...]
    blocked: tuple[Diagnostic, ...]
    assuming: tuple[Assumption, ...] = ()


@dataclass(frozen=True)
class Refuted:
    """An obligation does not hold; each diagnostic is a counter-example."""

    diagnostics: tuple[Diagnostic, ...]


@dataclass(frozen=True)
class Disagreement(Refuted):
    """The solver proves what the independent checker refuses (FB0817): a fault of this package.

    `report` holds both opinions and the text of the plan. Never to be taken as proven.
    """

    report: str = ""


@dataclass(frozen=True)
class Undecided:
    """Neither proven nor refuted; never to be taken as proven.

    `diagnostics` are empty where only the time was short.
    """

    why: str
    diagnostics: tuple[Diagnostic, ...] = ()


Verdict = ProvenPlan | Refuted | Undecided
