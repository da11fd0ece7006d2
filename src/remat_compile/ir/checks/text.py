"""The rules that a program built by code must keep so that it can be written as text."""

from __future__ import annotations

from collections.abc import Iterator
from re import Pattern

from ..expr import Add, Expr, Max, Mul, symbols_of, too_large
from ..graph import ANODE_KINDS, ATOM_KINDS, PHASES, Arg, Atom, Call, CNode
from ..program import BufferBinding, ParamBinding, Program
from ..span import Span
from ..text.syntax import (
    ATOM_VALUE,
    KEY,
    MAX_DEPTH,
    NAME,
    NO_TEXT,
    OPERATOR,
    REF,
    RESERVED_STEPS,
    RESERVED_SYMBOLS,
)
from .findings import Findings

MAX_SHOWN = 80


def check_text(program: Program, findings: Findings) -> None:
    graph, binding = program.graph, program.binding
    for a in graph.anodes:
        _name(f"%{a.name}", a.name, REF, a.span, findings)
        if a.kind not in ANODE_KINDS:
            findings.add("FB0220", f"%{a.name} has the unknown kind {a.kind}", a.span)
        for expr in (*a.shape, a.size):
            _expression(expr, f"%{a.name}", a.span, findings)
    for v in graph.views:
        _name(f"%{v.name}", v.name, REF, v.span, findings)
        _call(v.call, f"%{v.name}", v.span, findings)
    for c in graph.cnodes:
        _cnode(c, findings)
    for s in program.symbols:
        _name(f"symbol {s.name}", s.name, NAME, s.span, findings, RESERVED_SYMBOLS)
    for what, text, span in _strings(program):
        if NO_TEXT.search(text):
            findings.add("FB0220", f"{what} {text!a} cannot be written", span)
    indices = [index for index, _ in binding.input_grads]
    if indices != sorted(set(indices)) or (indices and indices[-1] >= len(binding.arguments)):
        findings.add("FB0220", "the gradients of inputs do not follow the arguments", None)
    parts: tuple[ParamBinding | BufferBinding, ...] = (*binding.params, *binding.buffers)
    for part in parts:
        if not part.names:
            findings.add("FB0220", f"%{part.name} is bound to no name", part.span)


def _strings(program: Program) -> Iterator[tuple[str, str, Span | None]]:
    header, binding = program.header, program.binding
    yield "the device", header.device, None
    yield "the version of torch", header.torch_version, None
    yield "the source", header.source or "", None
    yield "the hash", header.sha256 or "", None
    yield "the target", program.target.name, None
    yield "the graph", program.graph.name, None
    for c in program.graph.cnodes:
        if c.loc is not None:
            yield f"{c.name}: the place", f"{c.loc.file}{c.loc.module}", c.span
    for argument in binding.arguments:
        yield f"%{argument.name}: the path", argument.path, argument.span
    bound: tuple[ParamBinding | BufferBinding, ...] = (*binding.params, *binding.buffers)
    for part in bound:
        for name in part.names:
            yield f"%{part.name}: the name", name, part.span
    for schedule in program.schedules:
        yield "the schedule", schedule.name, schedule.span
        yield "the planner", schedule.planner, schedule.span
    for proven in program.proven:
        yield "the proof of", proven.schedule, proven.span
        for text in (proven.prover, proven.graph_sha256, *proven.obligations):
            yield "the proof with", text, proven.span
        if (sealed := proven.certificate) is not None:
            yield "the certificate with", f"{sealed.version}{sealed.seal_sha256}", proven.span


def _cnode(c: CNode, findings: Findings) -> None:
    _name(c.name, c.name, NAME, c.span, findings, RESERVED_STEPS)
    if c.phase not in PHASES:
        findings.add("FB0220", f"{c.name} has the unknown phase {c.phase}", c.span)
    for call in c.call.parts():
        _call(call, c.name, c.span, findings)
    for name in (n for inner in c.call.region for n in inner.writes if n is not None):
        _name(f"{c.name}: %{name}", name, REF, c.span, findings)
    _expression(c.workspace, c.name, c.span, findings)
    if c.replay is not None:
        _call(c.replay.call, c.name, c.span, findings)
        _expression(c.replay.workspace, c.name, c.span, findings)
    if c.loc is not None and c.loc.line < 0:
        findings.add("FB0220", f"{c.name} comes from a negative line", c.span)


def _name(
    shown: str,
    name: str,
    pattern: Pattern[str],
    span: Span | None,
    findings: Findings,
    reserved: frozenset[str] = frozenset(),
) -> None:
    if name in reserved:
        findings.add("FB0220", f"{shown}: `{name}` is a word of the language", span)
    elif not pattern.fullmatch(name):
        hint = "names have letters, digits, `_` and `.`"
        findings.add("FB0220", f"{shown!r} cannot be written as a name", span, hint=hint)


def _call(call: Call, owner: str, span: Span | None, findings: Findings) -> None:
    _name(f"{owner}: operator {call.op}", call.op, OPERATOR, span, findings)
    for key, _ in call.kwargs:
        _name(f"{owner}: argument {key}", key, KEY, span, findings, RESERVED_SYMBOLS)
    for arg in (*call.args, *(value for _, value in call.kwargs)):
        if not _writable(arg, 0):
            findings.add("FB0220", f"{owner}: the argument {_shown(arg)} cannot be written", span)


def _shown(arg: Arg) -> str:
    text = ascii(arg)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _writable(arg: Arg, depth: int) -> bool:
    if isinstance(arg, tuple):
        return depth + 2 < MAX_DEPTH and all(_writable(part, depth + 1) for part in arg)
    if isinstance(arg, Atom):
        return arg.kind in ATOM_KINDS and bool(ATOM_VALUE.fullmatch(arg.value))
    if isinstance(arg, Expr):
        return bool(symbols_of(arg) or too_large(arg, {})) and _structured(arg)
    if isinstance(arg, str):
        return not NO_TEXT.search(arg)
    return True


def _expression(expr: Expr, owner: str, span: Span | None, findings: Findings) -> None:
    if not _structured(expr):
        findings.add("FB0220", f"{owner}: a sum or product of less than two parts", span)


def _structured(expr: Expr) -> bool:
    match expr:
        case Add(parts) | Mul(parts):
            return len(parts) > 1 and all(map(_structured, parts))
        case Max(parts):
            return len(parts) > 0 and all(map(_structured, parts))
        case _:
            return True
