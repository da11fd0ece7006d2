"""Measured bytes at a few assignments of the symbols -> an expression over their range."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from .._torch.instances import Instances
from ..ir.diagnostics import Diagnostic, FBError
from ..ir.expr import Const, Expr, Sym, add, evaluate, mul
from ..ir.graph import CNode
from ..ir.program import Program
from ._meter import Meter, Sample
from ._stores import layouts_at, materialise

__all__ = ["Corners", "Point", "bound"]

Point = tuple[Mapping[str, int], int]
"""An assignment of the symbols and the bytes measured there."""


def bound(points: Sequence[Point], candidates: Iterable[Expr]) -> Expr:
    """An expression that is exact at the sample, `points[0]`, and no less at the others.

    In this order: a constant, one of `candidates` (sizes that the operator reads or writes)
    that fits every point, with one symbol the steepest line through the sample, else
    the largest value.
    """
    env, at_sample = points[0]
    if all(value == at_sample for _, value in points):
        return Const(at_sample)
    for candidate in candidates:
        if all(evaluate(candidate, at) == value for at, value in points):
            return candidate
    varying = [name for name in env if any(at[name] != env[name] for at, _ in points)]
    if len(varying) == 1:
        return _line(varying[0], points)
    return Const(max(value for _, value in points))


def _line(name: str, points: Sequence[Point]) -> Expr:
    """`slope * name + offset` through the sample and above the other points.

    Points right of the sample bound the slope from below, those left of it from above;
    where the two contradict each other, the largest value is the bound.
    """
    start, at_sample = points[0][0][name], points[0][1]
    others = [(at[name] - start, value - at_sample) for at, value in points[1:]]
    slope = max((-(-rise // run) for run, rise in others if run > 0), default=None)
    if slope is None:
        slope = min((rise // run for run, rise in others if run < 0), default=0)
    if any(slope * run < rise for run, rise in others):
        return Const(max(value for _, value in points))
    return add(mul(Const(slope), Sym(name)), Const(at_sample - slope * start))


class Corners:
    """Measures cNodes at the two ends of the symbols' range, all low and all high."""

    def __init__(self, program: Program, meter: Meter, available_bytes: int):
        self._program = program
        self._meter = meter
        self._available = available_bytes
        self._samples: dict[object, Sample] = {}
        low = {s.name: s.low for s in program.symbols}
        high = {s.name: s.high for s in program.symbols}
        self.envs = [env for env in (low, high) if env != program.sample]

    def measure(
        self, c: CNode, execution: int, layouts: Instances
    ) -> list[tuple[Mapping[str, int], Sample]]:
        """A sample per end. Raises FBError FB0908 where the range is too wide to measure."""
        return [(env, self._at(c, execution, layouts, env)) for env in self.envs]

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
        raise FBError(
            Diagnostic(
                "FB0908",
                f"the workspace of {c.name} ({c.call.op}) cannot be measured at {at}: that "
                f"takes {needed} bytes, and {self._available} are free",
                c.span,
                hint="declare a smaller upper end for the dynamic dimensions",
            )
        )
