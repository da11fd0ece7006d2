"""Gradients that lossy codecs change: all that depends on an unpacked lossy value.

    B1u: bwd %q = remat_compile.unpack_int4.default(%p, [64, 96], dtype:f32)
    B1:  bwd %dw = aten.mm.default(%gt, %q)

%q has an error; %dw is %gt times %q, so its error is %gt times that: in the mean 0 where the codec
rounds at random with mean 0. Three kinds are told apart for this:

    operand     what a codec gives back, and views of it
    sum         a product of one operand and exact values, and sums of such
    value       anything else that an error reaches
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from ...ir.codecs import FLOATS, PACKS, UNPACKS, Codec
from ...ir.diagnostics import Diagnostic
from ...ir.graph import ACCUMULATE_OP, Call, CNode, Graph, Ref
from ...ir.program import Program
from ...ir.wording import Worded
from .calls import names_in


class Error(IntEnum):
    """The dependence of a value on the errors of codecs."""

    OPERAND = 1
    SUM = 2
    VALUE = 3


PRODUCTS = frozenset(("aten.mm.default", "aten.bmm.default"))
SUMS = frozenset((ACCUMULATE_OP,)) | frozenset(
    f"aten.{name}"
    for name in (
        *("add.Tensor", "sum.dim_IntList", "sum.default", "clone.default", "_unsafe_view.default"),
    )
)
"""Calls whose result is a sum of elements of what they read, or has these elements."""
CONVOLUTION = "aten.convolution_backward.default"
"""Only the second result reads argument 1, the input of the forward."""


@dataclass(frozen=True)
class Lossy:
    """`codecs` of what they give back, each with its source; `errors` of all that is computed of
    that; `gradients` of those that leave the step, by the user's name."""

    codecs: Mapping[str, tuple[str, Codec]]
    errors: Mapping[str, Error]
    gradients: Mapping[str, Error]
    number_of_gradients: int

    @property
    def is_unbiased(self) -> bool:
        """Return whether the mean over the seeds is the exact gradient."""
        return all(codec.is_random for _, codec in self.codecs.values())


def read_lossy(program: Program) -> Lossy:
    """Facts of a graph whose packed values were read without fault."""
    binding = program.binding
    reach = Reach(program.graph)
    named = [(p.grad, f'"{p.names[0]}"') for p in binding.params if p.grad is not None]
    named += [(grad, f"%{name}") for name, grad in binding.input_grads]
    errors = {shown: reach.error_of(grad) for grad, shown in named}
    reached = {shown: error for shown, error in errors.items() if error is not None}
    return Lossy(reach.codecs, reach.errors, reached, len(named))


def refused(program: Program, lossy: Lossy) -> Iterator[Diagnostic]:
    """FB0879 for an error that reaches more than gradients."""
    leaving = {grad for _, grad in program.binding.input_grads}
    for a in program.graph.anodes:
        is_gradient = a.kind in ("grad", "param_grad") or a.name in leaving
        if a.name in lossy.errors and not (is_gradient and a.dtype in FLOATS):
            message = f"a lossy codec changes %{a.name}, which is no gradient"
            hint = "what a lossy codec gives back may be read for gradients alone, of floats"
            yield Diagnostic("FB0879", message, a.span, hint=hint)


def unasked(lossy: Lossy) -> Diagnostic:
    """FB0878: a plan that nobody has allowed to change gradients."""
    message = (
        f"{len(lossy.gradients)} of {lossy.number_of_gradients} gradients are approximate: "
        f"{len(lossy.codecs)} values are packed by {', '.join(bounds_of(lossy))}"
    )
    hint = Worded(
        "allow it with allow_lossy=True, of verify() or load(), or plan without lossy codecs",
        "verify and run take it with --allow-lossy; or plan without lossy codecs",
    )
    return Diagnostic("FB0878", message, hint=hint)


def bounds_of(lossy: Lossy) -> dict[str, str]:
    """The codecs by name, each with the bound that it states."""
    return {codec.name: codec.axiom for _, codec in lossy.codecs.values()}


class Reach:
    """The errors of all aNodes that are computed of what lossy codecs give back."""

    def __init__(self, graph: Graph):
        self.views = {v.name: v for v in graph.views}
        self.codecs = dict(_given_back(graph))
        self.errors = dict.fromkeys(self.codecs, Error.OPERAND)
        for c in graph.cnodes if self.codecs else ():
            if c.call.op not in UNPACKS:
                self.cnode(c)

    def error_of(self, name: str) -> Error | None:
        view = self.views.get(name)
        if view is None:
            return self.errors.get(name)
        return max(filter(None, map(self.error_of, names_in(view.call))), default=None)

    def cnode(self, c: CNode) -> None:
        forms = [c.call] + ([] if c.replay is None else [c.replay.call])
        found = [e for form in forms for e in map(self.error_of, names_in(form)) if e is not None]
        if not found:
            return
        error, made = Error.VALUE, c.writes
        if c.call.op == CONVOLUTION and found == [Error.OPERAND] and self.is_input(c.call):
            error, made = Error.SUM, c.writes[1:2]
        elif (c.call.op in PRODUCTS and found == [Error.OPERAND]) or (
            c.call.op in SUMS and Error.VALUE not in found
        ):
            error = Error.SUM
        self.errors |= {name: error for name in made if name is not None}

    def is_input(self, call: Call) -> bool:
        match call.args:
            case (_, Ref(name), *_):
                return self.error_of(name) is Error.OPERAND
            case _:
                return False


def _given_back(graph: Graph) -> Iterator[tuple[str, tuple[str, Codec]]]:
    packed = {c.writes[0]: next(names_in(c.call)) for c in graph.cnodes if c.call.op in PACKS}
    for c in graph.cnodes:
        codec = UNPACKS.get(c.call.op)
        if codec is not None and codec.is_lossy and c.writes[0] is not None:
            yield c.writes[0], (packed[next(names_in(c.call))], codec)
