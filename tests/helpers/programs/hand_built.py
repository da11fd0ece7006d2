"""Small programs written by hand, with the real tensors that a caller would hold."""

from __future__ import annotations

import re

import torch
from torch import Tensor

from helpers.paths import fbir
from remat_compile.ir.program import Program
from remat_compile.ir.text.parser import parse_program

_DROPOUT = fbir("helpers/programs/texts/dropout")


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
