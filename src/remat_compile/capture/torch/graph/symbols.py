"""PyTorch's symbolic integers (sympy) -> expressions of the IR."""

from __future__ import annotations

from collections.abc import Mapping

import sympy
import torch
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Max

from ....ir import expr
from ....ir.diagnostics import Diagnostic, FBError


class Symbols:
    """Translates sizes; `names` maps PyTorch's symbols to ours."""

    def __init__(self, names: Mapping[str, str]):
        self._names = names

    def of(self, value: int | torch.SymInt) -> expr.Expr:
        """Raises FBError FB0506 for a size that depends on data or leaves the language."""
        if isinstance(value, int):
            return expr.Const(value)
        return self._translate(sympy.expand(value.node.expr))

    def _translate(self, e: sympy.Expr) -> expr.Expr:
        if e.is_Integer:
            return expr.Const(int(e))
        if e.is_Symbol and str(e) in self._names:
            return expr.Sym(self._names[str(e)])
        parts = [] if e.is_Symbol else list(e.args)
        if isinstance(e, FloorDiv | CleanDiv) and parts[1].is_Integer and parts[1] > 0:
            return expr.floor_div(self._translate(parts[0]), int(parts[1]))
        if isinstance(e, Max | sympy.Max):
            return expr.max_of(*map(self._translate, parts))
        if e.is_Pow and parts[1].is_Integer and parts[1] > 0:
            return expr.mul(*[self._translate(parts[0])] * int(parts[1]))
        if e.is_Add:
            return expr.add(*map(self._translate, e.as_ordered_terms()))
        if e.is_Mul and all(p.is_Integer or not p.is_number for p in parts):
            return expr.mul(*map(self._translate, parts))
        raise FBError(
            Diagnostic(
                "FB0506",
                f"a size of the model is {e}, which is data-dependent or outside sums, "
                "products, divisions by constants and maxima",
                hint="export without that dynamic dimension",
            )
        )
