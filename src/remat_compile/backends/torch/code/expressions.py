"""Operators and their calls as PyTorch text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ....ir.graph import FUSED_OP, Atom, Call, CNode, Ref, View
from ....ir.program import Program
from ....operators.aten import METHODS, from_atom, resolve_op
from ....operators.callable import callable_op, check_call
from ...python.names import VariableNames
from ...python.quote import literal
from ...python.regions import function_lines, local_names, regions_of
from .interface import COPIES
from .script import SCRIPT_NAMES

ADD_IN_PLACE = "aten.add_.Tensor"
"""Operator that `accumulate` runs: the one operator that writes to its argument."""

RESERVED = frozenset(
    (
        *("torch", "inf", "nan", "args", "constants", "replay", "forward", "backward", "copies"),
        *SCRIPT_NAMES,
    )
)


class Expressions(VariableNames):
    """Renders calls; `operators` collects the operators used, by variable name."""

    def __init__(self, program: Program):
        self.regions = regions_of(program.graph)
        super().__init__(program, (*RESERVED, *self.regions.functions))
        self._variables[COPIES] = "copies"
        self.operators: dict[str, str] = {}

    def operator(self, op: str) -> str:
        """The module-level variable of an operator.

        FBError FB0901 if it does not exist, FB0942 if a plan may not call it.
        """
        if op != ADD_IN_PLACE:
            callable_op(op)
        variable = "_" + re.sub(r"\W", "_", op, flags=re.ASCII)
        while self.operators.setdefault(variable, op) != op:
            variable += "_"  # `a.b_c.d` and `a.b.c_d` are two operators
        return variable

    def call(self, call: Call) -> str:
        method = METHODS.get(call.op)
        own = call.args[0] if call.args else None
        if method is None or call.kwargs or not isinstance(own, Ref):
            return f"{self.operator(call.op)}({', '.join(self.arguments(call))})"
        rest = call.args[1:]
        if len(rest) == 1 and isinstance(rest[0], tuple) and rest[0]:
            rest = rest[0]
        return f"{self.variable(own.name)}.{method}({', '.join(map(self.argument, rest))})"

    def fused(self, c: CNode) -> str:
        """The call of a region's function."""
        return self.regions.call(c, self.argument, self.variable)

    def region_texts(self) -> Iterator[str]:
        """The functions of the regions."""
        for name, (function, symbols) in self.regions.functions.items():
            inside = _Inside(self, local_names(function, symbols))
            calls = [
                (inner, inside.call(inner.call), self.returns_tuple(inner.call.op))
                for inner in function.calls
            ]
            yield function_lines(self.regions.signature(name), name, function, calls)

    def taken(self, views: Sequence[View]) -> str:
        """The left-hand side for a view, or for parts that one call gives."""
        if views[0].index is None:
            return self.variable(views[0].name)
        names = {view.index: self.variable(view.name) for view in views}
        return f"({', '.join(names.get(i, '_') for i in range(_end(views)))},)"

    def view(self, views: Sequence[View]) -> str:
        """The call that gives them."""
        text = self.call(views[0].call)
        return text if views[0].index is None else f"{text}[:{_end(views)}]"

    def arguments(self, call: Call) -> list[str]:
        check_call(call)
        return super().arguments(call)

    def atom(self, atom: Atom) -> str:
        known = from_atom(atom)
        makers = {"device": "torch.device", "complex": "complex"}
        return f"{makers[atom.kind]}({literal(atom.value)})" if atom.kind in makers else str(known)

    def sequence(self, parts: list[str]) -> str:
        return f"[{', '.join(parts)}]"

    def returns_tuple(self, op: str) -> bool:
        """Return whether the operator returns several tensors (a tuple or a list of them)."""
        if op == FUSED_OP:
            return True
        returns = resolve_op(op)._schema.returns  # type: ignore[union-attr]
        return len(returns) != 1 or str(returns[0].type).startswith("List")


def _end(parts: Sequence[View]) -> int:
    return 1 + max(view.index for view in parts if view.index is not None)


class _Inside(Expressions):
    """The same inside a region's function, which has variables of its own."""

    def __init__(self, around: Expressions, variables: dict[str, str]):
        self._variables = variables
        self.operators = around.operators
