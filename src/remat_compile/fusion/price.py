"""Prices of regions as kernels, and the interface of who gives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..ir.analysis.regions import region_function
from ..ir.expr import Expr
from ..ir.graph import CNode


@dataclass(frozen=True, slots=True)
class Priced:
    """Price of a region as one kernel: nanoseconds, and bytes beside its results."""

    time_ns: int
    workspace: Expr


Price = Callable[[CNode], Priced | None]
"""The cost of a fused cNode (which comes with that of its calls, one after the other); None
where it is not to be fused. It is asked for once for a region with the same arguments."""


Prepare = Callable[[Sequence[CNode]], None]
"""Is given the cNodes of which prices will be asked for next."""


def price_key(c: CNode) -> str:
    """Return the key of a price."""
    return repr((region_function(c), c.call.args, c.workspace, c.time_ns))
