"""Calls and arguments of the IR as Python text for JAX."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ....ir.graph import Atom, Call, CNode
from ....ir.program import Program
from ...python.names import VariableNames
from ...python.regions import function_lines, local_names, regions_of
from ..dtypes import dtype_name

KEY = "key"
"""The variable of the base key, from which each random operator derives its own."""

BASE_KEY = "the key"
"""Its stand-in among the names of aNodes, none of which has a space."""

_RESERVED = frozenset(
    (
        *("jax", "jnp", "lax", "np", "inf", "nan", "float", KEY),
        *("params", "buffers", "args", "saved", "tangents", "sizes", "grads", "new_buffers"),
        *("forward", "backward", "model", "step", "compiler_options"),
    )
)


def function_name(op: str) -> str:
    """The Python function that stands for an operator: `aten.t.default` -> `aten_t_default`."""
    return re.sub(r"\W", "_", op, flags=re.ASCII)


class JaxText(VariableNames):
    """Renders calls; `operators` collects the operators used, in order of appearance."""

    def __init__(self, program: Program, functions: frozenset[str] = frozenset()):
        self.regions = regions_of(program.graph)
        reserved = _RESERVED | functions | self.regions.functions.keys()
        super().__init__(program, reserved)
        self.operators: dict[str, None] = {}
        taken = {*self.variables(), *reserved}
        self._hosts: dict[str, str] = {}
        for name in program.graph.anode:
            host = f"{self.variable(name)}_host"
            while host in taken:
                host += "_"
            taken.add(host)
            self._hosts[name] = host

    def host(self, name: str) -> str:
        """The Python variable of the host copy of an aNode."""
        return self._hosts[name]

    def call(self, call: Call, key: str | None = None) -> str:
        """The call; a random operator is given `key`, an expression for its own key."""
        self.operators[call.op] = None
        parts = self.arguments(call)
        if key is not None:
            parts.append(f"key={key}")
        return f"{function_name(call.op)}({', '.join(parts)})"

    def fused(self, c: CNode) -> str:
        """The call of a region's function."""
        return self.regions.call(c, self.argument, self.variable)

    def region_texts(self) -> Iterator[str]:
        """The functions of the regions; called in the order of a plan, they are traced into it."""
        for name, (function, symbols) in self.regions.functions.items():
            inside = _InsideText(self, local_names(function, symbols))
            calls = [
                (inner, inside.call(inner.call), len(inner.writes) > 1) for inner in function.calls
            ]
            signature = self.regions.signature(name)
            yield function_lines(signature, name, function, calls, ends=False)

    def atom(self, atom: Atom) -> str:
        if atom.kind != "dtype":
            raise ValueError(f"{atom} is no matter of values")
        return f"jnp.{dtype_name(atom.value)}"

    def sequence(self, parts: list[str]) -> str:
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


class _InsideText(JaxText):
    """The same inside a region's function, which has variables of its own."""

    def __init__(self, around: JaxText, variables: dict[str, str]):
        self._variables = variables
        self.operators = around.operators
