"""The cost of a region in XLA: it is compiled by itself, and its temporary bytes are its workspace.

Which computations may stand in a region is measured too: one whose compiled program, by itself,
holds nothing but what XLA:CPU generates loops for. Products, convolutions, sorts, scatters and
calls of libraries keep what they read and write in memory, so they stay outside.

    gelu(x) * y      one loop: nothing lies between     workspace 0
    softmax(x)       the largest values and the sums of the rows lie between
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from ....ir.analysis.regions import RegionFunction, region_function
from ....ir.expr import evaluate
from ....ir.graph import FUSED_OP, Call, CNode, InnerCall, Ref
from ..lowerings import is_random, table
from ..observe.buffers import XlaFigures
from ..runtime.interpret import as_function
from .shapes import Shapes

_OPCODE = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = (?:\([^)]*\)|\S+) ([\w-]+)\(", re.M)
_CALLS_LIBRARY = re.compile(r"kind=kCustom|custom_call_target=")

LOOPS = frozenset(
    (
        *("parameter", "constant", "fusion", "tuple", "get-tuple-element", "call", "bitcast"),
        *("bitcast-convert", "broadcast", "concatenate", "copy", "dynamic-slice", "gather"),
        *("iota", "pad", "reduce", "reshape", "reverse", "slice", "transpose", "convert"),
        *("abs", "add", "and", "atan2", "cbrt", "ceil", "clamp", "compare", "cosine", "divide"),
        *("erf", "exponential", "exponential-minus-one", "floor", "is-finite", "log"),
        *("log-plus-one", "logistic", "maximum", "minimum", "multiply", "negate", "not", "or"),
        *("power", "remainder", "round-nearest-afz", "round-nearest-even", "rsqrt", "select"),
        *("shift-left", "shift-right-arithmetic", "shift-right-logical", "sign", "sine", "sqrt"),
        *("subtract", "tan", "tanh", "xor", "reduce-precision"),
    )
)
"""HLO that XLA:CPU takes into loops (`CanBeLoopFused` of xla/service/cpu), and what is around."""


@dataclass(frozen=True, slots=True)
class RegionBytes:
    """A region compiled alone: XLA's temporary bytes, and whether it is made of loops alone."""

    temp_bytes: int
    is_loops: bool


@dataclass
class XlaPrice:
    """Measures regions of a program; each function with the same arguments once."""

    shapes: Shapes
    made: dict[str, RegionBytes] = field(default_factory=dict)

    def may_fuse(self, c: CNode) -> bool:
        """True if XLA compiles a computation to loops only."""
        if c.is_fused or c.is_accumulate:
            return True
        if c.is_loss or c.token is not None or c.replay is not None:
            return False
        if c.name in self.shapes.program.header.run_once:
            return False
        if c.call.op not in table() or is_random(c.call.op):
            return False
        return self.measured(alone(c)).is_loops

    def workspace_bytes(self, c: CNode) -> int | None:
        """The workspace of a fused cNode; None if XLA keeps as much as its separate calls, so that
        fusion gains nothing."""
        region = self.measured(c)
        sample = self.shapes.program.sample
        is_gain = region.is_loops and region.temp_bytes < evaluate(c.workspace, sample)
        return region.temp_bytes if is_gain else None

    def figures(self) -> XlaFigures:
        """XLA's temporary bytes of each computation of the graph by itself: copies of what a
        convolution reads in another layout, the weights of attention, what lies between the loops
        of a region; and which give back what they are given. Random ones, the loss and sums in
        place have none."""
        workspaces: dict[str, int] = {}
        passed_on: dict[str, str] = {}
        anode = self.shapes.program.graph.anode
        for c in self.shapes.program.graph.cnodes:
            if c.is_loss or c.is_accumulate or c.token is not None:
                continue
            region = c if c.is_fused else alone(c)
            workspaces[c.name] = self.measured(region).temp_bytes
            reads = c.call.refs()
            is_one = len(reads) == len(c.writes) == 1
            if is_one and reads[0] in anode and self._gives_back(region, reads[0]):
                passed_on[c.name] = reads[0]
        return XlaFigures(workspaces, passed_on)

    def _gives_back(self, region: CNode, name: str) -> bool:
        """True if the result is the argument."""
        run = as_function(region_function(region), self.shapes.program.sample)
        traced = jax.make_jaxpr(run)(self.shapes.of(name)).jaxpr
        return not traced.eqns and [*traced.outvars] == [*traced.invars]

    def measured(self, c: CNode) -> RegionBytes:
        """The region of a cNode by itself."""
        function = region_function(c)
        given = [self.shapes.of(name) for name in c.call.refs()]
        key = repr((function, given))
        if key not in self.made:
            self.made[key] = _compiled(function, given, self.shapes.program.sample)
        return self.made[key]


def alone(c: CNode) -> CNode:
    """A computation as a region of one call."""
    call = Call(FUSED_OP, tuple(map(Ref, c.call.refs())), region=(InnerCall(c.writes, c.call),))
    return CNode("alone", "fwd", c.results, call)


def _compiled(
    function: RegionFunction, given: Sequence[jax.ShapeDtypeStruct], env: Mapping[str, int]
) -> RegionBytes:
    compiled: Any = jax.jit(as_function(function, env)).lower(*given).compile()
    text = compiled.as_text() or ""
    is_loops = _CALLS_LIBRARY.search(text) is None and LOOPS.issuperset(_OPCODE.findall(text))
    return RegionBytes(compiled.memory_analysis().temp_size_in_bytes, is_loops)
