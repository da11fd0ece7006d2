"""Storages that a measuring run keeps between cNodes: real tensors, or only their layouts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from ..ir.expr import evaluate
from ..ir.graph import CNode
from ..ir.program import Program
from ..operators.executor import ones, result_names
from ..operators.instances import Instances
from .meter import Meter, Sample, with_data, without_data


class Store(Protocol):
    """Runs a graph in the order of capture, one cNode at a time."""

    layouts: Instances
    """Current instances by name, for signatures; with or without data."""

    def run(self, c: CNode, execution: int, meter: Meter, *, keep: bool) -> Sample: ...

    def loss(self, c: CNode) -> None: ...


class RealRun:
    """Holds real tensors: every cNode runs, a signature seen before unmeasured."""

    def __init__(self, program: Program, values: Mapping[str, Tensor]):
        self._program = program
        self.layouts = Instances(program.graph, program.sample, values)

    def run(self, c: CNode, execution: int, meter: Meter, *, keep: bool) -> Sample:
        key = meter.signature(c, execution, self.layouts)
        sample = meter.samples.get(key)
        if sample is None:
            sample, results = meter.measure(c, execution, self.layouts)
            meter.samples[key] = sample
        elif keep:
            results = meter.run(c, self.layouts)
        if keep:
            _put(self.layouts, c, results)
        return sample

    def loss(self, c: CNode) -> None:
        _tangents(self._program, self.layouts, c, self._program.header.device)


class LayoutStore:
    """Holds shapes and strides only, for steps that do not fit the device: a signature runs
    once, on tensors made for it; others take its results' layouts over."""

    def __init__(self, program: Program, values: Mapping[str, Tensor]):
        self._program = program
        self._values = values
        shadows = {name: without_data(value) for name, value in values.items()}
        self.layouts = Instances(program.graph, program.sample, shadows)

    def run(self, c: CNode, execution: int, meter: Meter, *, keep: bool) -> Sample:
        key = meter.signature(c, execution, self.layouts)
        sample = meter.samples.get(key)
        if sample is None:
            bases = self._program.graph.reads(c, execution)
            real = materialise(self._program, self.layouts, bases, self._values, meter.device)
            sample, _ = meter.measure(c, execution, real)
            meter.samples[key] = sample
        if keep:
            _put(self.layouts, c, sample.results)
        return sample

    def loss(self, c: CNode) -> None:
        _tangents(self._program, self.layouts, c, "meta")


def materialise(
    program: Program,
    layouts: Instances,
    bases: Iterable[str],
    values: Mapping[str, Tensor],
    device: torch.device,
) -> Instances:
    """Real tensors for the aNodes `bases`: the caller's own, others filled."""
    tensors = {
        name: values[name] if name in values else with_data(layouts[name], device) for name in bases
    }
    return Instances(program.graph, layouts.env, tensors)


def layouts_at(
    program: Program, sample: Instances, bases: Iterable[str], env: Mapping[str, int]
) -> Instances:
    """The layouts of the aNodes `bases` at another assignment of the symbols: dense, with
    the axes in the order they have in memory at the sample."""
    layouts = {}
    for name in bases:
        tensor = sample[name]
        node = program.graph.anode[name]
        shape = [evaluate(extent, env) for extent in node.shape]
        strides = tensor.stride()
        order = sorted(range(len(shape)), key=strides.__getitem__, reverse=True)
        dense = torch.empty([shape[axis] for axis in order], dtype=tensor.dtype, device="meta")
        layouts[name] = dense.permute([order.index(axis) for axis in range(len(shape))])
    return Instances(program.graph, env, layouts)


def _put(layouts: Instances, c: CNode, results: tuple[Tensor | None, ...]) -> None:
    if c.is_accumulate:
        layouts.drop(c.call.refs()[0])
    for name, result in zip(c.writes, results, strict=True):
        if name is not None and result is not None:
            layouts.put(name, result)


def _tangents(program: Program, layouts: Instances, c: CNode, device: str) -> None:
    results = {name: layouts[name] for name in result_names(program)}
    tangents = ones(program, layouts.env, device)(results)
    for name in c.results:
        layouts.put(name, tangents[name])
