"""Measured costs: one real run of the graph on this device, each signature timed once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor

from ..device.caches import StepCaches
from ..device.devices import allocation_unit, get_rng_state, set_rng_state
from ..ir.analysis.order import capture_order, frees_after_last_use
from ..ir.expr import Const, Expr, evaluate, mul
from ..ir.graph import DTYPE_BYTES, Call, CNode, Replay
from ..ir.program import Header, Program, Target
from ..ir.rewrites.identities import equal_views, identities
from ..ir.schedule import Free, Schedule
from ..ir.semantics.simulate import simulate
from ..operators.callable import check_operators
from ..operators.executor import check_values, ones, result_names
from ..operators.instances import Instances, plain_mode
from ._symbolic import Corners, Point, at_least, bound, materialise
from .measured_link import with_measured_link
from .meter import Meter, Sample, without_data

SAID_EACH = 50
"""Computations after which the progress is told."""


def measured(
    program: Program,
    values: Mapping[str, Tensor],
    *,
    time_limit_s: float = 10.0,
    hold_tensors: bool | None = None,
    progress: Callable[[str], None] | None = None,
) -> Program:
    """The program with real sizes, workspaces and times of this device.

    `values` are the tensors of everything the caller holds, by aNode name; they are only
    read, and the random state is put back. Timing takes `time_limit_s` besides one run
    of each signature. The step is run as a whole; where it does not fit the device (or
    with `hold_tensors=False`) each signature runs alone on tensors made for it.

    Where symbols have a range, sizes and workspace are measured over the range too, each
    signature alone. A random operator gets a replay form of its own when replaying costs
    more memory than running (the generator's state is saved meanwhile).

    Raises FBError FB0903 inside a profiler, FB0904 and FB0905 where tensors do not fit the
    graph, FB0908 for a range that is too wide, FB0909 when an operator fails.
    """
    check_values(program, values, program.sample)
    device = torch.device(program.header.device)
    with plain_mode(device):
        program = replace(program, target=_target(program.target, device))
        hold = _fits(program, device) if hold_tensors is None else hold_tensors
        state = get_rng_state(device)
        try:
            return _MeasuringRun(program, values, time_limit_s, hold, progress).result()
        except torch.OutOfMemoryError:
            if not hold or hold_tensors:
                raise
            return _MeasuringRun(program, values, time_limit_s, False).result()
        finally:
            set_rng_state(state, device)


class Store:
    """Storages that a measuring run keeps between cNodes, in the order of capture: real tensors, or
    only their layouts.

    With `hold` every cNode runs, a signature seen before unmeasured. Else, for steps that do not
    fit the device, a signature runs once, on tensors made for it; others take over the layouts of
    its results. `layouts` has the current instances by name.
    """

    def __init__(self, program: Program, values: Mapping[str, Tensor], *, hold: bool):
        self._program, self._values, self._hold = program, values, hold
        kept = values if hold else {name: without_data(value) for name, value in values.items()}
        self.layouts = Instances(program.graph, program.sample, kept)

    def run(self, c: CNode, execution: int, meter: Meter, *, keep: bool) -> Sample:
        key = meter.signature(c, execution, self.layouts)
        sample, results = meter.samples.get(key), None
        if sample is None:
            instances = self.layouts
            if not self._hold:
                bases = self._program.graph.reads(c, execution)
                instances = materialise(self._program, instances, bases, self._values, meter.device)
            sample, results = meter.measure(c, execution, instances)
            meter.samples[key] = sample
        elif keep and self._hold:
            results = meter.run(c, self.layouts)
        if keep:
            self._put(c, results if self._hold and results is not None else sample.results)
        return sample

    def loss(self, c: CNode) -> None:
        """Enters what the loss gives: tangents of the step's results."""
        program = self._program
        results = {name: self.layouts[name] for name in result_names(program)}
        device = program.header.device if self._hold else "meta"
        tangents = ones(program, self.layouts.env, device)(results)
        for name in c.results:
            self.layouts.put(name, tangents[name])

    def _put(self, c: CNode, results: Sequence[Tensor | None]) -> None:
        if c.is_accumulate:
            self.layouts.drop(c.call.refs()[0])
        for name, result in zip(c.writes, results, strict=True):
            if name is not None and result is not None:
                self.layouts.put(name, result)


class _MeasuringRun:
    """One pass over the graph in the order of capture."""

    def __init__(
        self,
        program: Program,
        values: Mapping[str, Tensor],
        time_limit_s: float,
        hold: bool,
        progress: Callable[[str], None] | None = None,
    ):
        check_operators(program.graph)
        self.program = program
        self.progress = progress
        self.device = torch.device(program.header.device)
        granularity = program.target.granularity_bytes
        self.meter = Meter(self.device, granularity, time_limit_s, _caches(program, self.device))
        self.store = Store(program, values, hold=hold)
        self.corners = Corners(program, self.meter, _available_bytes(self.device) // 2)
        self.sizes: dict[str, Expr] = {}
        self.cnodes: dict[str, CNode] = {}
        self.derived: dict[str, set[str | Call]] = {}
        self.same = equal_views(program.graph, identities(program.graph))

    def result(self) -> Program:
        graph = self.program.graph
        for step in frees_after_last_use(graph, capture_order(graph)):
            if isinstance(step, Free):
                self.derived.pop(step.anode, None)
                self.store.layouts.drop(step.anode)
            elif graph.cnode[step.cnode].is_loss:
                self.store.loss(graph.loss)
                self.derived.clear()  # the backward is a function of its own
                self.cnodes[step.cnode] = replace(graph.loss, time_ns=0)
            else:
                if self.progress is not None and len(self.cnodes) % SAID_EACH == 0:
                    done = f"{len(self.cnodes)} of {len(graph.cnodes)}"
                    self.progress(f"measuring each computation: {done}")
                self._measure(graph.cnode[step.cnode])
        header = replace(
            self.program.header,
            costs="measured",
            threads=torch.get_num_threads(),
            torch_version=torch.__version__,
        )
        return self._filled(header)

    def _filled(self, header: Header) -> Program:
        graph = self.program.graph
        anodes = tuple(
            replace(a, size=self.sizes[a.name]) if a.name in self.sizes else a for a in graph.anodes
        )
        cnodes = tuple(self.cnodes[c.name] for c in graph.cnodes)
        filled = replace(graph, anodes=anodes, cnodes=cnodes)
        return replace(self.program, graph=filled, header=header, proven=())

    def _measure(self, c: CNode) -> None:
        deriving_ns = self._deriving_ns(c)
        first = self.store.run(c, 1, self.meter, keep=True)
        if c.is_accumulate:
            # Its storage is that of the sum so far, and it works in place.
            (name,), into = c.results, c.call.refs()[0]
            self.sizes[name] = self._size(into)
            workspace: Expr = Const(first.workspace_bytes)
            time_ns = first.time_ns + deriving_ns
            self.cnodes[c.name] = replace(c, workspace=workspace, time_ns=time_ns)
            return
        samples = self.corners.measure(c, 1, self.store.layouts, first)
        self._correct_sizes(c, samples)
        time_ns = first.time_ns + deriving_ns
        costed = replace(c, workspace=self._workspace(c, samples), time_ns=time_ns)
        if c.replay is not None or c.token is not None:
            again = self.store.run(c, 2, self.meter, keep=False)
            samples = self.corners.measure(c, 2, self.store.layouts, again)
            workspace, time_ns = self._workspace(c, samples), again.time_ns + deriving_ns
            costed = self._with_replay(costed, workspace, time_ns)
        if c.token is not None:
            self.sizes[c.token] = Const(get_rng_state(self.device).nbytes)
        self.cnodes[c.name] = costed

    def _deriving_ns(self, c: CNode) -> int:
        """The time of the views that `c` is the first to read: the code that runs derives a view
        where it is first read. On small models they are a third of a step."""
        graph, layouts = self.program.graph, self.store.layouts
        total, names = 0, list(c.call.refs())
        while names:
            name = names.pop()
            if (view := graph.view.get(self.same.get(name, name))) is None:
                continue
            known = self.derived.setdefault(graph.storage[view.name], set())
            # The parts of a `split` come from one call.
            key = view.name if view.index is None else view.call
            if key not in known:
                known.add(key)
                names += view.call.refs()
                total += self.meter.deriving_ns(view, layouts)
        return total

    def _with_replay(self, c: CNode, workspace: Expr, time_ns: int) -> CNode:
        if c.replay is None and workspace == c.workspace:
            return c
        form = c.replay or Replay(c.writes, c.call)
        return replace(c, replay=replace(form, workspace=workspace, time_ns=time_ns))

    def _correct_sizes(self, c: CNode, samples: Sequence[tuple[Mapping[str, int], Sample]]) -> None:
        """Bytes of the storages really written, where the capture has another number.

        They are never fewer than the declared shape takes, for any value of the symbols.
        """
        for index, name in enumerate(c.writes):
            if name is None:
                continue
            a = self.program.graph.anode[name]
            least = mul(Const(DTYPE_BYTES[a.dtype]), *a.shape)
            points: list[Point] = []
            for env, sample in samples:
                shadow = sample.results[index]
                if shadow is not None:
                    real = shadow.untyped_storage().nbytes()
                    points.append((env, max(real, evaluate(least, env))))
            size = self._size(name)
            if any(evaluate(size, env) != real for env, real in points):
                low = {s.name: s.low for s in self.program.symbols}
                fitted = bound(points, self._candidates(c))
                self.sizes[name] = at_least(fitted, least, low)

    def _workspace(self, c: CNode, samples: Sequence[tuple[Mapping[str, int], Sample]]) -> Expr:
        points: list[Point] = [(env, sample.workspace_bytes) for env, sample in samples]
        return bound(points, self._candidates(c))

    def _candidates(self, c: CNode) -> list[Expr]:
        graph = self.program.graph
        return [self._size(name) for name in (*c.results, *graph.reads(c))]

    def _size(self, name: str) -> Expr:
        return self.sizes.get(name, self.program.graph.anode[name].size)


def _caches(program: Program, device: torch.device) -> StepCaches | None:
    """Return the caches of the CPU. What the caller holds is not among what a step makes, and is
    not written: not even with its own values."""
    if device.type != "cpu":
        return None
    graph, env = program.graph, program.sample
    step_bytes = sum(evaluate(a.size, env) for a in graph.anodes)
    by_writer: dict[str, list[str]] = {c.name: [] for c in graph.cnodes}
    for name, base in graph.storage.items():
        if base in graph.writer:
            by_writer[graph.writer[base].name].append(name)
    return StepCaches(device, step_bytes, chain.from_iterable(by_writer.values()))


def _target(target: Target, device: torch.device) -> Target:
    """The device at hand, with its link, as the target, unless the program names another."""
    if target.memory_bytes is not None or target.has_link or device.type != "cuda":
        return target
    properties = torch.cuda.get_device_properties(device)
    actual = Target(
        properties.name, properties.total_memory, granularity_bytes=allocation_unit(device)
    )
    return with_measured_link(actual, device)


def _fits(program: Program, device: torch.device) -> bool:
    """Return whether the whole step, nothing recomputed, is small against the free memory."""
    graph = program.graph
    steps = frees_after_last_use(graph, capture_order(graph))
    trace = simulate(program, Schedule("captured", "", steps))
    return 2 * trace.activation_peak_bytes < _available_bytes(device)


def _available_bytes(device: torch.device) -> int:
    """Free memory of the device, as far as it is told; for the CPU, of the machine."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 8 * 2**30
