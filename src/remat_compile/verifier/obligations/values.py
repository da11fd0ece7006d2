"""Obligation 3: every executed read finds the value that the unplanned graph gives it.

Values are terms over uninterpreted functions, one per cNode and result, of all that the
cNode needs and of the state of the random stream that it draws from. `spec/verification.md`
states the mathematics; the proof is by induction on the steps, in parts.

Copies count as done where they are issued; that no timing changes it is obligation 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from ...ir.codecs import UNPACKS
from ...ir.graph import CNode
from ...ir.schedule import Compute, Free, HostFree, Offload, Prefetch, Wait
from ..inquiry import Inquiry
from ..read.calls import same_call
from ..read.events import Event
from ..read.statements import Statements
from ..smt import Encoding, Facts, Model, NoModel, OutOfTime, ScriptPart, boolean
from .machine import EncodedMachine, advance

ValueRule = Literal["read", "draw", "copy", "kept", "buffer", "stream"]
"""The subject of a clause; `explain_values` says it in words."""

STREAM = "stream"
"""The state of the generator of random numbers, as a location."""


@dataclass(frozen=True, slots=True)
class Misread:
    """At `event` (None: at the end) the value of `subject` must be that of the graph.

    `maker` is the event that left what is found there instead, where one did.
    """

    rule: ValueRule
    event: int | None
    subject: str
    maker: int | None


@dataclass(frozen=True)
class WrongValues:
    """The clauses that z3 finds a model against, those that only follow from others left out."""

    clauses: tuple[Misread, ...]


@dataclass(slots=True)
class _Content:
    """The content of a location: a constant of a part that uses it, and whether a plain walk
    expects the value of the graph there. A wrong one that `follows` comes of an earlier one.
    """

    right: bool
    maker: int | None
    name: str = ""
    part: int = -1
    follows: bool = False


class _ValueEncoder:
    """Writes what the steps do to the contents of storage, and what the graph says they are."""

    def __init__(self, statements: Statements):
        self.statements = statements
        self.encoding = Encoding()
        self.facts = Facts(self.encoding)
        self.machine = EncodedMachine(self.facts, statements)
        self.fail: list[list[str]] = []
        self.broken: list[Misread] = []
        self.device = {name: _Content(True, None) for name in statements.caller}
        self.host = {name: (_Content(True, None), 0) for name in statements.homes}
        self.version: dict[str, int] = {}
        self.stream = _Content(True, None)
        self.at_loss: dict[str, int] = {}
        self.count = 0
        self.drawn_at = {name: index for index, name in enumerate(statements.stream)}
        self.tokens = {
            token: index
            for name, index in self.drawn_at.items()
            if (token := statements.cnodes[name].token) is not None
        }
        self.passed = 0
        self.numbers: dict[str, int] = {}
        self.begin()

    # Names. The graph's values are `T…`, states of the stream `R…`, contents `v…`.

    def begin(self) -> None:
        self.encoding.state("(declare-sort V 0)")
        self.touched: dict[str, None] = {}
        self.fail.append([])
        self.functions: set[str] = set()
        self.graph: set[str] = set()
        self.defined: set[str] = set()

    def number(self, name: str) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    def constant(self, name: str) -> str:
        if name not in self.graph:
            self.graph.add(name)
            self.encoding.state(f"(declare-const {name} V)")
        return name

    def truth(self, name: str) -> str:
        """The value that the graph gives an aNode; a token holds a state of the stream, and what a
        codec makes again has the value of its source, by its axiom."""
        packs = self.statements.packs
        name = packs.sources[name] if name in packs.exact else name
        if name in self.tokens:
            return self.state(self.tokens[name])
        return self.constant(f"T{self.number(name)}")

    def state(self, position: int) -> str:
        """The state of the stream before the draw at `position` in the graph's order."""
        return self.constant(f"R{position}")

    def content(self, held: _Content, truth: str) -> str:
        """The constant of a content. One from an earlier part is what that part proved."""
        if held.part != self.encoding.part:
            held.part = self.encoding.part
            self.count += 1
            held.name = self.constant(f"v{self.count}")
            if held.right:
                self.encoding.state(f"(assert (= {held.name} {truth}))")
        return held.name

    def made(self, term: str, right: bool, maker: int, *, follows: bool = False) -> _Content:
        self.count += 1
        name = self.constant(f"v{self.count}")
        self.encoding.state(f"(assert (= {name} {term}))")
        return _Content(right, maker, name, self.encoding.part, follows)

    def apply(self, function: str, args: Sequence[str]) -> str:
        """An application; a function of no arguments is a constant."""
        if function not in self.functions:
            self.functions.add(function)
            self.encoding.state(f"(declare-fun {function} ({' '.join(['V'] * len(args))}) V)")
        return f"({function} {' '.join(args)})" if args else function

    # Clauses.

    def demand(
        self, rule: ValueRule, event: Event | None, subject: str, held: _Content, truth: str
    ) -> None:
        """The held value must be `truth`; a wrong value is told once, where it arises."""
        claim = f"(= {self.content(held, truth)} {truth})"
        if held.right:
            self.encoding.ask(f"(not {claim})")
            return
        self.fail[-1].append(f"(not {claim})")
        if not held.follows:
            index = None if event is None else event.index
            self.broken.append(Misread(rule, index, subject, held.maker))

    def cut(self) -> None:
        """Facts at the end of a part are proven there, and assumed in the next one. Only what
        the part touches is new there."""
        for name in self.touched:
            on_host, _ = self.host.get(name, (None, 0))
            for held in (self.device.get(name), on_host):
                if held is not None and self.new(held):
                    self.keep(held, self.truth(name))
        if self.new(self.stream):
            self.keep(self.stream, self.state(self.passed))
        self.encoding.cut()
        self.begin()

    def new(self, held: _Content) -> bool:
        """Right, and made in this part or taken up in it."""
        return held.right and held.part == self.encoding.part

    def keep(self, held: _Content, truth: str) -> None:
        self.encoding.ask(f"(not (= {held.name} {truth}))")

    # Steps.

    def step(self, event: Event) -> None:
        """The contents after a step. Whether there is one already, which then stays, is asked."""
        made = {*event.makes, *(named for _, named in event.renames)}
        self.touched.update(dict.fromkeys(_names(event)))
        for change in self.machine.contents(event):
            if change.what == "alive" and change.anode in made:
                present = boolean(change.anode in self.device)
                self.encoding.ask(f"(not (= {change.before} {present}))")
        self.move(event)
        advance(self.facts, self.statements, event)

    def move(self, event: Event) -> None:
        match event.step:
            case Compute() if event.update is not None:
                self.update_on_host(event, event.update)
            case Compute():
                assert event.cnode is not None
                self.compute(event, event.cnode)
            case Free(name):
                if name not in self.statements.caller:
                    self.device.pop(name, None)
            case Offload(name):
                held = self.device.get(name) or _Content(False, None)
                self.host[name] = held, self.version.get(name, 0)
            case Prefetch(name):
                self.prefetch(event, name)
            case HostFree(name):
                self.host.pop(name, None)
            case Wait():
                pass
            case _:
                assert_never(event.step)

    def prefetch(self, event: Event, name: str) -> None:
        """A host copy is of one version of its storage, which an accumulation ends."""
        held, version = self.host.get(name, (_Content(False, None), 0))
        if held.right and version != self.version.get(name, 0):
            held = _Content(False, held.maker)
            self.demand("copy", event, name, held, self.truth(name))
            held = _Content(False, event.index, follows=True)
        self.device.setdefault(name, held)

    def on_host(self, name: str) -> _Content:
        """The content of a host copy; a stale one is of another version of its storage."""
        held, version = self.host.get(name, (_Content(False, None), 0))
        return held if version == self.version.get(name, 0) else _Content(False, held.maker)

    def update_on_host(self, event: Event, c: CNode) -> None:
        """As `compute`, on host copies."""
        args, right = [], True
        reads = [*self.statements.needs(c.call)]
        for name in reads:
            held = self.on_host(name)
            self.demand("copy", event, name, held, self.truth(name))
            args.append(self.content(held, self.truth(name)))
            right &= held.right
        stem = self.number(f"cNode {c.name}")
        for place, (ended, named) in enumerate(event.takes_over):
            function = f"f{stem}_{place}"
            if (definition := f"{function} of {named}") not in self.defined:
                self.defined.add(definition)
                truth = self.apply(function, [self.truth(name) for name in reads])
                self.encoding.state(f"(assert (= {self.truth(named)} {truth}))")
            made = self.made(self.apply(function, args), right, event.index, follows=True)
            self.host.pop(ended, None)
            self.host[named] = made, self.version.get(named, 0)

    def compute(self, event: Event, c: CNode) -> None:
        args, right = [], True
        for name in event.needs:
            held = self.device.get(name) or _Content(False, None)
            self.demand("read", event, name, held, self.truth(name))
            args.append(self.content(held, self.truth(name)))
            right &= held.right
        true_args = [self.truth(name) for name in event.needs]
        if c.name in self.drawn_at:
            drawn, state = self.draw(event, c), self.state(self.drawn_at[c.name])
            args.append(self.content(drawn, state))
            true_args.append(state)
            right &= drawn.right
        again = None if event.execution == 1 else c.replay
        other = again is not None and not same_call(again.call, c.call)
        names = [named for _, named in event.takes_over] or event.makes
        results = [name for name in names if name != c.token]
        own = {result: index for index, result in enumerate(c.writes) if result is not None}
        written = c.writes if again is None else again.writes
        stem = self.number(f"cNode {c.name}")
        for index, result in enumerate(written):
            if result is None or result not in results:
                continue
            # The same call is the same function, by position. Of a form with another call
            # the definition is the axiom that it gives the same result.
            defines = f"g{stem}_{own[result]}" if other else f"f{stem}_{own[result]}"
            function = defines if other else f"f{stem}_{index}"
            if (definition := f"{defines} of {result}") not in self.defined:
                self.defined.add(definition)
                for given in self.readings(true_args, event):
                    truth = self.apply(defines, given)
                    self.encoding.state(f"(assert (= {self.truth(result)} {truth}))")
            in_place = function == defines
            term = self.apply(function, args)
            made = self.made(term, right and in_place, event.index, follows=in_place)
            if event.takes_over or result not in self.device:
                self.device[result] = made
        self.after(event, c)

    def readings(self, true_args: Sequence[str], event: Event) -> Iterator[Sequence[str]]:
        """The arguments that give a result of the graph: what is read, and, where stand-ins are,
        what they are read for (the axiom that both give the same)."""
        yield true_args
        sources = self.statements.packs.sources
        plain = [self.truth(sources.get(name, name)) for name in event.needs]
        if event.cnode is not None and event.cnode.call.op not in UNPACKS:
            plain += true_args[len(plain) :]
            if plain != [*true_args]:
                yield plain

    def draw(self, event: Event, c: CNode) -> _Content:
        """The state of the stream that a random operator draws from, which then moves on."""
        position = self.drawn_at[c.name]
        truth = self.state(position)
        kept = self.device.get(c.token) if c.token is not None else None
        if event.execution > 1 and kept is not None:
            self.demand("draw", event, c.name, kept, truth)
            return kept
        state = self.stream
        if state.right and self.passed != position:
            state = _Content(False, state.maker)
        self.demand("draw", event, c.name, state, truth)
        if c.token is not None and c.token in event.makes:
            self.device.setdefault(c.token, state)
        function = f"h{self.number(f'cNode {c.name}')}"
        after = self.state(position + 1)
        if (definition := f"{function} of the stream") not in self.defined:
            self.defined.add(definition)
            self.encoding.state(f"(assert (= {after} {self.apply(function, [truth])}))")
        right = state.right and event.execution == 1
        term = self.apply(function, [self.content(state, truth)])
        self.stream = self.made(term, right, event.index, follows=not state.right)
        self.passed = position + 1
        return state

    def after(self, event: Event, c: CNode) -> None:
        for name in event.gives_back:
            if name not in self.statements.caller:
                self.device.pop(name, None)
        for ended, named in event.takes_over:
            if ended != named:
                self.device.pop(ended, None)
            if ended in self.host:
                self.version[ended] = self.version.get(ended, 0) + 1
        if c.phase == "loss":
            for name in self.statements.updated:
                self.at_loss[name] = self.at_loss.get(name, 0) + 1
                self.device[name] = _Content(False, event.index)

    def end(self) -> None:
        """The results and gradients, the buffers and the stream are as in the unplanned step."""
        for name in self.statements.kept:
            held = self.device.get(name) or _Content(False, None)
            self.demand("kept", None, name, held, self.truth(name))
        for name in self.statements.host_end:
            self.demand("kept", None, name, self.on_host(name), self.truth(name))
        for name in sorted(self.statements.updated):
            if self.at_loss.get(name, 0) != 1:
                self.demand("buffer", None, name, _Content(False, None), self.truth(name))
        last = len(self.statements.stream)
        if self.stream.right and self.passed != last:
            self.stream = _Content(False, self.stream.maker)
        self.demand("stream", None, STREAM, self.stream, self.state(last))


def _names(event: Event) -> Iterator[str]:
    """The aNodes whose contents a step reads, makes or copies."""
    yield from event.needs
    yield from event.makes
    yield from event.looks
    for pair in event.takes_over:
        yield from pair
    if event.token is not None:
        yield event.token
    if not isinstance(event.step, Compute):
        yield event.step.anode


@dataclass(frozen=True)
class Encoded:
    """`encoding` asks whether a clause that should hold can fail. `fail` has, per part, the
    negations of those that should not hold, and `broken` is what they are about."""

    encoding: Encoding
    fail: list[list[str]]
    broken: tuple[Misread, ...]


def encode_values(statements: Statements, events: Iterable[Event]) -> Encoded:
    """The contents along the steps, and the clauses, in the order of the steps."""
    encoder = _ValueEncoder(statements)
    for event in events:
        encoder.step(event)
        if encoder.encoding.is_full:
            encoder.cut()
    encoder.end()
    return Encoded(encoder.encoding, encoder.fail, tuple(encoder.broken))


def prove_values(
    statements: Statements, events: Iterable[Event], inquiry: Inquiry
) -> NoModel | WrongValues | OutOfTime:
    """NoModel: proven. WrongValues: refuted, z3 having a model against all clauses at once."""
    encoded = encode_values(statements, events)
    match answer := encoded.encoding.check(inquiry):
        case OutOfTime():
            return answer
        case Model():
            return OutOfTime("z3 and the plain walk do not agree on the values")
        case NoModel():
            pass
    for part, fail in zip(encoded.encoding.parts, encoded.fail, strict=True):
        if not fail:
            continue
        goal = ScriptPart(part.lines, [f"(and true {' '.join(fail)})"])
        match inquiry.ask(goal, encoded.encoding.tactics):
            case OutOfTime() as late:
                return late
            case NoModel():
                return OutOfTime("z3 and the plain walk do not agree on the values")
            case Model():
                pass
    return WrongValues(encoded.broken) if encoded.broken else NoModel()
