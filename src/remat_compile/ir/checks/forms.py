"""Well-formedness of the special forms: accumulation, tokens, replay forms; and sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from ..diagnostics import Note
from ..expr import Const, Expr, evaluate, symbols_of, too_large
from ..graph import ACCUMULATE_OP, DTYPE_BYTES, ANode, Arg, Call, CNode, Graph, Ref, Replay
from ..program import Program, Symbol
from ..span import Span
from .findings import Findings
from .graph import Names

LITERAL_WORDS = {"True": "true", "False": "false", "None": "none"}


MAY_OVERLAP = frozenset(("input", "buffer", "const"))
"""The kinds that the caller may expand, so that elements share bytes. All other storage is
dense."""


MOST_VALUE = 2**63 - 1
"""Limit on the value of a symbol."""


class Points:
    """Assignments of the symbols at which sizes are tried: the sample and both corners."""

    def __init__(self, symbols: Sequence[Symbol]):
        self.names = frozenset(s.name for s in symbols)
        self.missed: set[tuple[Span | None, str]] = set()
        tried = (
            {s.name: s.sample for s in symbols},
            {s.name: s.low for s in symbols},
            {s.name: s.high for s in symbols},
        )
        self._largest = {s.name: max(s.low, s.high, s.sample, key=abs) for s in symbols}
        self.envs: tuple[Mapping[str, int], ...] = tried if symbols else ({},)
        if any(s.high > MOST_VALUE for s in symbols):
            self.envs = ()  # FB0213 says so; powers of such numbers take minutes

    def knows(self, expr: Expr) -> bool:
        return symbols_of(expr) <= self.names

    def too_large(self, expr: Expr) -> bool:
        return too_large(expr, self._largest)

    def negative(self, expr: Expr) -> tuple[int, str] | None:
        """The first negative value and where it is taken (` at b = 1`)."""
        if isinstance(expr, Const):
            return (expr.value, "") if expr.value < 0 else None
        for env in self.envs:
            if (value := evaluate(expr, env)) < 0:
                return value, " at " + ", ".join(f"{k} = {v}" for k, v in env.items())
        return None

    def equal(self, a: Expr, b: Expr) -> bool:
        if a == b or not (self.knows(a) and self.knows(b)):
            return True
        if self.too_large(a) or self.too_large(b):
            return True  # refused for that
        return all(evaluate(a, env) == evaluate(b, env) for env in self.envs)


def check_forms(graph: Graph, names: Names, points: Points, findings: Findings) -> None:
    for c in graph.cnodes:
        if c.is_accumulate:
            _accumulate(c, names, points, findings)
        if c.is_update or c.phase == "opt":
            _update(c, names, points, findings)
        if c.token is not None:
            _token(c, c.token, names, findings)
        if c.replay is not None:
            _replay(c, findings)


def _accumulate(c: CNode, names: Names, points: Points, findings: Findings) -> None:
    hint = "the form is `%g2 = accumulate(%g1, %c)` in the backward, with aNodes g1 and g2"
    match c.call, c.writes:
        case Call(_, (Ref(ended), Ref(added)), ()), (str(named),):
            pass
        case _:
            findings.add("FB0210", f"{c.name} is no accumulation", c.span, hint=hint)
            return
    if c.phase != "bwd" or c.token is not None or c.replay is not None:
        message = f"{c.name} has a phase, a token or a replay form that an accumulation cannot have"
        findings.add("FB0210", message, c.span, hint=hint)
    first, addend = names.anode.get(ended), names.storage(added)
    if ended in names.view or (first is not None and first.kind != "grad"):
        what = "a view" if first is None else f"of kind {first.kind}"
        findings.add("FB0210", f"{c.name} ends %{ended}, which is {what}", c.span, word=f"%{ended}",
                  hint="only a whole aNode of kind grad can go on under another name")  # fmt: skip
    if addend is not None and addend.name == ended:
        findings.add("FB0210", f"{c.name} adds %{ended} to itself", c.span)
    _same_size(c, ended, named, names, points, findings)


def _update(c: CNode, names: Names, points: Points, findings: Findings) -> None:
    hint = (
        "the form is `U: opt %w2, %m2 = update(%w, %m, %dw)`: parameters and optimizer states "
        "first, each once, with a result of kind updated for each"
    )
    plain = c.token is None and c.replay is None and None not in c.writes and c.writes
    firsts = tuple(arg.name for arg in c.call.args[: len(c.writes)] if isinstance(arg, Ref))
    if not (c.is_update and c.phase == "opt" and plain and len(firsts) == len(c.writes)):
        findings.add("FB0226", f"{c.name} of phase {c.phase} is no update", c.span, hint=hint)
        return
    if c.call.refs()[: len(firsts)] != firsts:
        findings.add("FB0226", f"{c.name} updates a storage twice", c.span, hint=hint)
    for ended, named in c.takes_over:
        first, last = names.anode.get(ended), names.anode.get(named)
        if first is None or first.kind not in ("param", "opt_state"):
            what = "no whole aNode" if first is None else f"of kind {first.kind}"
            findings.add("FB0226", f"{c.name} updates %{ended}, which is {what}", c.span,
                      word=f"%{ended}", hint=hint)  # fmt: skip
        elif last is not None and last.kind != "updated":
            message = f"{c.name} writes %{named} of kind {last.kind}"
            findings.add("FB0226", message, c.span, word=f"%{named}", hint=hint)
        _same_size(c, ended, named, names, points, findings)


def _same_size(
    c: CNode, ended: str, named: str, names: Names, points: Points, findings: Findings
) -> None:
    first, last = names.anode.get(ended), names.anode.get(named)
    if first is not None and last is not None and not points.equal(first.size, last.size):
        notes = (Note(f"%{ended} is declared here", first.span),
                 Note(f"%{named} is declared here", last.span))  # fmt: skip
        message = f"%{ended} and %{named} name one storage and have different sizes"
        findings.add("FB0210", message, c.span, *notes)


def _token(c: CNode, token: str, names: Names, findings: Findings) -> None:
    word = f"%{token}"
    if token not in names:
        findings.unknown("aNode", token, names.anode, c.span, word)
    elif token not in names.anode or names.anode[token].kind != "rng":
        message = f"the token %{token} of {c.name} is no aNode of kind rng"
        findings.add("FB0211", message, c.span, word=word)
    if c.is_loss:
        findings.add("FB0211", f"the loss {c.name} has a token", c.span, word=word)


def _replay(c: CNode, findings: Findings) -> None:
    if c.replay is None:
        return
    if c.is_loss or c.replay.call.op == ACCUMULATE_OP:
        findings.add("FB0212", f"{c.name} cannot have this replay form", c.span, word="replay")
    writes = [name for name in c.replay.writes if name is not None]
    for i, name in enumerate(writes):
        if name not in c.results:
            message = f"the replay form of {c.name} writes %{name}, which {c.name} does not"
        elif name in writes[:i]:
            message = f"the replay form of {c.name} writes %{name} twice"
        else:
            continue
        findings.add("FB0212", message, c.span, word=f"%{name}", after="replay")
    if not c.replays_otherwise:
        _same_places(c, c.replay, findings)


def _same_places(c: CNode, replay: Replay, findings: Findings) -> None:
    """The same call gives each result in the same place."""
    hint = "write each result where the cNode writes it, or _"
    if len(replay.writes) > len(c.writes):
        message = f"the replay form of {c.name} is the same call and has more results"
        findings.add("FB0230", message, c.span, word="replay", hint=hint)
        return
    for name, own in zip(replay.writes, c.writes, strict=False):
        if name not in (None, own):
            place = "nothing" if own is None else f"%{own}"
            message = (
                f"the replay form of {c.name} is the same call and writes %{name} where "
                f"{c.name} writes {place}"
            )
            findings.add("FB0230", message, c.span, word=f"%{name}", after="replay", hint=hint)


def check_sizes(program: Program, points: Points, findings: Findings) -> None:
    for a in program.graph.anodes:
        for i, part in enumerate(a.shape):
            _size(part, f"dimension {i} of %{a.name}", "", a.span, points, findings)
        _size(a.size, f"the size of %{a.name}", " bytes", a.span, points, findings)
        if a.kind not in MAY_OVERLAP:
            _room(a, points, findings)
    for v in program.graph.views:
        _arguments(v.call, v.span, points, findings)
    for c in program.graph.cnodes:
        for call in c.call.parts():
            _arguments(call, c.span, points, findings)
        _size(c.workspace, f"the workspace of {c.name}", " bytes", c.span, points, findings)
        times = [c.time_ns]
        if c.replay is not None:
            _arguments(c.replay.call, c.span, points, findings)
            what = f"the replay workspace of {c.name}"
            _size(c.replay.workspace, what, " bytes", c.span, points, findings)
            times.append(c.replay.time_ns)
        if any(time is not None and time < 0 for time in times):
            findings.add("FB0215", f"{c.name} takes a negative time", c.span)


def _room(a: ANode, points: Points, findings: Findings) -> None:
    """Storage has room for every element of the tensor that its writer returns."""
    if not all(points.knows(expr) for expr in (*a.shape, a.size)) or a.dtype not in DTYPE_BYTES:
        return
    for env in points.envs:
        extents = [evaluate(extent, env) for extent in a.shape]
        size, least = evaluate(a.size, env), DTYPE_BYTES[a.dtype] * prod(extents)
        if 0 <= size < least and min(extents, default=0) >= 0:
            at = " at " + ", ".join(f"{k} = {v}" for k, v in env.items()) if env else ""
            message = f"%{a.name} has {size} bytes{at}; its shape and type take {least}"
            hint = f"declare {least} bytes or more, or correct the shape"
            findings.add("FB0231", message, a.span, word="bytes", hint=hint)
            return


def _size(
    expr: Expr, what: str, unit: str, span: Span | None, points: Points, findings: Findings
) -> None:
    if not points.knows(expr):
        _unknown_symbols(expr, span, points, findings)
    elif points.too_large(expr):
        _too_large(what, span, findings)
    elif (bad := points.negative(expr)) is not None:
        findings.add("FB0215", f"{what} is {bad[0]}{unit}{bad[1]}", span)


def _too_large(what: str, span: Span | None, findings: Findings) -> None:
    hint = "narrow the ranges of its symbols, or write smaller numbers"
    findings.add("FB0223", f"{what} might exceed 10^100 within the ranges", span, hint=hint)


def _unknown_symbols(expr: Expr, span: Span | None, points: Points, findings: Findings) -> None:
    for name in sorted(symbols_of(expr) - points.names):
        if (span, name) in points.missed:
            continue
        points.missed.add((span, name))
        hint = f"declare it: `sym {name} in [1, 64] = 8 of arg 0 dim 0`"
        if name in LITERAL_WORDS:
            hint = f"write {LITERAL_WORDS[name]}"
        message = f"there is no symbol {name}.{findings.nearest(name, points.names)}"
        findings.add("FB0214", message, span, word=name, hint=hint)


def _arguments(call: Call, span: Span | None, points: Points, findings: Findings) -> None:
    waiting: list[Arg] = [*call.args, *(arg for _, arg in call.kwargs)]
    while waiting:
        arg = waiting.pop()
        if isinstance(arg, tuple):
            waiting.extend(arg)
        elif isinstance(arg, Expr):
            if not points.knows(arg):
                _unknown_symbols(arg, span, points, findings)
            elif points.too_large(arg):
                _too_large(f"an argument of {call.op}", span, findings)
