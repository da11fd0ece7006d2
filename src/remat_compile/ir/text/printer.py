"""The writer of the text form: `format_program`, and the hash that proofs name.

`parse_program(format_program(p)) == p` for every well-formed program `p`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import assert_never

from ..expr import Add, CeilDiv, Const, FloorDiv, Max, Mul, RoundUp, Sym, format_expr
from ..graph import ANode, Arg, Atom, Call, CNode, Graph, InnerCall, Ref, View
from ..program import Binding, Certificate, Header, Program, Proven, Symbol, Target, TensorLayout
from ..schedule import Compute, Schedule, Step
from ..span import Loc
from .syntax import PLACE, TITLE, WORD, format_amount, format_duration, quote


def format_program(program: Program) -> str:
    """The text of a program, ending in a newline."""
    sections = ["\n".join([*_header(program.header), *_model(program)])]
    sections += [format_schedule(schedule) for schedule in program.schedules]
    sections += [_proven(proven) for proven in program.proven]
    return "\n\n".join(sections) + "\n"


def graph_sha256(program: Program) -> str:
    """SHA-256 (hex) of the symbols, the target, the graph and its binding in text form.

    Neither the header nor the schedules change it; what a proof is bound to holds them too.
    """
    digest = hashlib.sha256()
    for number, line in enumerate(_model(program)):  # never the whole text at once
        digest.update(f"\n{line}".encode() if number else line.encode())
    return digest.hexdigest()


def format_statement(node: ANode | View | CNode) -> str:
    """The line that declares a node, without indentation; of a region, its lines."""
    match node:
        case ANode():
            shape = ", ".join(format_expr(part) for part in node.shape)
            size = format_expr(node.size)
            return f"%{node.name} : {node.kind} {node.dtype}[{shape}] bytes {size}"
        case View():
            index = "" if node.index is None else f"[{node.index}]"
            return f"%{node.name} = view of %{node.base} {_call(node.call)}{index}"
        case CNode():
            return _cnode(node)
        case _:
            assert_never(node)


def format_schedule(schedule: Schedule) -> str:
    """The lines of one schedule."""
    by = f" by {quote(schedule.planner)}" if schedule.planner else ""
    lines = [f"schedule {_title(schedule.name)}{by} {{"]
    lines += [f"  {format_step(step)}" for step in schedule.steps]
    return "\n".join([*lines, "}"])


def format_step(step: Step) -> str:
    """The line of a step, without indentation."""
    if isinstance(step, Compute):
        return f"{step.cnode}{' nosave' * step.nosave}{' on host' * step.on_host}"
    return f"{step.word} %{step.anode}"


def _header(header: Header) -> Iterator[str]:
    yield f"fbir {header.version}"
    device = _word(header.device)
    torch = f"torch {quote(header.torch_version)}"
    replays = f" replays {header.replays}" if header.replays else ""
    wish = f" once {', '.join(header.run_once)}" if header.run_once else ""
    line = f"captured device {device} threads {header.threads} {torch} costs {header.costs}"
    yield f"{line}{replays}{wish}"
    if header.layouts is not None:
        yield from _layouts(header.layouts)
    origin = [] if header.source is None else [f"source {quote(header.source)}"]
    if header.sha256 is not None:
        origin.append(f"sha256 {quote(header.sha256)}")
    if origin:
        yield " ".join(origin)


def _layouts(layouts: Sequence[TensorLayout]) -> Iterator[str]:
    if not layouts:
        yield "layouts {}"
        return
    yield "layouts {"
    for layout in layouts:
        yield f"  %{layout.name} {layout.form} [{', '.join(map(str, layout.numbers))}]"
    yield "}"


def _model(program: Program) -> Iterator[str]:
    """Everything that is neither header nor schedule nor proof."""
    for symbol in program.symbols:
        yield _symbol(symbol)
    yield _target(program.target)
    yield ""
    yield f"graph {_title(program.graph.name)} {{"
    for statement in _statements(program.graph):
        yield f"  {format_statement(statement)}"
    yield "}"
    if program.binding != Binding():
        yield ""
        yield "bind {"
        for line in _binding(program.binding):
            yield f"  {line}"
        yield "}"


def _symbol(s: Symbol) -> str:
    return f"sym {s.name} in [{s.low}, {s.high}] = {s.sample} of arg {s.argument} dim {s.dim}"


def _target(target: Target) -> str:
    entries = [f"granularity {format_amount(target.granularity_bytes)}"]
    if target.memory_bytes is not None:
        entries.insert(0, f"memory {format_amount(target.memory_bytes)}")
    if target.host_bytes is not None:
        entries.append(f"host {format_amount(target.host_bytes)}")
    if target.d2h_bytes_per_s is not None:
        entries.append(f"d2h {format_amount(target.d2h_bytes_per_s, per_second=True)}")
    if target.h2d_bytes_per_s is not None:
        entries.append(f"h2d {format_amount(target.h2d_bytes_per_s, per_second=True)}")
    if target.both_bytes_per_s is not None:
        entries.append(f"both {format_amount(target.both_bytes_per_s, per_second=True)}")
    if target.copy_latency_ns:
        entries.append(f"copy_latency {format_duration(target.copy_latency_ns)}")
    if target.copy_issue_ns:
        entries.append(f"copy_issue {format_duration(target.copy_issue_ns)}")
    return f"target {quote(target.name)} {{ {' '.join(entries)} }}"


def _statements(graph: Graph) -> Iterator[ANode | View | CNode]:
    """aNodes, then cNodes with each view before its first reader; order is kept."""
    yield from graph.anodes
    position = {view.name: i for i, view in enumerate(graph.views)}
    done = 0
    for cnode in graph.cnodes:
        reads = cnode.call.refs()
        if cnode.replay is not None:
            reads += cnode.replay.call.refs()
        wanted = max((position.get(name, -1) for name in reads), default=-1)
        while done <= wanted:
            yield graph.views[done]
            done += 1
        yield cnode
    yield from graph.views[done:]


def _cnode(c: CNode) -> str:
    parts = [f"{c.name}: {c.phase}"]
    if c.writes:
        parts.append(f"{_writes(c.writes)} =")
    parts.append(_call(c.call))
    if c.call.region:
        inner = "".join(f"\n    {_inner(part)}" for part in c.call.region)
        parts.append(f"{{{inner}\n  }}")
    if c.of:
        parts.append(f"of {', '.join(c.of)}")
    if c.token is not None:
        parts.append(f"token %{c.token}")
    if c.workspace != Const(0):
        parts.append(f"workspace {format_expr(c.workspace)}")
    if c.time_ns is not None:
        parts.append(f"time {format_duration(c.time_ns)}")
    if c.host_time_ns is not None:
        parts.append(f"on host {format_duration(c.host_time_ns)}")
    if c.replay is not None:
        parts += ["replay {", *([f"{_writes(c.replay.writes)} ="] if c.replay.writes else ())]
        parts.append(_call(c.replay.call))
        if c.replay.workspace != Const(0):
            parts.append(f"workspace {format_expr(c.replay.workspace)}")
        if c.replay.time_ns is not None:
            parts.append(f"time {format_duration(c.replay.time_ns)}")
        parts.append("}")
    if c.loc is not None:
        parts.append(f"at {_loc(c.loc)}")
    return " ".join(parts)


def _inner(inner: InnerCall) -> str:
    index = "" if inner.index is None else f"[{inner.index}]"
    return f"{_writes(inner.writes)} = {_call(inner.call)}{index}"


def _writes(writes: Sequence[str | None]) -> str:
    return ", ".join("_" if name is None else f"%{name}" for name in writes)


def _call(call: Call) -> str:
    arguments = [_arg(arg) for arg in call.args]
    arguments += [f"{key}={_arg(arg)}" for key, arg in call.kwargs]
    return f"{call.op}({', '.join(arguments)})"


def _arg(arg: Arg) -> str:
    match arg:
        case Ref(name):
            return f"%{name}"
        case bool():
            return "true" if arg else "false"
        case int() | float():
            return repr(arg)
        case None:
            return "none"
        case str():
            return quote(arg)
        case tuple():
            return f"[{', '.join(_arg(part) for part in arg)}]"
        case Atom(kind, value):
            return f"{kind}:{value}"
        case Const() | Sym() | Add() | Mul() | FloorDiv() | CeilDiv() | Max() | RoundUp():
            return format_expr(arg)
        case _:
            assert_never(arg)


def _loc(loc: Loc) -> str:
    module = f" {quote(loc.module)}" if loc.module else ""
    if not loc.file and not loc.line:
        return module.strip() or '""'
    bare = loc.file and PLACE.fullmatch(loc.file)
    return f"{loc.file if bare else quote(loc.file)}:{loc.line}{module}"


def _binding(binding: Binding) -> Iterator[str]:
    input_grads = dict(binding.input_grads)
    for i, argument in enumerate(binding.arguments):
        grad = f" grad %{input_grads[i]}" if i in input_grads else ""
        yield f"arg {quote(argument.path)} = %{argument.name}{grad}"
    for param in binding.params:
        grad = "" if param.grad is None else f" grad %{param.grad}"
        yield f"param {_strings(param.names)} = %{param.name}{grad}"
    for buffer in binding.buffers:
        update = "" if buffer.update is None else f" update %{buffer.update}"
        yield f"buffer {_strings(buffer.names)} = %{buffer.name}{update}"
    for result in binding.results:
        tangent = "" if result.tangent is None else f" tangent %{result.tangent}"
        yield f"result %{result.name}{tangent}"
    yield f"grads {binding.grads}"


def _proven(proven: Proven) -> str:
    words = ", ".join(_word(word) for word in proven.obligations)
    entries = (
        f"obligations {words}".rstrip(),
        f"device <= {proven.device_bytes} bytes",
        f"activation <= {proven.activation_bytes} bytes",
        *((f"host <= {proven.host_bytes} bytes",) if proven.host_bytes else ()),
        f"by {quote(proven.prover)}",
        f"graph sha256 {quote(proven.graph_sha256)}",
        *(() if proven.certificate is None else _certificate(proven.certificate)),
    )
    return "\n  ".join([f"proven {_title(proven.schedule)} {{", *entries]) + "\n}"


def _certificate(c: Certificate) -> Iterator[str]:
    yield "certificate {"
    yield f"  time {format_duration(c.time_ns)} of {format_duration(c.least_time_ns)}"
    yield f"  floor {c.least_bytes} bytes"
    for budget in c.budgets:
        yield f"  budget {budget.kind} {budget.bytes} bytes"
    for name, low, high in c.ranges:
        yield f"  range {name} in [{low}, {high}]"
    if c.assuming:
        yield f"  assuming {_strings(c.assuming)}"
    yield f"  version {quote(c.version)}"
    yield f"  seal sha256 {quote(c.seal_sha256)}"
    yield "}"


def _strings(names: Sequence[str]) -> str:
    return ", ".join(quote(name) for name in names)


def _word(text: str) -> str:
    return text if WORD.fullmatch(text) else quote(text)


def _title(name: str) -> str:
    return f"@{name if TITLE.fullmatch(name) else quote(name)}"
