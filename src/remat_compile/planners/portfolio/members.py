"""The planners that `auto` runs on a graph, in order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...ir.diagnostics import FBError
from ...ir.schedule import Schedule
from ...ir.text.printer import format_schedule
from ..baselines.chen import Chen
from ..baselines.periodic import Periodic
from ..baselines.store_all import StoreAll
from ..chains.rotor import Rotor
from ..contract import Planner, Progress, makes_copies
from ..eviction.dtr import Dtr
from ..eviction.reorder import Reorder
from ..offload.autocapper import AutoCapper
from ..offload.offload_greedy import OffloadGreedy
from ..offload.pofo import Pofo
from ..offload.rk_pofo import RkPofo
from ..polish.polish import Polish
from ..programs.rk_checkmate import RkCheckmate
from ..registry import PlannerInfo, available
from .given import Given

SMALL, MIDDLE, LARGE, HUGE = 60, 420, 2000, 20_000
"""cNodes up to which exact formulations are expected to be proven, up to which they help
at all, from which on quick planners are no longer quick, and from which on few plan at all."""


@dataclass(frozen=True)
class PortfolioMember:
    """A planner and the share of the time left that it may take."""

    planner: Planner
    share: float = 1.0


_FOREIGN_SHARE = 0.3
_Table = tuple[tuple[str, float], ...]

_ON_SMALL: _Table = (
    ("rk-checkmate", 1.0),
    ("rotor", 0.5),
    ("rockmate", 0.5),
    ("moccasin", 0.5),
)
_ON_MIDDLE: _Table = (
    ("rockmate", 0.5),
    ("rk-checkmate", 1.0),
    ("dtr", 0.3),
    ("hiremate", 0.5),
    ("rotor", 0.3),
)
_ON_LARGE: _Table = (("rockmate", 0.7), ("dtr", 0.4), ("hiremate", 0.7), ("rotor", 0.3))

_ON_HUGE: _Table = (("hiremate", 0.7), ("dtr", 0.4))


def quick_members(cnodes: int) -> Iterator[Planner]:
    """Near-linear ones, which run in the caller's process. On a large graph `dtr` is left
    to the slow members, where it can be ended."""
    yield StoreAll()
    yield Chen()
    if cnodes <= LARGE:
        yield Periodic()
        yield Dtr(rounds=0)
        yield Reorder(Dtr(rounds=0))
    if cnodes <= SMALL:
        yield Dtr()


def quick_copying_members(cnodes: int) -> Iterator[Planner]:
    """The quick planners that copy to the host."""
    yield OffloadGreedy()
    if cnodes <= SMALL:
        yield AutoCapper()


def copying_members(cnodes: int) -> list[PortfolioMember]:
    """Slow ones that copy to the host, those that promise most first."""
    if cnodes > LARGE:
        return [PortfolioMember(AutoCapper(caps=3), 0.5)]
    capped = [] if cnodes <= SMALL else [PortfolioMember(AutoCapper(), 0.5)]
    return [
        *capped,
        PortfolioMember(RkPofo(), 0.5),
        PortfolioMember(Pofo(), 0.5),
        PortfolioMember(AutoCapper(Rotor()), 0.5),
    ]


def reordered_members(cnodes: int) -> list[PortfolioMember]:
    """Slow members where the order of capture is known to cost too much."""
    inner = RkCheckmate() if cnodes <= MIDDLE else Dtr()
    return [PortfolioMember(Reorder(inner), 0.5)]


def members(cnodes: int, report: Progress, *, copies: bool = False) -> list[PortfolioMember]:
    """The slow members for a graph of that size, those that promise most first, then the
    planners of other packages; of these that copy to the host only where `copies`. A name that is
    not registered is passed over."""
    sizes = ((SMALL, _ON_SMALL), (MIDDLE, _ON_MIDDLE), (HUGE, _ON_LARGE))
    table = next((table for most, table in sizes if cnodes <= most), _ON_HUGE)
    known = available()
    shares = dict(table)
    shares.update({name: _FOREIGN_SHARE for name, info in known.items() if not info.is_own})
    infos = [(known[name], share) for name, share in shares.items() if name in known]
    made = ((p, share) for info, share in infos for p in _with_defaults(info, report))
    return [PortfolioMember(p, share) for p, share in made if copies or not makes_copies(p)]


def _with_defaults(info: PlannerInfo, report: Progress) -> Iterator[Planner]:
    """The planner with its default options, if it has them."""
    try:
        yield info.load()()
    except (FBError, TypeError) as error:
        # A broken plug-in, or one that needs options, must not stop the others.
        report(f"auto: {info.name} left out: {error}")


def polisher(best: Schedule, seed: int, *, copies: bool) -> Polish:
    """`polish` on top of a plan that is already there; with `copies` it may get some."""
    return Polish(of=Given(format_schedule(best)), seed=seed, offload=copies)
