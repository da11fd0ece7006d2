"""Well-formedness of a graph: names, views, writers, order, kinds."""

from __future__ import annotations

from collections import ChainMap

from ..diagnostics import Note
from ..graph import CALLER_KINDS, DTYPE_BYTES, LOSS_OP, PHASES, ANode, CNode, Graph, View
from .findings import Findings

WRITER_PHASES: dict[str, tuple[str, ...]] = {
    "act": ("fwd",),
    "phantom": ("fwd",),
    "pending": ("fwd",),
    "tangent": ("loss",),
    "grad": ("bwd",),
    "param_grad": ("bwd",),
    "output": ("fwd", "loss", "bwd"),
    "updated": ("opt",),
}
"""Which phases may write a kind of aNode. `rng` is written as a token only. A tangent that
the caller keeps to the end of the step is an `output` of the loss."""


class Names:
    """Tolerant look-ups: of two declarations of a name the first one counts."""

    def __init__(self, graph: Graph):
        self.anode: dict[str, ANode] = {}
        self.view: dict[str, View] = {}
        self.cnode: dict[str, CNode] = {}
        for a in graph.anodes:
            self.anode.setdefault(a.name, a)
        for v in graph.views:
            self.view.setdefault(v.name, v)
        for c in graph.cnodes:
            self.cnode.setdefault(c.name, c)
        self.known = ChainMap[str, ANode | View](dict(self.anode), dict(self.view))
        self.writers: dict[str, list[CNode]] = {}
        for c in graph.cnodes:
            token = () if c.token is None or c.token in c.results else (c.token,)
            for name in (*c.results, *token):
                self.writers.setdefault(name, []).append(c)

    def __contains__(self, name: str) -> bool:
        return name in self.anode or name in self.view

    def storage(self, name: str) -> ANode | None:
        """The aNode under a name; None when it is unknown."""
        if name in self.anode:
            return self.anode[name]
        return self.anode.get(self.view[name].base) if name in self.view else None

    def kind(self, name: str) -> str | None:
        anode = self.storage(name)
        return None if anode is None else anode.kind


def check_graph(graph: Graph, findings: Findings) -> Names:
    names = Names(graph)
    _declarations(graph, findings)
    for a in graph.anodes:
        _anode(a, names, findings)
    _views(graph, names, findings)
    _order(graph, names, findings)
    _loss(graph, names, findings)
    return names


def _declarations(graph: Graph, findings: Findings) -> None:
    groups: tuple[tuple[ANode | View | CNode, ...], ...] = (
        (*graph.anodes, *graph.views),
        graph.cnodes,
    )
    for group in groups:
        first: dict[str, ANode | View | CNode] = {}
        for node in sorted(group, key=lambda n: (n.span.line, n.span.column) if n.span else (0, 0)):
            if node.name in first:
                shown = node.name if isinstance(node, CNode) else f"%{node.name}"
                note = Note("declared here first", first[node.name].span)
                findings.add("FB0202", f"{shown} is declared twice", node.span, note)
            first.setdefault(node.name, node)


def _anode(a: ANode, names: Names, findings: Findings) -> None:
    if a.dtype not in DTYPE_BYTES:
        known = ", ".join(DTYPE_BYTES)
        findings.add("FB0219", f"%{a.name} has the unknown type {a.dtype}", a.span, word=a.dtype,
                  hint=f"the types are {known}")  # fmt: skip
    writers = names.writers.get(a.name, [])
    if a.kind in CALLER_KINDS:
        for c in writers:
            message = f"{c.name} writes %{a.name}, but {a.kind} storage belongs to the caller"
            findings.add("FB0206", message, c.span, word=f"%{a.name}")
        return
    if not writers:
        what = "is the token of no cNode" if a.kind == "rng" else "is written by no cNode"
        findings.add("FB0207", f"{a.kind} %{a.name} {what}", a.span)
    for c in writers[1:]:
        note = Note(f"{writers[0].name} writes it", writers[0].span)
        findings.add("FB0203", f"{c.name} writes %{a.name}, which has a writer", c.span, note,
                  word=f"%{a.name}")  # fmt: skip


def _views(graph: Graph, names: Names, findings: Findings) -> None:
    declared: set[str] = set()
    for v in graph.views:
        if v.base not in names.anode:
            if v.base in names.view:
                hint = f"its base is %{names.view[v.base].base}"
                findings.add("FB0205", f"the base %{v.base} of %{v.name} is a view", v.span,
                          word=f"%{v.base}", hint=hint)  # fmt: skip
            else:
                findings.unknown("aNode", v.base, names.anode, v.span, f"%{v.base}")
        refs = v.call.refs()
        if not refs:
            findings.add("FB0205", f"%{v.name} reads nothing of its base %{v.base}", v.span)
        for name in refs:
            _view_read(v, name, declared, names, findings)
        declared.add(v.name)


def _view_read(v: View, name: str, declared: set[str], names: Names, findings: Findings) -> None:
    word = f"%{name}"
    if name not in names:
        findings.unknown("aNode or view", name, names.known, v.span, word)
    elif name in names.view and name not in declared:
        findings.add("FB0205", f"%{v.name} reads the view %{name}, which is declared later", v.span,
                  word=word)  # fmt: skip
    elif (base := names.storage(name)) and v.base in names and base.name != v.base:
        message = f"%{v.name} is a view of %{v.base}, but reads %{name}"
        if name != base.name:
            message += f", a view of %{base.name}"
        findings.add("FB0205", message, v.span, word=word, hint="a view reads its base only")


def _order(graph: Graph, names: Names, findings: Findings) -> None:
    """Every read after the write, phases in order, kinds where they belong."""
    written = {a.name for a in graph.anodes if a.kind in CALLER_KINDS}
    ended: dict[str, CNode] = {}
    reached = 0
    for c in graph.cnodes:
        phase = PHASES.index(c.phase)
        if phase < reached:
            before = PHASES[reached]
            findings.add(
                "FB0209", f"{c.name} of phase {c.phase} stands after phase {before}", c.span
            )
        reached = max(reached, phase)
        refs = c.call.refs() if c.replay is None else c.call.refs() + c.replay.call.refs()
        _reads(c, tuple(dict.fromkeys(refs)), names, written, ended, findings)
        _writes(c, names, findings)
        _belongs(c, names, findings)
        written.update(c.results)
        ended.update((old, c) for old, _ in c.takes_over)


def _reads(
    c: CNode,
    refs: tuple[str, ...],
    names: Names,
    written: set[str],
    ended: dict[str, CNode],
    findings: Findings,
) -> None:
    for name in refs:
        word = f"%{name}"
        a = names.storage(name)
        if a is None:
            if name not in names:
                findings.unknown("aNode or view", name, names.known, c.span, word)
            continue
        if a.kind == "rng":
            hint = "a random operator names its token after the call: `token %r`"
            findings.add(
                "FB0211", f"{c.name} reads the token %{a.name}", c.span, word=word, hint=hint
            )
        elif a.name not in written and a.name in names.writers:
            writer = names.writers[a.name][0]
            note = Note(f"{writer.name} writes it", writer.span)
            findings.add("FB0204", f"{c.name} reads %{name} before it is written", c.span, note,
                      word=word)  # fmt: skip
        elif a.name in ended:
            note = Note(f"{ended[a.name].name} ends it", ended[a.name].span)
            word_of = ended[a.name].call.op
            message = f"{c.name} reads %{name} after an {word_of} has ended %{a.name}"
            findings.add("FB0210", message, c.span, note, word=word)
        if a.kind == "phantom" and c.phase == "fwd":
            message = f"{c.name} of the forward reads the phantom %{a.name}"
            findings.add("FB0206", message, c.span, word=word, hint="declare it as `act`")


def _writes(c: CNode, names: Names, findings: Findings) -> None:
    for name in c.results:
        word = f"%{name}"
        if name in names.view:
            findings.add("FB0206", f"{c.name} writes %{name}, which is a view", c.span, word=word)
        elif name not in names.anode:
            findings.unknown("aNode", name, names.anode, c.span, word)
        elif (kind := names.anode[name].kind) == "rng":
            hint = "name the token after the call: `token %r`"
            findings.add("FB0211", f"{c.name} writes the token %{name} as a result", c.span,
                      word=word, hint=hint)  # fmt: skip
        elif c.phase not in WRITER_PHASES.get(kind, (c.phase,)):
            where = " or ".join(WRITER_PHASES[kind])
            message = f"{c.name} of phase {c.phase} writes %{name} of kind {kind}"
            findings.add("FB0206", message, c.span, word=word, hint=f"{kind} is written by {where}")


def _belongs(c: CNode, names: Names, findings: Findings) -> None:
    if c.of and c.phase != "bwd":
        message = f"{c.name} of phase {c.phase} belongs to other cNodes"
        findings.add("FB0209", message, c.span, hint="only backward cNodes have `of`")
    for name in c.of:
        if name not in names.cnode:
            findings.unknown("cNode", name, names.cnode, c.span, name)
        elif names.cnode[name].phase != "fwd":
            message = f"{c.name} belongs to {name}, which is not a forward cNode"
            findings.add("FB0209", message, c.span, word=name)


def _loss(graph: Graph, names: Names, findings: Findings) -> None:
    losses = [c for c in graph.cnodes if c.is_loss]
    if len(losses) != 1:
        spans = [c.span for c in (losses or graph.cnodes)[-1:]]
        where = spans[0] if spans else None
        message = f"the graph has {len(losses)} cNodes of phase loss, not one"
        findings.add("FB0208", message, where, hint="add `L: loss %dy = loss(%y)`")
    for c in graph.cnodes:
        if c.is_loss != (c.call.op == LOSS_OP):
            message = f"{c.name} of phase {c.phase} runs {c.call.op}"
            findings.add("FB0208", message, c.span,
                      hint=f"the operator `{LOSS_OP}` and the phase loss go together")  # fmt: skip
    if len(losses) == 1:
        read = {a.name for a in map(names.storage, losses[0].call.refs()) if a is not None}
        for a in graph.anodes:
            if a.kind == "pending" and a.name not in read:
                hint = "buffers are written back at the loss, so it reads every pending aNode"
                findings.add("FB0208", f"the loss does not read pending %{a.name}", losses[0].span,
                          Note("declared here", a.span), hint=hint)  # fmt: skip
