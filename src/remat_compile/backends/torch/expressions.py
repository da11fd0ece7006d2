"""Names, operators and arguments of the IR as Python text."""

from __future__ import annotations

import math
import re

from ..._torch.ops import resolve_op, torch_dtype
from ...ir.graph import Arg, Atom, Call, Ref
from ...ir.program import Program
from .._names import Names

__all__ = ["Expressions"]

# Methods cost half of the call through `torch.ops`, and read better.
_METHODS = {
    "aten.detach.default": "detach",
    "aten.permute.default": "permute",
    "aten.t.default": "t",
    "aten.transpose.int": "transpose",
    "aten.unsqueeze.default": "unsqueeze",
    "aten.view.default": "view",
}

_RESERVED = frozenset(("torch", "inf", "nan", "args", "constants", "replay", "forward", "backward"))


class Expressions(Names):
    """Renders calls; `operators` collects the operators used, by variable name."""

    def __init__(self, program: Program):
        super().__init__(program, _RESERVED)
        self.operators: dict[str, str] = {}

    def operator(self, op: str) -> str:
        """The module-level variable of an operator. FBError FB0901 if it does not exist."""
        resolve_op(op)
        variable = "_" + re.sub(r"\W", "_", op)
        self.operators[variable] = op
        return variable

    def call(self, call: Call) -> str:
        method = _METHODS.get(call.op)
        if method is None or call.kwargs or not isinstance(call.args[0], Ref):
            return f"{self.operator(call.op)}({self.arguments(call)})"
        resolve_op(call.op)
        own, rest = call.args[0], call.args[1:]
        if len(rest) == 1 and isinstance(rest[0], tuple) and rest[0]:
            rest = rest[0]
        return f"{self.variable(own.name)}.{method}({', '.join(map(self.arg, rest))})"

    def arguments(self, call: Call) -> str:
        parts = [self.arg(a) for a in call.args]
        parts += [f"{key}={self.arg(a)}" for key, a in call.kwargs]
        return ", ".join(parts)

    def arg(self, arg: Arg) -> str:
        match arg:
            case Ref(name):
                return self.variable(name)
            case Atom("dtype", value):
                return str(torch_dtype(value))
            case Atom("device", value):
                return f"torch.device({value!r})"
            case Atom(_, value):
                return f"torch.{value}"
            case tuple():
                return "[" + ", ".join(self.arg(part) for part in arg) + "]"
            case float():
                return repr(arg) if math.isfinite(arg) else f"float({str(arg)!r})"
            case None | bool() | int() | str():
                return repr(arg)
            case _:
                return self.integer(arg)

    def returns_tuple(self, op: str) -> bool:
        """Whether the operator returns several tensors (a tuple or a list of them)."""
        returns = resolve_op(op)._schema.returns  # type: ignore[union-attr]
        return len(returns) != 1 or str(returns[0].type).startswith("List")
