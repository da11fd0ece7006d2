"""The price of a region as one kernel of Inductor: measured beside its calls.

The plan's times were measured before, in other company. So what counts is the share of the time of
its calls that a kernel takes when both run in turn; its price is that share of theirs in the plan.
Both find the caches as a step leaves them (`device/caches.py`), and each call is timed by itself.
"""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....device.caches import StepCaches
from ....device.devices import clock_ns, counts_bytes, queued_ns, synchronize, undisturbed_ns
from ....ir.analysis.regions import RegionFunction, region_function
from ....ir.graph import FUSED_OP, Call, CNode, InnerCall, Ref
from ....operators.aten import to_torch
from ....operators.callable import callable_op
from ....operators.instances import plain_mode
from .inductor import KernelError, Layout, trace
from .made import Kernel, Kernels, as_function, made_up, written

_LEAST_REPEATS, _MOST_REPEATS = 3, 15
_ENOUGH_S = 0.1

AT_ONCE = 4
"""Kernels that are compiled beside each other: by so many the time limit may be overrun, since
compilers that were begun are waited for."""


@dataclass(frozen=True, slots=True)
class KernelCost:
    """Nanoseconds, on the scale of the plan's other times, and bytes beside the results."""

    time_ns: int
    workspace_bytes: int


class KernelTimes(NamedTuple):
    """The least nanoseconds of a kernel, and of its calls one after the other."""

    kernel_ns: int
    calls_ns: int

    def at(self, planned_ns: int | None) -> int:
        """Return the price of the kernel where its calls are planned to take so many
        nanoseconds."""
        if planned_ns is None:
            return self.kernel_ns
        return max(1, round(planned_ns * self.kernel_ns / max(1, self.calls_ns)))

    def calls_at(self, priced_ns: int) -> int:
        """Return the price of its calls where it has one: what `at` was given."""
        return max(1, round(priced_ns * self.calls_ns / max(1, self.kernel_ns)))


@dataclass
class InductorPrice:
    """Prices regions until `time_limit_s` is spent, and none after that (`is_late`): to write
    kernels, to wait for compilers and to measure. What compilers do beside planning is not counted.

    `values` has a tensor, maybe without values, for every name that a region may be given, in the
    order in which a step makes them; `origin` says of which of the first ones a name that was added
    is another instance. What is to `run_once` stays outside of regions, which may make it again.
    `times` are those of kernels that were measured, here or before, by digests of what they compute
    and of which tensors: equal blocks share one.
    """

    kernels: Kernels
    values: dict[str, Tensor]
    time_limit_s: float
    is_late: bool = False
    run_once: Set[str] = frozenset()
    origin: dict[str, str] = field(default_factory=dict)
    times: dict[str, KernelTimes] = field(default_factory=dict)
    _spent_s: float = 0.0
    _generated: dict[str, bool] = field(default_factory=dict)
    _queue: deque[CNode] = field(default_factory=deque)
    """Kernels that will be asked for, and are not begun yet."""
    _caches: StepCaches = field(init=False)

    def __post_init__(self) -> None:
        step_bytes = sum(t.numel() * t.itemsize for t in self.values.values())
        self._caches = StepCaches(self.kernels.device, step_bytes, self.values)

    def add(self, origin: Mapping[str, str]) -> None:
        """New names for what is like something that is known."""
        self._caches.note(new for new in origin if new not in self.values)
        self.values |= {new: self.values[name] for new, name in origin.items()}
        self.origin |= {new: self.origin.get(name, name) for new, name in origin.items()}

    def may_fuse(self, c: CNode) -> bool:
        """Return whether Inductor generates code for the operator, rather than calling a
        library."""
        if c.is_fused or c.is_accumulate:
            return True
        if c.is_loss or c.token is not None or c.replay is not None or c.name in self.run_once:
            return False
        if not self.values.keys() >= {*c.call.refs()}:  # of an optimizer
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
        """Return the cost of the kernel of a fused cNode, whose own time is that of its calls; None
        where there is no kernel."""
        if self.is_late:
            return None
        given = self._given(c)
        digest = _digest(self.kernels.text(c, given))
        if self.kernels.known(c, given) is None:
            with self._counted():
                self.kernels.begin(c, given)  # beside what follows in the queue
            if self.kernels.compiling:
                self.begin_more()
        with self._counted():
            if digest not in self.times:
                self.kernels.wait()  # compilers would take the time of what is measured
            kernel = self.kernels.kernel(c, given)
            if kernel is not None and digest not in self.times:
                try:
                    self.times[digest] = self._measured(kernel, c)
                except torch.OutOfMemoryError:
                    self.kernels.give_up(c, given)
                    kernel = None
        if kernel is None:
            return None
        return KernelCost(self.times[digest].at(c.time_ns), kernel.workspace_bytes)

    def calls_ns(self, c: CNode) -> int | None:
        """Return the planned time of the calls of a cNode: of one that was fused and priced before,
        whose own time is that of its kernel, as well."""
        if not c.is_fused or c.time_ns is None:
            return c.time_ns
        times = self.times.get(_digest(self.kernels.text(c, self._given(c))))
        return c.time_ns if times is None else times.calls_at(c.time_ns)

    def prepare(self, cnodes: Iterable[CNode]) -> None:
        """Notes kernels whose costs will be asked for, and begins to compile the first of them."""
        self._queue += cnodes
        self.begin_more()

    def begin_more(self) -> None:
        """Begins to compile what will be asked for, until `AT_ONCE` are being compiled: before a
        wait, and before something else is done beside compilers."""
        while self._queue and self.kernels.compiling < AT_ONCE and not self.is_late:
            c = self._queue.popleft()
            with self._counted():
                self.kernels.begin(c, self._given(c))

    def _measured(self, kernel: Kernel, c: CNode) -> KernelTimes:
        device = self.kernels.device
        with plain_mode(device):  # a capture may be open: its tensors are fake
            if counts_bytes(device):
                return _measured_in_queue(kernel, c, device)
            return _measured(kernel, c, device, self._caches)

    def _given(self, c: CNode) -> list[Tensor]:
        return [self.values[name] for name in c.call.refs()]

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count the time of what is done inside as time for prices."""
        start = time.perf_counter()
        yield
        self._spent_s += time.perf_counter() - start
        self.is_late = self._spent_s > self.time_limit_s


def _measured(kernel: Kernel, c: CNode, device: torch.device, caches: StepCaches) -> KernelTimes:
    """The least of several runs in turn, of the kernel of a fused cNode and of each of its calls:
    whatever else the machine does adds.

    Results live until the next ones are there: else an allocator that gives large blocks back to
    the system at once measures page faults, of which a step has few.
    """
    function = region_function(c)
    args = [made_up(layout) for layout in kernel.layouts]
    leave = caches.leaver(dict(zip(c.call.refs(), args, strict=True)))
    clock, run = clock_ns(device), kernel.runner()
    of_kernel: list[int] = []
    of_calls: list[list[int]] = []
    calls = _prepared(function)
    held: list[object] = [None, None]
    begin = time.perf_counter()
    while len(of_kernel) < _LEAST_REPEATS or (
        len(of_kernel) < _MOST_REPEATS and time.perf_counter() - begin < _ENOUGH_S
    ):
        leave()
        start = clock()
        made = run(*args)
        synchronize(device)
        of_kernel.append(clock() - start)
        held[0] = made
        leave()
        named = dict(zip(function.parameters, args, strict=True))
        times, held[1] = _timed(calls, named, device)
        of_calls.append(times)
    calls_ns = sum(map(min, zip(*of_calls, strict=True)))
    return KernelTimes(
        undisturbed_ns(min(of_kernel), partial(run, *args), device, leave=leave),
        undisturbed_ns(calls_ns, partial(kernel.calls, *args), device, leave=leave),
    )


def _measured_in_queue(kernel: Kernel, c: CNode, device: torch.device) -> KernelTimes:
    """The same on an accelerator, where each is one of several in its queue, as in a step and as
    the plan's own times were taken."""
    function = region_function(c)
    args = [made_up(layout) for layout in kernel.layouts]
    values = dict(zip(function.parameters, args, strict=True))
    calls_ns = 0
    for inner, run in _prepared(function):
        given = to_torch(inner.call.args, {}, values)
        kwargs = {key: to_torch(value, {}, values) for key, value in inner.call.kwargs}
        call = partial(run, *given, **kwargs)
        values.update(written(inner, call()))
        calls_ns += queued_ns(call, device)
    return KernelTimes(queued_ns(partial(kernel.runner(), *args), device), calls_ns)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


_PreparedCall = tuple[InnerCall, Callable[..., Any]]


def _prepared(function: RegionFunction) -> list[_PreparedCall]:
    """The calls of a region with what runs them in a step."""
    return [(inner, callable_op(inner.call.op)._op) for inner in function.calls]


def _timed(
    calls: Sequence[_PreparedCall], values: dict[str, Tensor], device: torch.device
) -> tuple[list[int], object]:
    """The nanoseconds of each call, run one after the other; and all values, to be held."""
    clock = clock_ns(device)
    times: list[int] = []
    for inner, run in calls:
        given = to_torch(inner.call.args, {}, values)
        kwargs = {key: to_torch(value, {}, values) for key, value in inner.call.kwargs}
        start = clock()
        made = run(*given, **kwargs)
        synchronize(device)
        times.append(clock() - start)
        values.update(written(inner, made))
    return times, values
