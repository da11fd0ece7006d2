"""The statements of a graph, read from scratch.

The verifier is the second opinion: it takes the declarations (aNodes, views, cNodes, the
binding) and works out by itself which storage every name stands for, what each cNode
needs, makes and ends, and what must be there at the loss and at the end. A graph whose
statements contradict each other is refused (FB0802): no proof about it would mean much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from ...ir.diagnostics import Diagnostic, nearest
from ...ir.graph import (
    ACCUMULATE_OP,
    CALLER_KINDS,
    FUSED_OP,
    LOSS_OP,
    UPDATE_OP,
    ANode,
    Call,
    CNode,
    Ref,
)
from ...ir.program import Program
from ...ir.span import Span
from ...operators import Effects, effects
from .calls import names_in, same_call
from .packs import Packs, read_packs

KEPT_AT_END = frozenset(("output", "param_grad", "updated"))


@dataclass(frozen=True)
class Statements:
    """A graph and its binding, and what a schedule says of homes, as the proof sees them.

    `alias` gives the storage (an aNode) under every name that can be read, `behind` all
    the storages that must be alive to read a view. `kept` says, per storage that the caller
    gets, what it is to him. `homes` are his storages that are on the host between two steps: none
    of them is in `caller`. `host_end` says what is there after the last step, as `kept` does of the
    device: the homes, and gradients that go there. `pending` are the new contents of buffers,
    `updated` the buffers that take them, `handed` the names of the model's results, which the
    caller holds from the loss on, and `results` the storages under them, and what the loss makes of
    kind `output`, which he holds as long. `stream` are the
    cNodes that draw from the one stream of random numbers, and the loss (the caller's own
    may draw), in the order of capture. `takes_over` holds g1 and g2
    of each cNode `%g2 = accumulate %g1 += %c`. `packs` tells what
    is read for which aNode, by the axiom of a codec.
    """

    anodes: Mapping[str, ANode]
    cnodes: Mapping[str, CNode]
    alias: Mapping[str, str]
    behind: Mapping[str, tuple[str, ...]]
    writer: Mapping[str, CNode]
    caller: frozenset[str]
    kept: Mapping[str, str]
    pending: tuple[str, ...]
    updated: frozenset[str]
    handed: tuple[str, ...]
    results: frozenset[str]
    stream: tuple[str, ...]
    takes_over: Mapping[str, tuple[tuple[str, str], ...]]
    packs: Packs
    homes: frozenset[str] = frozenset()
    host_end: Mapping[str, str] = field(default_factory=dict)

    def away(self, homes: Iterable[str]) -> Statements:
        """The same for a schedule that says that `homes`, all of which can be, are on the host:
        what takes over their storage goes there."""
        old = self.old
        last = {old.get(name, name) for name in homes}
        return replace(
            self,
            caller=self.caller - set(homes),
            kept={name: what for name, what in self.kept.items() if name not in last},
            homes=self.caller & set(homes),
            host_end={name: self.kept.get(name, "the caller's") for name in sorted(last)},
        )

    @cached_property
    def old(self) -> dict[str, str]:
        """The storages of the caller that updates end, each with the name under which it goes
        on."""
        return {
            ended: named
            for name, pairs in self.takes_over.items()
            if self.cnodes[name].call.op == UPDATE_OP
            for ended, named in pairs
        }

    def may_be_away(self, name: str) -> bool:
        """Return whether storage can be on the host between two steps: the caller's, a gradient."""
        kind = self.anodes[name].kind
        fixed = self.updated | self.results
        return kind in ("param", "buffer", "opt_state", "param_grad") and name not in fixed

    def needs(self, call: Call) -> dict[str, str]:
        """The storages that a call needs alive, each with the name that it reads."""
        needed: dict[str, str] = {}
        for name in names_in(call):
            for storage in self.storages(name):
                needed.setdefault(storage, name)
        return needed

    def storages(self, name: str) -> tuple[str, ...]:
        """The storage that must be alive to read a name: an aNode itself, or what is behind a
        view."""
        return self.behind.get(name, (name,))


def read_statements(program: Program) -> Statements | tuple[Diagnostic, ...]:
    """The statements of `program`, or every contradiction in them (FB0802)."""
    reader = _StatementReader(program)
    reader.declare()
    if not reader.diagnostics:
        reader.read_views()
    if not reader.diagnostics:
        reader.read_cnodes()
        reader.read_binding()
        reader.read_packed_values()
    return tuple(reader.diagnostics) if reader.diagnostics else reader.result()


def _shown(writes: Sequence[str | None], index: int) -> str:
    name = writes[index] if index < len(writes) else None
    return "nothing" if name is None else f"%{name}"


class _StatementReader:
    """Collects contradictions; each pass relies on the ones before it."""

    def __init__(self, program: Program):
        self.program = program
        self.graph = program.graph
        self.diagnostics: list[Diagnostic] = []
        self.anodes: dict[str, ANode] = {}
        self.cnodes: dict[str, CNode] = {}
        self.alias: dict[str, str] = {}
        self.behind: dict[str, tuple[str, ...]] = {}
        self.written_by: dict[str, CNode] = {}
        self.updated: set[str] = set()
        self.takes_over: dict[str, tuple[tuple[str, str], ...]] = {}
        self.packs = Packs()

    def refuse(self, message: str, span: Span | None = None) -> None:
        self.diagnostics.append(Diagnostic("FB0802", message, span))

    def declare(self) -> None:
        for a in self.graph.anodes:
            if a.name in self.anodes:
                self.refuse(f"%{a.name} is declared twice", a.span)
            self.anodes[a.name] = a
            self.alias[a.name] = a.name
        for c in self.graph.cnodes:
            if c.name in self.cnodes:
                self.refuse(f"{c.name} is declared twice", c.span)
            self.cnodes[c.name] = c
        losses = [c for c in self.graph.cnodes if c.phase == "loss"]
        if len(losses) != 1:
            self.refuse(f"the graph has {len(losses)} cNodes of phase loss, not one")
        for s in self.program.symbols:
            if not s.low <= s.sample <= s.high:
                message = f"the sample {s.sample} of {s.name} is not in [{s.low}, {s.high}]"
                self.refuse(message, s.span)

    def read_views(self) -> None:
        """A view stands for its base; reading it needs whatever its call needs."""
        for view in self.graph.views:
            if view.name in self.alias:
                self.refuse(f"%{view.name} is declared twice", view.span)
                continue
            names = list(names_in(view.call))
            if not self.known(names, f"view %{view.name}", view.span):
                continue
            if not any(self.alias[name] == view.base for name in names):
                message = f"view %{view.name} says it is of %{view.base} but does not read it"
                self.refuse(message, view.span)
                continue
            if not self.is_view(view.call):
                self.refuse(f"{view.call.op} gives no view, or no certain one", view.span)
            self.alias[view.name] = view.base
            storages = (s for name in names for s in self.behind.get(name, (name,)))
            self.behind[view.name] = tuple(dict.fromkeys((view.base, *storages)))

    def is_view(self, call: Call) -> bool:
        """Return whether an operator may give a view; of a user's library it may."""
        effect = effects(call.op) or Effects("v")
        return effect.may_be_view and not effect.draws(call.args, dict(call.kwargs))

    def read_effects(self, c: CNode) -> None:
        """A call computes new values from what it reads, and from a random state that a token
        names; its results share no storage with each other nor with what it reads."""
        inside = [(inner.call, inner.writes) for inner in c.call.region]
        again = [] if c.replay is None else [(c.replay.call, c.replay.writes)]
        lies: dict[str, str] = {}
        for call, writes in inside or [(c.call, c.writes), *again]:
            effect, given = effects(call.op) or Effects(), (call.args, dict(call.kwargs))
            if effect.refusal or effect.is_unwritten or effect.writes(*given):
                self.refuse(f"{c.name} calls {call.op}, which is no function", c.span)
            if effect.draws(*given) and c.token is None:
                self.refuse(f"{c.name} calls {call.op}, which draws without a token", c.span)
            first = next(names_in(call), "") if effect.is_view else ""
            lies |= {name: lies.get(first, first) or name for name in writes if name is not None}
        places = [lies.get(name, name) for name in dict.fromkeys(c.writes) if name is not None]
        if len({*places}) < len(places) or {*places} & {*names_in(c.call)}:
            self.refuse(f"two names that {c.name} reads or writes are one storage", c.span)

    def known(self, names: Iterable[str], who: str, span: Span | None) -> bool:
        unknown = [name for name in dict.fromkeys(names) if name not in self.alias]
        for name in unknown:
            near = nearest(name, self.alias)
            self.refuse(f"{who} reads %{name}, which is not declared before it.{near}", span)
        return not unknown

    def read_cnodes(self) -> None:
        for c in self.graph.cnodes:
            self.known(names_in(c.call), c.name, c.span)
            self.read_writes(c)
            if c.replay is not None:
                self.known(names_in(c.replay.call), f"the replay form of {c.name}", c.span)
                again = [name for name in c.replay.writes if name is not None]
                if len(set(again)) < len(again) or not set(again) <= set(c.writes):
                    message = f"the replay form of {c.name} writes what {c.name} does not, or twice"
                    self.refuse(message, c.span)
                elif same_call(c.replay.call, c.call):
                    self.read_positions(c, c.replay.writes)
            if c.call.op == ACCUMULATE_OP:
                self.read_accumulate(c)
            if c.call.op == UPDATE_OP or c.phase == "opt":
                self.read_update(c)
            self.read_region(c)
            self.read_effects(c)

    def read_region(self, c: CNode) -> None:
        """A fused cNode is a function of what it reads: the composition of the calls inside."""
        forms = [c.call.op] + ([] if c.replay is None else [c.replay.call.op])
        if not c.call.region:
            if FUSED_OP in forms:
                self.refuse(f"{c.name} is fused, and no calls stand inside", c.span)
            return
        known = {arg.name for arg in c.call.args if isinstance(arg, Ref)}
        plain = len(known) == len(c.call.args) and not c.call.kwargs
        if forms != [FUSED_OP] or c.token is not None or not plain:
            message = f"{c.name} is not of the form %y = fused(%x, …) {{ … }}"
            self.refuse(message, c.span)
        made: set[str] = set()
        for inner in c.call.region:
            if inner.call.op in (LOSS_OP, ACCUMULATE_OP, UPDATE_OP, FUSED_OP) or inner.call.region:
                self.refuse(f"{inner.call.op} stands inside {c.name}", c.span)
            for name in {*names_in(inner.call)} - known - made:
                self.refuse(f"{c.name} reads %{name} inside before it is there", c.span)
            for result in (name for name in inner.writes if name is not None):
                if result in known | made:
                    self.refuse(f"{c.name} writes %{result} inside and has it already", c.span)
                made.add(result)
        for written in c.writes:
            if written not in made:
                shown = "_" if written is None else f"%{written}"
                self.refuse(f"no call inside {c.name} writes {shown}", c.span)

    def read_positions(self, c: CNode, again: Sequence[str | None]) -> None:
        """A replay form with the cNode's own call gives each result in the same place."""
        for index, name in enumerate(again):
            if index >= len(c.writes) or name not in (None, c.writes[index]):
                what = f"%{name}" if name is not None else "nothing"
                message = (
                    f"the replay form of {c.name} is the same call and writes {what} as result "
                    f"{index + 1}, where {c.name} writes {_shown(c.writes, index)}"
                )
                hint = "write each result where the cNode writes it, or _"
                self.diagnostics.append(Diagnostic("FB0824", message, c.span, hint=hint))
                return

    def read_writes(self, c: CNode) -> None:
        written = [name for name in c.writes if name is not None]
        if c.token is not None:
            written.append(c.token)
        for name in written:
            if name not in self.anodes:
                self.refuse(f"{c.name} writes %{name}, which is not an aNode", c.span)
                continue
            kind = self.anodes[name].kind
            if kind in CALLER_KINDS:
                self.refuse(f"{c.name} writes %{name}, a {kind} of the caller", c.span)
            if (kind == "rng") != (name == c.token):
                message = f"{c.name}: %{name} is of kind {kind}; tokens, and they alone, are rng"
                self.refuse(message, c.span)
            if name in self.written_by:
                other = self.written_by[name].name
                self.refuse(f"%{name} is written by {other} and by {c.name}", c.span)
            self.written_by[name] = c

    def read_accumulate(self, c: CNode) -> None:
        match c.call.args, c.call.kwargs, c.writes, c.replay, c.token:
            case (Ref(first), Ref(_)), (), (str() as named,), None, None:
                if first in self.alias and named in self.anodes:
                    self.takes_over[c.name] = ((self.alias[first], named),)
            case _:
                message = f"{c.name} is not of the form %g2 = accumulate %g1 += %c"
                self.refuse(message, c.span)

    def read_update(self, c: CNode) -> None:
        """Parameters and states of the caller come first, each once, with a result for each."""
        firsts = [arg.name for arg in c.call.args[: len(c.writes)] if isinstance(arg, Ref)]
        kinds = {self.anodes[name].kind for name in firsts if name in self.anodes}
        made = {self.anodes[name].kind for name in c.writes if name in self.anodes}
        whole = len({*firsts} & self.anodes.keys()) == len(c.writes) > 0
        plain = c.call.op == UPDATE_OP and c.phase == "opt" and not c.replay and not c.token
        if not (whole and plain and kinds <= {"param", "opt_state"} and made == {"updated"}):
            self.refuse(f"{c.name} is not of the form %w2, … = update(%w, …)", c.span)
            return
        pairs = zip(firsts, c.writes, strict=True)
        self.takes_over[c.name] = tuple((a, b) for a, b in pairs if b is not None)
        if {*firsts} & {*self.updated}:
            self.refuse(f"{c.name} updates what was updated already", c.span)
        self.updated |= {*firsts}

    def read_binding(self) -> None:
        binding = self.program.binding
        for p in binding.params:
            names = (p.name,) if p.grad is None else (p.name, p.grad)
            self.known(names, f'parameter "{p.names[0]}"', p.span)
        for b in binding.buffers:
            names = (b.name,) if b.update is None else (b.name, b.update)
            self.known(names, f'buffer "{b.names[0]}"', b.span)
        for r in binding.results:
            self.known((r.name,), "a result", r.span)
        self.known((name for _, name in binding.input_grads), "a gradient of an input", None)

    def read_packed_values(self) -> None:
        if not self.diagnostics:
            found = read_packs(self.graph, self.anodes, self.written_by, self.packs)
            self.diagnostics += found

    def result(self) -> Statements:
        binding = self.program.binding
        caller = frozenset(a.name for a in self.graph.anodes if a.kind in CALLER_KINDS)
        updates = [b.update for b in binding.buffers if b.update is not None]
        pending = [a.name for a in self.graph.anodes if a.kind == "pending"]
        pending += [self.alias[name] for name in updates]
        outputs = {a.name for a in self.graph.anodes if a.kind == "output"}
        losses = [c for c in self.graph.cnodes if c.phase == "loss"]
        roots = [name for c in losses for name in c.writes if name in outputs]
        return Statements(
            anodes=self.anodes,
            cnodes=self.cnodes,
            alias=self.alias,
            behind=self.behind,
            writer=self.written_by,
            caller=caller,
            kept=self.kept(caller),
            pending=tuple(name for name in dict.fromkeys(pending) if name not in caller),
            updated=frozenset(self.alias[b.name] for b in binding.buffers if b.update is not None),
            handed=tuple(r.name for r in binding.results),
            results=frozenset((*(self.alias[r.name] for r in binding.results), *roots)),
            stream=tuple(
                c.name for c in self.graph.cnodes if c.token is not None or c.phase == "loss"
            ),
            takes_over=self.takes_over,
            packs=self.packs,
        )

    def kept(self, caller: frozenset[str]) -> dict[str, str]:
        binding = self.program.binding
        kinds = {a.name: a.kind for a in self.graph.anodes if a.kind in KEPT_AT_END}
        named: dict[str, str] = {}
        named |= {r.name: "a result of the model" for r in binding.results}
        for index, name in binding.input_grads:
            named[name] = f"the gradient of argument {index}"
        for p in binding.params:
            if p.grad is not None:
                named[p.grad] = f'the gradient of "{p.names[0]}"'
        kept = {name: f"declared {kind}" for name, kind in kinds.items()}
        kept |= {self.alias[name]: what for name, what in named.items()}
        return {name: what for name, what in kept.items() if name not in caller}
