"""Small programs written by hand, with the real tensors that a caller would hold."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from remat_compile.ir.program import Program
from remat_compile.ir.text.parser import parse_program

_DROPOUT = """fbir 1
sym b in [LOW, HIGH] = 4 of arg 0 dim 0
graph @dropout {
  %x : input f32[b, 8] bytes 32*b
  %w1 : param f32[8, 16] bytes 512
  %w2 : param f32[16, 8] bytes 512
  %h : act f32[b, 16] bytes 64*b
  %y : act f32[b, 16] bytes 64*b
  %m : phantom bool[b, 16] bytes 16*b
  %r0 : rng u8[5056] bytes 5056
  %u : act f32[b, 8] bytes 32*b
  %z : output f32[b, 16] bytes 64*b
  %dz : tangent f32[b, 16] bytes 64*b
  %du : grad f32[b, 8] bytes 32*b
  %c1 : grad f32[8, 16] bytes 512
  %dy : grad f32[b, 16] bytes 64*b
  %gw2 : param_grad f32[16, 8] bytes 512
  %dh : grad f32[b, 16] bytes 64*b
  %c0 : grad f32[8, 16] bytes 512
  %gw1 : param_grad f32[8, 16] bytes 512
  %w1t = view of %w1 aten.t.default(%w1)
  %w2t = view of %w2 aten.t.default(%w2)
  F1: fwd %h = aten.mm.default(%x, %w1)
  F2: fwd %y, %m = aten.native_dropout.default(%h, 0.5, true) token %r0
  F3: fwd %u = aten.mm.default(%y, %w2)
  F4: fwd %z = aten.mm.default(%u, %w1)
  L: loss %dz = loss(%z)
  %ut = view of %u aten.t.default(%u)
  %yt = view of %y aten.t.default(%y)
  %xt = view of %x aten.t.default(%x)
  B4: bwd %du = aten.mm.default(%dz, %w1t)
  B4w: bwd %c1 = aten.mm.default(%ut, %dz)
  B3: bwd %dy = aten.mm.default(%du, %w2t)
  B3w: bwd %gw2 = aten.mm.default(%yt, %du)
  B2: bwd %dh = aten.native_dropout_backward.default(%dy, %m, 2.0)
  B1w: bwd %c0 = aten.mm.default(%xt, %dh)
  A1: bwd %gw1 = accumulate(%c1, %c0)
}
bind {
  arg "args[0]" = %x
  param "w1" = %w1 grad %gw1
  param "w2" = %w2 grad %gw2
  result %z tangent %dz
}
"""


def dropout_program() -> Program:
    """x -> mm(w1) -> dropout -> mm(w2) -> mm(w1): a tie, a token, an accumulation."""
    text = re.sub(r"sym .*|(\d+)\*b", lambda m: str(4 * int(m[1])) if m[1] else "", _DROPOUT)
    return parse_program(text.replace("[b, ", "[4, "))


def dynamic_dropout_program(low: int, high: int) -> Program:
    """The same with a batch of [low, high], sampled at 4."""
    return parse_program(_DROPOUT.replace("LOW", str(low)).replace("HIGH", str(high)))


def dropout_values() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"x": (4, 8), "w1": (8, 16), "w2": (16, 8)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def batch_norm_program() -> Program:
    """x * w -> batch norm -> loss; running statistics, and a replay form without them."""
    return parse_program("""fbir 1
graph @norm {
  %x : input f32[4, 3, 5, 5] bytes 1200
  %w : param f32[3] bytes 12
  %bias : param f32[3] bytes 12
  %rm : buffer f32[3] bytes 12
  %rv : buffer f32[3] bytes 12
  %s : act f32[4, 3, 5, 5] bytes 1200
  %o : output f32[4, 3, 5, 5] bytes 1200
  %mean : phantom f32[3] bytes 12
  %rstd : phantom f32[3] bytes 12
  %nrm : pending f32[3] bytes 12
  %nrv : pending f32[3] bytes 12
  %do : tangent f32[4, 3, 5, 5] bytes 1200
  %ds : grad f32[4, 3, 5, 5] bytes 1200
  %gw : param_grad f32[3] bytes 12
  %gb : param_grad f32[3] bytes 12
  %dx : output f32[4, 3, 5, 5] bytes 1200
  F1: fwd %s = aten.mul.Tensor(%x, 1.5)
  F2: fwd %o, %mean, %rstd, %nrm, %nrv = aten._native_batch_norm_legit_functional.default( \
    %s, %w, %bias, %rm, %rv, true, 0.1, 1e-05) \
    replay { %o, %mean, %rstd = aten._native_batch_norm_legit.no_stats( \
      %s, %w, %bias, true, 0.1, 1e-05) }
  L: loss %do = loss(%o, %nrm, %nrv)
  B2: bwd %ds, %gw, %gb = aten.native_batch_norm_backward.default( \
    %do, %s, %w, none, none, %mean, %rstd, true, 1e-05, [true, true, true])
  B1: bwd %dx = aten.mul.Tensor(%ds, 1.5)
}
bind {
  arg "args[0]" = %x grad %dx
  param "w" = %w grad %gw
  param "b" = %bias grad %gb
  buffer "rm" = %rm update %nrm
  buffer "rv" = %rv update %nrv
  result %o tangent %do
}
""")


def batch_norm_values() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "x": torch.randn(4, 3, 5, 5, generator=generator),
        "w": torch.rand(3, generator=generator) + 0.5,
        "bias": torch.rand(3, generator=generator),
        "rm": torch.zeros(3),
        "rv": torch.ones(3),
    }
