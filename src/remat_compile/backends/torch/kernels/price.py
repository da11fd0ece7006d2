"""What a region costs as one kernel of Inductor, measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...._torch.devices import synchronize
from ...._torch.instances import plain_mode
from ....ir.analysis.regions import region_function
from ....ir.graph import FUSED_OP, Call, CNode, InnerCall, Ref
from .inductor import KernelError, Layout, trace
from .made import Kernels, as_function, made_up

__all__ = ["InductorPrice", "KernelCost"]

_MOST_REPEATS = 15
_ENOUGH_S = 0.02


@dataclass(frozen=True, slots=True)
class KernelCost:
    """Nanoseconds, and bytes beside the results."""

    time_ns: int
    workspace_bytes: int


@dataclass
class InductorPrice:
    """Prices regions until `time_limit_s` is spent, and none after that (`is_late`).

    `values` has a tensor, maybe without values, for every name that a region may be given.
    """

    kernels: Kernels
    values: dict[str, Tensor]
    time_limit_s: float
    is_late: bool = False
    _spent_s: float = 0.0
    _generated: dict[str, bool] = field(default_factory=dict)
    _costs: dict[int, KernelCost] = field(default_factory=dict)
    """By kernel, all of which `kernels` holds: equal blocks share one."""

    def add(self, origin: Mapping[str, str]) -> None:
        """New names for what is like something that is known."""
        self.values |= {new: self.values[name] for new, name in origin.items()}

    def may_fuse(self, c: CNode) -> bool:
        """Whether Inductor generates code for the operator, rather than calling a library."""
        if c.is_fused or c.is_accumulate:
            return True
        if c.is_loss or c.token is not None or c.replay is not None:
            return False
        call = Call(FUSED_OP, tuple(map(Ref, c.call.refs())))
        inner = InnerCall(c.writes, c.call)
        alone = CNode("alone", "fwd", c.results, Call(call.op, call.args, (), (inner,)))
        function = region_function(alone)
        layouts = tuple(Layout.of(self.values[name]) for name in c.call.refs())
        key = repr((function, layouts))
        if key not in self._generated:
            try:
                with plain_mode(self.kernels.device):
                    self._generated[key] = trace(as_function(function), layouts).is_generated
            except KernelError:
                self._generated[key] = False
        return self._generated[key]

    def cost(self, c: CNode) -> KernelCost | None:
        """Of the kernel of a fused cNode; None where there is none."""
        if self.is_late:
            return None
        start = time.perf_counter()
        kernel = self.kernels.kernel(c, [self.values[name] for name in c.call.refs()])
        cost = None if kernel is None else self._costs.get(id(kernel))
        if kernel is not None and cost is None:
            with plain_mode(self.kernels.device):  # a capture may be open, whose tensors are fake
                args = [made_up(layout) for layout in kernel.layouts]
                time_ns = _least_ns(lambda: kernel(*args), self.kernels.device)
            cost = self._costs[id(kernel)] = KernelCost(time_ns, kernel.workspace_bytes)
        self._spent_s += time.perf_counter() - start
        self.is_late = self._spent_s > self.time_limit_s
        return cost


def _least_ns(run: Callable[[], object], device: torch.device) -> int:
    """The least of several runs: whatever else the machine does adds."""
    times: list[int] = []
    while len(times) < 3 or (len(times) < _MOST_REPEATS and sum(times) < _ENOUGH_S * 1e9):
        start = time.perf_counter_ns()
        run()
        synchronize(device)
        times.append(time.perf_counter_ns() - start)
    return min(times)
