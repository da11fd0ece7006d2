"""Clipping of gradients by their global norm, as computations of the backward.

The operators are those of `torch.nn.utils.clip_grad_norm_(parameters, max_norm, foreach=False)`, so
gradients have its bits. All gradients are needed before the first one is scaled: no update begins
before the last gradient is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...ir.expr import Const
from ...ir.graph import DTYPE_BYTES, ANode, Arg, Call, CNode, Graph, Ref
from ...operators.callable import callable_op

_NORM = "aten.linalg_vector_norm.default"


class Clipping:
    """The cNodes that scale gradients of a graph, and the scaled one of each in `clipped`.

    `grads` are names of gradients with parameters like them, in the order of the parameters and all
    of one type; they are scaled so that their norm is at most `max_norm`. With times of this
    machine where costs are `measured`."""

    def __init__(
        self,
        graph: Graph,
        grads: Sequence[tuple[str, Tensor]],
        max_norm: float,
        dtype: str,
        *,
        measured: bool,
    ) -> None:
        self.anodes: list[ANode] = []
        self.cnodes: list[CNode] = []
        self._taken = {*graph.anode, *graph.view, *graph.cnode}
        self._dtype, self._measured = dtype, measured
        one = torch.ones((), dtype=grads[0][1].dtype, device=grads[0][1].device)
        norms = [self._write(_NORM, [(name, like)], one, f"{name}.norm") for name, like in grads]
        stacked = self._stack(norms, one)
        for op, rest, name in (
            (_NORM, (), "norm"),
            ("aten.add.Tensor", (1e-6,), "norm.shifted"),
            ("aten.reciprocal.default", (), "norm.inverse"),
            ("aten.mul.Tensor", (max_norm,), "scale"),
            ("aten.clamp.default", (None, 1.0), "scale.most"),
        ):
            given = (stacked, one.expand(len(norms)) if name == "norm" else one)
            stacked = self._write(op, [given], one, name, rest)
        self.clipped = {
            name: self._write("aten.mul.Tensor", [(name, like), (stacked, one)], like,
                              f"{name}.clipped")
            for name, like in grads
        }  # fmt: skip

    def _stack(self, names: Sequence[str], one: Tensor) -> str:
        refs: tuple[Arg, ...] = tuple(map(Ref, names))
        many = one.expand(len(names))
        return self._add("aten.stack.default", (refs,), many, "norms", None)

    def _write(
        self,
        op: str,
        given: Sequence[tuple[str, Tensor]],
        like: Tensor,
        name: str,
        rest: tuple[Arg, ...] = (),
    ) -> str:
        """A call of `op` on tensors like those given, whose result lies like another."""

        def run() -> None:
            callable_op(op)._op(*(torch.zeros_like(tensor) for _, tensor in given), *rest)

        args = (*(Ref(of) for of, _ in given), *rest)
        return self._add(op, args, like, name, run)

    def _add(
        self,
        op: str,
        args: tuple[Arg, ...],
        like: Tensor,
        name: str,
        run: Callable[[], None] | None,
    ) -> str:
        name, label = self._free(name), self._free(f"N{len(self.cnodes) + 1}")
        shape = tuple(map(Const, like.shape))
        size = Const(like.numel() * DTYPE_BYTES[self._dtype])
        self.anodes.append(ANode(name, "grad", self._dtype, shape, size))
        took_ns = None
        if self._measured and run is not None:
            start = time.perf_counter_ns()
            run()
            took_ns = time.perf_counter_ns() - start
        self.cnodes.append(CNode(label, "bwd", (name,), Call(op, args), time_ns=took_ns))
        return name

    def _free(self, name: str) -> str:
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name
