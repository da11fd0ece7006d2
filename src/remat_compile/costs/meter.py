"""Measures one execution of a cNode: bytes of its results, workspace, time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ..device.caches import StepCaches
from ..device.devices import (
    clock_ns,
    counts_bytes,
    get_rng_state,
    queue_length,
    synchronize,
    undisturbed_ns,
)
from ..device.memory import measure_peak
from ..ir.analysis.regions import region_function
from ..ir.diagnostics import fail
from ..ir.graph import Arg, CNode, Ref, View
from ..operators.instances import Instances, prepared, run_cnode
from ._roofline import value_of

_LEAST_REPEATS = 3
_MOST_REPEATS = 30
_MOST_COLD = 12
"""Limit where caches are left as a step does, which takes longer than most operators."""
_ENOUGH_S = 0.02
_EQUAL = 1.03
"""The least time is known where another run took no longer than so many times it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Sample of one signature: workspace in bytes over the storages of the results that are used,
    time, and those results as tensors without data."""

    workspace_bytes: int
    time_ns: int
    results: tuple[Tensor | None, ...]


class Meter:
    """Measures each signature once and remembers it.

    A signature is the operator with its arguments, where a tensor counts by dtype, shape,
    strides, offset and bytes of storage. Repeated timing takes `time_limit_s` in all;
    what comes later is timed once. With `caches`, each run of a cNode finds those as a step leaves
    them; else the step's tensors are at hand.
    """

    def __init__(
        self,
        device: torch.device,
        granularity_bytes: int,
        time_limit_s: float,
        caches: StepCaches | None = None,
    ):
        self.device = device
        self._caches = caches
        self.samples: dict[object, Sample] = {}
        self._deriving: dict[str, int] = {}
        self._granularity = granularity_bytes
        self._left_s = time_limit_s

    def signature(self, c: CNode, execution: int, instances: Instances) -> object:
        """The key under which an execution is measured."""
        call = c.call_at(execution)
        writes = c.writes if execution == 1 or c.replay is None else c.replay.writes

        def keyed(arg: Arg) -> object:
            if isinstance(arg, Ref):
                t = instances[arg.name]
                storage = t.untyped_storage().nbytes()
                return t.dtype, tuple(t.shape), t.stride(), t.storage_offset(), storage
            if isinstance(arg, tuple):
                return tuple(keyed(part) for part in arg)
            # 1, 1.0 and True are equal in Python and different to an operator.
            return type(arg), value_of(arg, instances.env)

        return (
            call.op,
            region_function(c) if call.region else None,
            tuple(keyed(arg) for arg in call.args),
            tuple((key, keyed(arg)) for key, arg in call.kwargs),
            tuple(name is None for name in writes),
            c.token is not None and execution > 1,
        )

    def measure(
        self, c: CNode, execution: int, instances: Instances, *, timed: bool = True
    ) -> tuple[Sample, tuple[Tensor | None, ...]]:
        """Runs the execution under the profiler; the sample, and its results.

        Raises FBError FB0909 when the operator fails.
        """
        state = get_rng_state(self.device) if c.token is not None and execution > 1 else None

        def run() -> tuple[Tensor | None, ...]:
            return run_cnode(c, execution, instances, token=state, device=self.device)

        with _named_failure(c, execution):
            if counts_bytes(self.device) and not c.is_accumulate:
                run()  # libraries keep what they allocate on first use
            results, use = measure_peak(run, self.device)
            time_ns = 0
            if timed:
                bare = (
                    _on_scratch(c, instances)
                    if c.is_accumulate
                    else prepared(c, execution, instances, token=state, device=self.device)
                )
                time_ns = self._time_ns(bare, self._leaver(c, execution, instances))
        own = 0 if c.is_accumulate else sum(self._rounded(t) for t in results if t is not None)
        workspace = max(0, use.peak_bytes_over_entry - own)
        shadows = tuple(None if t is None else without_data(t) for t in results)
        return Sample(workspace, time_ns, shadows), results

    def deriving_ns(self, view: View, instances: Instances) -> int:
        """The time of a view, by its operator: it moves no bytes, whatever its sizes. FB0904 for
        what is no view."""
        _ = instances[view.name]
        if view.call.op not in self._deriving:
            self._deriving[view.call.op] = self._time_ns(instances.deriving(view))
        return self._deriving[view.call.op]

    def run(self, c: CNode, instances: Instances) -> tuple[Tensor | None, ...]:
        """Runs a first execution without measuring. Raises as `measure` does."""
        with _named_failure(c, 1):
            return run_cnode(c, 1, instances, token=None, device=self.device)

    def _rounded(self, tensor: Tensor) -> int:
        unit = self._granularity
        return -(-tensor.untyped_storage().nbytes() // unit) * unit

    def _leaver(self, c: CNode, execution: int, instances: Instances) -> Callable[[], None] | None:
        if self._caches is None:
            return None
        return self._caches.leaver({n: instances[n] for n in c.call_at(execution).refs()})

    def _time_ns(self, run: Callable[[], object], leave: Callable[[], None] | None = None) -> int:
        """The least of several runs, in nanoseconds: whatever else the machine does adds. Each is
        after `leave`, which does not count.

        On an accelerator a run is one of several in its queue, as in a step: what it takes is
        the longer of issuing and computing it.
        """
        times: list[int] = []
        most = _MOST_REPEATS if leave is None else _MOST_COLD
        spent, running, queued, clock = 0.0, 0.0, 1, clock_ns(self.device)
        while True:
            synchronize(self.device)
            begin = time.perf_counter()
            if leave is not None:
                leave()
            ready, start = time.perf_counter(), clock()
            for _ in range(queued):
                run()
            synchronize(self.device)
            times.append((clock() - start) // queued)
            end = time.perf_counter()
            spent, running = spent + end - begin, running + end - ready
            least = sorted(times)[:2]
            known = running >= _ENOUGH_S or (leave is not None and least[-1] <= _EQUAL * least[0])
            enough = len(times) >= _LEAST_REPEATS and known
            if enough or len(times) == most or spent >= self._left_s / 4:
                break
            if counts_bytes(self.device):
                queued = queue_length(min(times))
        self._left_s -= spent
        if self._left_s <= 0:
            return min(times)
        begin = time.perf_counter()
        least_ns = undisturbed_ns(min(times), run, self.device, leave=leave)
        self._left_s -= time.perf_counter() - begin
        return least_ns


def _on_scratch(c: CNode, instances: Instances) -> Callable[[], object]:
    """An accumulation into a copy: repeating it must not change the values."""
    into, part = (instances[name] for name in c.call.refs())
    scratch = into.clone()
    return lambda: scratch.add_(part)


def without_data(tensor: Tensor) -> Tensor:
    """The same dtype, shape, strides and bytes of storage on the meta device."""
    elements = tensor.untyped_storage().nbytes() // tensor.itemsize
    storage = torch.empty(elements, dtype=tensor.dtype, device="meta")
    return storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def with_data(shadow: Tensor, device: torch.device) -> Tensor:
    """A tensor like the shadow: numbers in (0.1, 1), integers and booleans 0 (an index that
    is always valid)."""
    elements = shadow.untyped_storage().nbytes() // shadow.itemsize
    storage = torch.empty(elements, dtype=shadow.dtype, device=device)
    if shadow.dtype.is_floating_point and shadow.itemsize > 1:
        storage.uniform_(0.1, 1)
    else:
        storage.zero_()
    return storage.as_strided(shadow.shape, shadow.stride(), shadow.storage_offset())


@contextmanager
def _named_failure(c: CNode, execution: int) -> Iterator[None]:
    """Turns an operator's error into FB0909; running out of device memory passes."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, IndexError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        where = f" (from {c.loc})" if c.loc is not None else ""
        op = c.call_at(execution).op
        fail(
            "FB0909",
            f"{c.name}{where}: {op} failed while it was measured: {reason}",
            c.span,
            hint="use roofline costs, or sample inputs that the operator accepts",
        )
