"""Effects of operators, held against the places where they are called.

The machine of `spec/semantics.md` knows pure operators only, those with a token, and views. A text
is held against the table; what it does not tell of a user's library a backend asks the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ...operators import Effects, effects
from ..graph import Call, CNode, Graph, View
from ..program import Program
from ..span import Span
from .findings import Findings

Tell = Callable[[str], Effects | None]

NEW_VALUE = "write the operator that returns a new value, such as aten.add.Tensor"
ALONE = "let it stand as a cNode of its own, with a token"
TOKEN = "declare `%r : rng u8[5056] bytes 5056` and write `token %r` after the call"
AS_VIEW = "declare what shares a storage as a view of it: `%v = view of %x …`"
AS_RESULT = "declare it as the result of a cNode, with bytes of its own"
FILLED = "write one that fills its result, such as aten.zeros_like.default"
ALLOWED = "use a functional operator of aten, prims or a library of your own"


class Fault(NamedTuple):
    """A call that may not stand where it does; `word` of it is at fault."""

    code: str
    message: str
    span: Span | None
    word: str
    hint: str


def check_operators(program: Program, findings: Findings) -> None:
    for code, message, span, op, hint in operator_faults(program.graph):
        findings.add(code, message, span, word=op, hint=hint)


def operator_faults(graph: Graph, tell: Tell = effects) -> Iterator[Fault]:
    """FB0211, FB0225, FB0232, FB0904, FB0914 and FB0942 with each call of a graph that `tell`
    knows to do what it may not do there."""
    for v in graph.views:
        yield from [*_pure(v.call, f"%{v.name}", v.span, tell)] or _view(v, tell)
    for c in graph.cnodes:
        calls = [
            (call, c.name if call is c.call else f"{c.name}, inside") for call in c.call.parts()
        ]
        if c.replay is not None:
            calls.append((c.replay.call, f"the replay form of {c.name}"))
        for call, owner in calls:
            yield from _pure(call, owner, c.span, tell)
            yield from _draws(call, c, tell)
        yield from _results(c, tell)


def _pure(call: Call, owner: str, span: Span | None, tell: Tell) -> Iterator[Fault]:
    known, op, named = tell(call.op), call.op, dict(call.kwargs)
    who = owner.removesuffix(", inside")
    if known is None or not (known.flags or named):
        return
    if known.writes(call.args, named):
        message = f"{who} calls {op}, which writes into its arguments"
        yield Fault("FB0225", message, span, op, NEW_VALUE)
    elif "out" in named:
        message = f"{who} gives {op} a tensor to write into"
        yield Fault("FB0225", message, span, "out", NEW_VALUE)
    elif known.refusal is not None:
        message = f"{owner}: a plan may not call {op}: {known.refusal}"
        yield Fault("FB0942", message, span, op, ALLOWED)
    elif known.is_unwritten:
        message = f"{who} calls {op}, which leaves its result unwritten"
        yield Fault("FB0232", message, span, op, FILLED)


def _view(v: View, tell: Tell) -> Iterator[Fault]:
    known = tell(v.call.op)
    if known is None:
        return
    message = f"%{v.name} is declared a view of %{v.base}, but {v.call.op} "
    if not known.may_be_view:
        yield Fault(
            "FB0904", message + "gives it a storage of its own", v.span, v.call.op, AS_RESULT
        )
    elif known.draws(v.call.args, dict(v.call.kwargs)):
        yield Fault("FB0211", message + "draws random numbers", v.span, v.call.op, ALONE)


def _draws(call: Call, c: CNode, tell: Tell) -> Iterator[Fault]:
    known = tell(call.op)
    if c.token is not None or known is None or not known.draws(call.args, dict(call.kwargs)):
        return
    if c.is_fused:
        message = f"{c.name}, inside: {call.op} draws random numbers, which a region cannot replay"
        yield Fault("FB0914", message, c.span, call.op, ALONE)
    else:
        message = f"{c.name} draws random numbers by {call.op} and has no token"
        yield Fault("FB0211", message, c.span, call.op, TOKEN)


def _results(c: CNode, tell: Tell) -> Iterator[Fault]:
    """Results of a cNode have storage of their own: a view inside a region has that of its base."""
    storage: dict[str, str] = {}
    for call, writes in _made(c):
        known, refs = tell(call.op), call.refs()
        base = storage.get(refs[0], refs[0]) if refs and known and known.is_view else None
        storage |= {name: base or name for name in writes if name is not None}
    holder = {name: name for name in c.call.refs()}
    for name in dict.fromkeys(c.results):
        other = holder.setdefault(storage.get(name, name), name)
        if other != name:
            op = next(call.op for call, writes in _made(c) if name in writes)
            message = f"{c.name}: {op} gives %{name} in the storage of %{other}"
            yield Fault("FB0904", message, c.span, op, AS_VIEW)


def _made(c: CNode) -> Iterator[tuple[Call, tuple[str | None, ...]]]:
    """Calls that make the results of a cNode, and what each writes."""
    if c.is_fused:
        yield from ((inner.call, inner.writes) for inner in c.call.region)
    else:
        yield c.call, c.writes
        if c.replay is not None:
            yield c.replay.call, c.replay.writes
