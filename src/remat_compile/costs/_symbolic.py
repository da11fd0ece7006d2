"""Measured bytes at a few assignments of the symbols -> an expression over their range."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import assert_never

import torch
from torch import Tensor

from ..ir.diagnostics import fail
from ..ir.expr import (
    Add,
    CeilDiv,
    Const,
    Expr,
    FloorDiv,
    Max,
    Mul,
    RoundUp,
    Sym,
    add,
    evaluate,
    max_of,
    mul,
)
from ..ir.graph import CNode
from ..ir.program import Program
from ..operators.instances import Instances
from .meter import Meter, Sample, with_data

_MOST_POINTS = 24

Point = tuple[Mapping[str, int], int]
"""An assignment of the symbols and the bytes measured there."""


def bound(points: Sequence[Point], candidates: Iterable[Expr]) -> Expr:
    """An expression that is no less than the bytes measured at any of `points`, the first of
    which is the sample.

    In this order: a constant; one of `candidates` (sizes that the operator reads or writes)
    or, with one symbol, a line that fits every point exactly; else, since the operator
    changes its kernel within the range, the line without negative terms that is least at
    the sample (it also covers a kernel of either side used a little earlier), or with
    several symbols the largest value.
    """
    env, at_sample = points[0]
    if all(value == at_sample for _, value in points):
        return Const(at_sample)
    for candidate in candidates:
        if all(evaluate(candidate, at) == value for at, value in points):
            return candidate
    varying = [name for name in env if any(at[name] != env[name] for at, _ in points)]
    if len(varying) > 1:
        return Const(max(value for _, value in points))
    (name,) = varying
    slope, offset = _line([(at[name], value) for at, value in points])
    return add(mul(Const(slope), Sym(name)), Const(offset))


def at_least(expr: Expr, least: Expr, low: Mapping[str, int]) -> Expr:
    """The greater of both; `expr` itself where that shows at the least symbols, `low`."""
    if expr == least or (
        isinstance(least, Const) and _rises(expr) and evaluate(expr, low) >= least.value
    ):
        return expr
    return max_of(expr, least)


def _rises(expr: Expr) -> bool:
    """Return whether no part is negative, so that nothing falls as a symbol grows."""
    match expr:
        case Const(value):
            return value >= 0
        case Sym():
            return True
        case Add(parts) | Mul(parts) | Max(parts):
            return all(map(_rises, parts))
        case FloorDiv(part, _) | CeilDiv(part, _) | RoundUp(part, _):
            return _rises(part)
        case _:
            assert_never(expr)


def _line(points: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Slope and offset of a line through or above all points, as `bound` says."""
    (n, at_n), *others = points
    for m, at_m in others:
        if m != n and (at_m - at_n) % (m - n) == 0:
            slope = (at_m - at_n) // (m - n)
            if all(value - at_n == slope * (k - n) for k, value in others):
                return slope, at_n - slope * n
    slopes = {0, *(-(-value // k) for k, value in points if k > 0)}
    slopes |= {-(-(v - w) // (k - m)) for k, v in points for m, w in points if k > m and v > w}
    lines = [(slope, max(0, *(v - slope * k for k, v in points))) for slope in slopes]
    return min(lines, key=lambda line: (line[0] * n + line[1], line[0]))


def materialise(
    program: Program,
    layouts: Instances,
    bases: Iterable[str],
    values: Mapping[str, Tensor],
    device: torch.device,
) -> Instances:
    """Real tensors for the aNodes `bases`: the caller's own where they lie there, others filled."""
    tensors = {
        name: values[name]
        if name in values and values[name].device == device
        else with_data(layouts[name], device)
        for name in bases
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


class Corners:
    """Measures cNodes at other assignments than the sample: all symbols low, all high, and
    half way (in ratio) between each of these and the sample."""

    def __init__(self, program: Program, meter: Meter, available_bytes: int):
        self._program = program
        self._meter = meter
        self._available = available_bytes
        self._samples: dict[object, Sample] = {}
        low = {s.name: s.low for s in program.symbols}
        high = {s.name: s.high for s in program.symbols}
        at = program.sample
        envs = [low, high, _between(low, at), _between(at, high)]
        self.envs = [env for i, env in enumerate(envs) if env != at and env not in envs[:i]]

    def measure(
        self, c: CNode, execution: int, layouts: Instances, at_sample: Sample
    ) -> list[tuple[Mapping[str, int], Sample]]:
        """A sample per assignment, the given one first. Where, with one symbol, they do not
        lie on one line, an operator changes its kernel: the places are then narrowed down.

        Raises FBError FB0908 where the range is too wide to measure.
        """

        def at(env: Mapping[str, int]) -> Sample:
            return self._at(c, execution, layouts, env)

        sample = self._program.sample
        samples: list[tuple[Mapping[str, int], Sample]] = [(sample, at_sample)]
        samples += [(env, at(env)) for env in self.envs]
        varying = [s.name for s in self._program.symbols if s.low != s.high]
        if len(varying) == 1:
            (name,) = varying
            points = {env[name]: one for env, one in samples}
            _refine(points, lambda n: at({**sample, name: n}))
            samples += [({**sample, name: n}, points[n]) for n in list(points)[len(samples) :]]
        return samples

    def _at(self, c: CNode, execution: int, layouts: Instances, env: Mapping[str, int]) -> Sample:
        bases = self._program.graph.reads(c, execution)
        self._check_room(c, bases, env)
        shadows = layouts_at(self._program, layouts, bases, env)
        key = self._meter.signature(c, execution, shadows)
        if key not in self._samples:
            none: Mapping[str, Tensor] = {}
            real = materialise(self._program, shadows, bases, none, self._meter.device)
            self._samples[key], _ = self._meter.measure(c, execution, real, timed=False)
        return self._samples[key]

    def _check_room(self, c: CNode, bases: Iterable[str], env: Mapping[str, int]) -> None:
        anode = self._program.graph.anode
        needed = 2 * sum(evaluate(anode[name].size, env) for name in (*bases, *c.results))
        if needed <= self._available:
            return
        at = ", ".join(f"{name} = {value}" for name, value in env.items())
        fail(
            "FB0908",
            f"the workspace of {c.name} ({c.call.op}) cannot be measured at {at}: that "
            f"takes {needed} bytes, and {self._available} are free",
            c.span,
            hint="declare a smaller upper end for the dynamic dimensions",
        )


def _refine(points: dict[int, Sample], measure: Callable[[int], Sample]) -> None:
    """Adds points until each stretch between neighbours is a line through its middle, or
    spans one step, or there are `_MOST_POINTS`."""
    ordered = sorted(points)
    stretches = list(pairwise(ordered))
    if _on_a_line([(n, points[n]) for n in ordered]):
        return
    while stretches and len(points) < _MOST_POINTS:
        low, high = stretches.pop(stretches.index(max(stretches, key=lambda s: s[1] - s[0])))
        if high - low < 2:
            return
        middle = (low + high) // 2
        points[middle] = measure(middle)
        if not _on_a_line([(n, points[n]) for n in (low, middle, high)]):
            stretches += [(low, middle), (middle, high)]


def _on_a_line(points: Sequence[tuple[int, Sample]]) -> bool:
    """Return whether workspace and every storage grow evenly over the points, in rising order."""
    rows = [(n, *_bytes_of(sample)) for n, sample in points]
    (first, *at_first), (last, *at_last) = rows[0], rows[-1]
    return all(
        (value - start) * (last - first) == (end - start) * (n - first)
        for n, *values in rows
        for value, start, end in zip(values, at_first, at_last, strict=True)
    )


def _bytes_of(sample: Sample) -> list[int]:
    sizes = [0 if t is None else t.untyped_storage().nbytes() for t in sample.results]
    return [sample.workspace_bytes, *sizes]


def _between(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {name: math.isqrt(a[name] * b[name]) for name in a}
