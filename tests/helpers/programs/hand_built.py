"""Small programs written by hand, with the real tensors that a caller would hold."""

from __future__ import annotations

import torch
from torch import Tensor

from remat_compile.ir.expr import Const, Expr, Sym, mul
from remat_compile.ir.graph import (
    ACCUMULATE_OP,
    ANode,
    ANodeKind,
    Arg,
    Call,
    CNode,
    Graph,
    Phase,
    Ref,
    Replay,
    View,
)
from remat_compile.ir.program import (
    Argument,
    Binding,
    BufferBinding,
    ParamBinding,
    Program,
    Result,
    Symbol,
)


def node(
    name: str, kind: ANodeKind, *shape: int | Expr, dtype: str = "f32", item: int = 4
) -> ANode:
    """A dense aNode."""
    extents = tuple(Const(n) if isinstance(n, int) else n for n in shape)
    return ANode(name, kind, dtype, extents, mul(Const(item), *extents))


def op(name: str, phase: Phase, writes: str, operator: str, *args: Arg) -> CNode:
    """A cNode; strings that start with % are references, `writes` is separated by blanks."""
    return CNode(
        name,
        phase,
        tuple(None if w == "_" else w for w in writes.split()),
        Call(operator, tuple(as_arg(a) for a in args)),
    )


def as_arg(arg: Arg) -> Arg:
    return Ref(arg[1:]) if isinstance(arg, str) and arg.startswith("%") else arg


def transposed(name: str, base: str) -> View:
    return View(name, base, Call("aten.t.default", (Ref(base),)))


def dropout_program(batch: int | Expr = 4) -> Program:
    """x -> mm(w1) -> dropout -> mm(w2) -> mm(w1): a tie, a token, an accumulation."""
    anodes = (
        node("x", "input", batch, 8),
        node("w1", "param", 8, 16),
        node("w2", "param", 16, 8),
        node("h", "act", batch, 16),
        node("y", "act", batch, 16),
        node("m", "phantom", batch, 16, dtype="bool", item=1),
        ANode("r0", "rng", "u8", (Const(5056),), Const(5056)),
        node("u", "act", batch, 8),
        node("z", "output", batch, 16),
        node("dz", "tangent", batch, 16),
        node("du", "grad", batch, 8),
        node("c1", "grad", 8, 16),
        node("dy", "grad", batch, 16),
        node("gw2", "param_grad", 16, 8),
        node("dh", "grad", batch, 16),
        node("c0", "grad", 8, 16),
        node("gw1", "param_grad", 8, 16),
    )
    views = (
        transposed("w1t", "w1"),
        transposed("w2t", "w2"),
        transposed("ut", "u"),
        transposed("yt", "y"),
        transposed("xt", "x"),
    )
    mm = "aten.mm.default"
    dropout = op("F2", "fwd", "y m", "aten.native_dropout.default", "%h", 0.5, True)
    cnodes = (
        op("F1", "fwd", "h", mm, "%x", "%w1"),
        CNode(dropout.name, "fwd", dropout.writes, dropout.call, token="r0"),
        op("F3", "fwd", "u", mm, "%y", "%w2"),
        op("F4", "fwd", "z", mm, "%u", "%w1"),
        op("L", "loss", "dz", "loss", "%z"),
        op("B4", "bwd", "du", mm, "%dz", "%w1t"),
        op("B4w", "bwd", "c1", mm, "%ut", "%dz"),
        op("B3", "bwd", "dy", mm, "%du", "%w2t"),
        op("B3w", "bwd", "gw2", mm, "%yt", "%du"),
        op("B2", "bwd", "dh", "aten.native_dropout_backward.default", "%dy", "%m", 2.0),
        op("B1w", "bwd", "c0", mm, "%xt", "%dh"),
        op("A1", "bwd", "gw1", ACCUMULATE_OP, "%c1", "%c0"),
    )
    binding = Binding(
        arguments=(Argument("args[0]", "x"),),
        params=(ParamBinding(("w1",), "w1", "gw1"), ParamBinding(("w2",), "w2", "gw2")),
        results=(Result("z", "dz"),),
    )
    return Program(Graph("dropout", anodes, views, cnodes), binding)


def dynamic_dropout_program(low: int, high: int) -> Program:
    """The same with a batch of [low, high], sampled at 4."""
    program = dropout_program(Sym("b"))
    symbols = (Symbol("b", low, high, 4, 0, 0),)
    return Program(program.graph, program.binding, symbols=symbols)


def dropout_values() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"x": (4, 8), "w1": (8, 16), "w2": (16, 8)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def batch_norm_program() -> Program:
    """x * w -> batch norm -> loss; running statistics, and a replay form without them."""
    image = (4, 3, 5, 5)
    functional = "aten._native_batch_norm_legit_functional.default"
    replay = Replay(
        ("o", "mean", "rstd"),
        Call(
            "aten._native_batch_norm_legit.no_stats",
            (Ref("s"), Ref("w"), Ref("bias"), True, 0.1, 1e-5),
        ),
    )
    forward = op(
        "F2",
        "fwd",
        "o mean rstd nrm nrv",
        functional,
        *("%s", "%w", "%bias", "%rm", "%rv", True, 0.1, 1e-5),
    )
    backward = op(
        "B2",
        "bwd",
        "ds gw gb",
        "aten.native_batch_norm_backward.default",
        *("%do", "%s", "%w", None, None, "%mean", "%rstd", True, 1e-5, (True, True, True)),
    )
    anodes = (
        node("x", "input", *image),
        node("w", "param", 3),
        node("bias", "param", 3),
        node("rm", "buffer", 3),
        node("rv", "buffer", 3),
        node("s", "act", *image),
        node("o", "output", *image),
        node("mean", "phantom", 3),
        node("rstd", "phantom", 3),
        node("nrm", "pending", 3),
        node("nrv", "pending", 3),
        node("do", "tangent", *image),
        node("ds", "grad", *image),
        node("gw", "param_grad", 3),
        node("gb", "param_grad", 3),
        node("dx", "output", *image),
    )
    cnodes = (
        op("F1", "fwd", "s", "aten.mul.Tensor", "%x", 1.5),
        CNode("F2", "fwd", forward.writes, forward.call, replay=replay),
        op("L", "loss", "do", "loss", "%o", "%nrm", "%nrv"),
        backward,
        op("B1", "bwd", "dx", "aten.mul.Tensor", "%ds", 1.5),
    )
    binding = Binding(
        arguments=(Argument("args[0]", "x"),),
        params=(ParamBinding(("w",), "w", "gw"), ParamBinding(("b",), "bias", "gb")),
        buffers=(BufferBinding(("rm",), "rm", "nrm"), BufferBinding(("rv",), "rv", "nrv")),
        results=(Result("o", "do"),),
        input_grads=((0, "dx"),),
    )
    return Program(Graph("norm", anodes, (), cnodes), binding)


def batch_norm_values() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "x": torch.randn(4, 3, 5, 5, generator=generator),
        "w": torch.rand(3, generator=generator) + 0.5,
        "bias": torch.rand(3, generator=generator),
        "rm": torch.zeros(3),
        "rv": torch.ones(3),
    }
