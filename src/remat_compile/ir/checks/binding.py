"""Well-formedness of the binding, the symbols, the target, the schedules and the proofs."""

from __future__ import annotations

from collections.abc import Iterable

from ..diagnostics import Note
from ..expr import Sym, format_expr
from ..graph import CALLER_KINDS
from ..program import Argument, Binding, BufferBinding, ParamBinding, Program, Symbol
from ..semantics.sizes import KEPT_KINDS
from ..span import Span
from .findings import Findings
from .forms import MOST_VALUE
from .graph import Names
from .steps import check_names

MOST = {"granularity": 1 << 40, "threads": 1 << 16, "copy_latency": 1 << 40, "copy_issue": 1 << 40}
MOST_BYTES = (1 << 63) - 1
"""Limit on bytes and bytes per second: the range of 64-bit integers."""


def check_binding(program: Program, names: Names, findings: Findings) -> None:
    """Checks the binding, if the program has one; without it the program cannot run."""
    b = program.binding
    if b == Binding():
        return
    for argument in b.arguments:
        _kind(argument.name, ("input",), argument.span, names, findings)
    for param in b.params:
        _kind(param.name, ("param",), param.span, names, findings)
        if param.grad is not None:
            _kind(param.grad, ("param_grad",), param.span, names, findings)
    for buffer in b.buffers:
        kinds = ("buffer", "const") if buffer.update is None else ("buffer",)
        _kind(buffer.name, kinds, buffer.span, names, findings)
        if buffer.update is not None:
            _kind(buffer.update, ("pending",), buffer.span, names, findings)
    for result in b.results:
        _kind(result.name, (*CALLER_KINDS, "output"), result.span, names, findings, kept=True)
        if result.tangent is not None:
            _kind(result.tangent, ("tangent", "output"), result.span, names, findings)
    for index, grad in b.input_grads:
        span = b.arguments[index].span if 0 <= index < len(b.arguments) else None
        _kind(grad, ("output",), span, names, findings, kept=True)
    _each_once(program, names, findings)
    _loss_reads(program, names, findings)


def _kind(
    name: str,
    kinds: tuple[str, ...],
    span: Span | None,
    names: Names,
    findings: Findings,
    *,
    kept: bool = False,
) -> None:
    word = f"%{name}"
    kind = names.kind(name)
    if name not in names:
        findings.unknown("aNode or view", name, names.known, span, word)
    elif kept and kind is not None and kind not in kinds:
        message = f"%{name} is given to the caller, but kind {kind} does not live to the end"
        findings.add("FB0217", message, span, word=word, hint="declare its aNode as `output`")
    elif kind is not None and kind not in kinds:
        wanted = " or ".join(kinds)
        findings.add("FB0216", f"%{name} is of kind {kind}, not {wanted}", span, word=word)


def _each_once(program: Program, names: Names, findings: Findings) -> None:
    """Checks that each storage of the caller, each gradient and each name is bound once."""
    b = program.binding
    parts: tuple[Argument | ParamBinding | BufferBinding, ...]
    parts = (*b.arguments, *b.params, *b.buffers)
    holders = [(part.name, part.span) for part in parts]
    bound = _unique(holders, "%{} is bound twice", "FB0218", findings)
    grads = [
        (a.name, p.span)
        for p in b.params
        if p.grad is not None and (a := names.storage(p.grad)) is not None
    ]
    _unique(grads, "%{} is the gradient of two parameters", "FB0218", findings)
    titles = [(name, p.span) for p in b.params for name in p.names]
    titles += [(name, p.span) for p in b.buffers for name in p.names]
    _unique(titles, 'the name "{}" is given twice', "FB0202", findings)
    paths = [(a.path, a.span) for a in b.arguments]
    _unique(paths, 'the argument "{}" is given twice', "FB0202", findings)
    updates = {a.name for p in b.buffers if p.update and (a := names.storage(p.update))}
    for a in program.graph.anodes:
        if a.kind in CALLER_KINDS and a.kind != "opt_state" and a.name not in bound:
            findings.add("FB0218", f"{a.kind} %{a.name} is not bound to the caller", a.span)
        elif a.kind == "pending" and a.name not in updates:
            findings.add("FB0218", f"pending %{a.name} updates no buffer", a.span)


def _unique(
    items: Iterable[tuple[str, Span | None]], message: str, code: str, findings: Findings
) -> dict[str, Span | None]:
    seen: dict[str, Span | None] = {}
    for name, span in items:
        if name in seen:
            findings.add(code, message.format(name), span, Note("the first time", seen[name]))
        seen.setdefault(name, span)
    return seen


def _loss_reads(program: Program, names: Names, findings: Findings) -> None:
    losses = [c for c in program.graph.cnodes if c.is_loss]
    if len(losses) != 1:
        return
    read = {a.name for a in map(names.storage, losses[0].call.refs()) if a is not None}
    for result in program.binding.results:
        a = names.storage(result.name)
        if a is not None and a.kind in KEPT_KINDS and a.name not in read:
            message = f"the loss does not read the result %{result.name}"
            findings.add("FB0208", message, losses[0].span, Note("bound here", result.span))


def check_frame(program: Program, names: Names, findings: Findings) -> None:
    """Symbols, header and target."""
    _unique(((s.name, s.span) for s in program.symbols), "symbol {} is declared twice", "FB0202",
            findings)  # fmt: skip
    for symbol in program.symbols:
        _symbol(symbol, program, names, findings)
    target, header = program.target, program.header
    values = {
        "granularity": (target.granularity_bytes, 1),
        "memory": (target.memory_bytes, 0),
        "host": (target.host_bytes, 0),
        "d2h": (target.d2h_bytes_per_s, 1),
        "h2d": (target.h2d_bytes_per_s, 1),
        "both": (target.both_bytes_per_s, 1),
        "copy_latency": (target.copy_latency_ns, 0),
        "copy_issue": (target.copy_issue_ns, 0),
        "threads": (header.threads, 1),
    }
    for what, (value, least) in values.items():
        if value is not None and value < least:
            findings.add(
                "FB0221", f"{what} is {value}, less than {least}", findings.of_header(what)
            )
        elif value is not None and value > (most := MOST.get(what, MOST_BYTES)):
            findings.add("FB0221", f"{what} is more than {most}", findings.of_header(what))
    rates = (target.d2h_bytes_per_s or 0, target.h2d_bytes_per_s or 0)
    both = target.both_bytes_per_s
    if both is not None and both < (faster := max(rates)):
        message = f"both is {both}, less than one direction alone, {faster}"
        findings.add("FB0221", message, findings.of_header("both"))
    elif both is not None and all(rates) and both > sum(rates):
        message = f"both is {both}, more than the two directions together, {sum(rates)}"
        findings.add("FB0221", message, findings.of_header("both"))


def _symbol(s: Symbol, program: Program, names: Names, findings: Findings) -> None:
    if s.low < 0 or s.low > s.high:
        findings.add("FB0213", f"the range [{s.low}, {s.high}] of {s.name} is empty or negative",
                  s.span)  # fmt: skip
    elif s.high > MOST_VALUE:
        findings.add("FB0213", f"the range of {s.name} reaches above 2^63 - 1", s.span)
    elif not s.low <= s.sample <= s.high:
        message = f"the sample {s.sample} of {s.name} lies outside [{s.low}, {s.high}]"
        findings.add("FB0213", message, s.span)
    arguments = program.binding.arguments
    if program.binding == Binding():
        return
    if not 0 <= s.argument < len(arguments):
        message = f"{s.name} is read from argument {s.argument}; there are {len(arguments)}"
        findings.add("FB0213", message, s.span)
        return
    a = names.storage(arguments[s.argument].name)
    if a is None:
        return
    if not 0 <= s.dim < len(a.shape):
        message = f"{s.name} is read from dimension {s.dim} of %{a.name}, which has {len(a.shape)}"
        findings.add("FB0213", message, s.span, Note("declared here", a.span))
    elif a.shape[s.dim] != Sym(s.name):
        shown = format_expr(a.shape[s.dim])
        message = f"dimension {s.dim} of %{a.name} is {shown}, not {s.name}"
        findings.add("FB0213", message, s.span, Note("declared here", a.span))


def check_schedules(program: Program, findings: Findings) -> None:
    schedules = program.schedules
    known = _unique(((s.name, s.span) for s in schedules), "schedule @{} is given twice",
                    "FB0202", findings)  # fmt: skip
    for schedule in schedules:
        findings.diagnostics += check_names(program.graph, schedule)
    _unique(
        ((p.schedule, p.span) for p in program.proven), "@{} is proven twice", "FB0202", findings
    )
    for proven in program.proven:
        if proven.schedule not in known:
            findings.unknown("schedule", proven.schedule, known, proven.span, f"@{proven.schedule}")
        if min(proven.device_bytes, proven.activation_bytes, proven.host_bytes) < 0:
            findings.add("FB0221", f"a bound of @{proven.schedule} is negative", proven.span)
