"""Operators that write into their arguments, as far as their spelling tells.

The machine of `spec/semantics.md` knows pure operators only. Capture, binding and backends ask the
schema besides; a text is read without torch.
"""

from __future__ import annotations

import re

from ..graph import Call
from ..program import Program
from ..span import Span
from .findings import Findings

_WRITES = re.compile(
    r"aten\.(?:"
    r"(?:[A-Za-z0-9_]*[A-Za-z0-9])_(?:\..*)?"  # aten.add_.Tensor
    r"|__i(?:and|or|xor|lshift|rshift)__(?:\..*)?"  # aten.__ior__.Scalar
    r"|[A-Za-z0-9_]+\.(?:out|out_.*|.*_out|grad_input)"  # aten.add.out
    r")"
)


def check_operators(program: Program, findings: Findings) -> None:
    for v in program.graph.views:
        _pure(v.call, f"%{v.name}", v.span, findings)
    for c in program.graph.cnodes:
        for call in c.call.parts():
            _pure(call, c.name, c.span, findings)
        if c.replay is not None:
            _pure(c.replay.call, f"the replay form of {c.name}", c.span, findings)


def _pure(call: Call, owner: str, span: Span | None, findings: Findings) -> None:
    hint = "write the operator that returns a new value, such as aten.add.Tensor"
    if _WRITES.fullmatch(call.op):
        message = f"{owner} calls {call.op}, which writes into its arguments"
        findings.add("FB0225", message, span, word=call.op, hint=hint)
    elif call.op.startswith("aten.") and any(key == "out" for key, _ in call.kwargs):
        message = f"{owner} gives {call.op} a tensor to write into"
        findings.add("FB0225", message, span, word="out", hint=hint)
