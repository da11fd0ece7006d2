"""Obligation 2: device, activation and host bytes within a bound at every step.

Stands on obligation 1. Bytes are prefix sums: `act` counts activations, `held` the rest
(what the caller holds and the gradients of parameters), `host` the copies on the host, in
single-assignment form. A
result that is still alive when its cNode runs again is made beside the old one and
dropped, so what a step adds to the sum depends on what is alive, which z3 sees too.

Sizes are numerals where the symbols are fixed. Where they range (`symbolic`) a size is a
constant that may be any number >= 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .events import Event
from .sizes import Amounts, value
from .smt import Deadline, Encoding, Facts, Model, NoModel, OutOfTime, numeral
from .statements import Statements
from .terms import total
from .validity import advance, start
from .walk import Alive, Bytes, counted, peaks, walk

__all__ = ["Excess", "Limits", "Tally", "encode_memory", "prove_memory"]


@dataclass(frozen=True)
class Limits:
    """Budgets in bytes; None where there is none."""

    device: int | None
    activation: int | None
    host: int | None = None

    @property
    def all(self) -> tuple[int | None, int | None, int | None]:
        return self.device, self.activation, self.host

    def at_most(self, bound: Bytes) -> Bytes:
        """The lower of the bound and the budget, each for itself."""

        def lower(count: int, limit: int | None) -> int:
            return count if limit is None else min(count, limit)

        return Bytes(
            lower(bound.device, self.device),
            lower(bound.activation, self.activation),
            lower(bound.host, self.host),
        )


@dataclass(frozen=True)
class Excess:
    """The bytes during every counted step of a schedule that does not hold its limits."""

    during: dict[int, Bytes]


@dataclass(frozen=True, slots=True)
class Row:
    """During step `event`: the constants that hold the sums, and what comes on top."""

    event: int
    act: str
    held: str
    host: str
    device: str
    activation: str
    on_host: str = "0"


@dataclass(slots=True)
class Tally:
    """A sum of sizes: how many of each form, the fixed ones added up."""

    fixed: int = 0
    forms: Counter[int] = field(default_factory=Counter)


class _Encoder:
    """`number` holds, per form of `amounts`, its bytes; None for one that may be any."""

    def __init__(self, statements: Statements, amounts: Amounts, number: Sequence[int | None]):
        self.statements = statements
        self.amounts = amounts
        self.number = number
        self.encoding = Encoding()
        self.facts = Facts(self.encoding)
        self.declared: set[int] = set()
        self.rows: list[Row] = []
        self.count = 0
        start(self.facts, statements)
        self.alive = Alive(statements)
        held = [amounts.anode[name] for name in statements.caller]
        self.sums = {
            "act": self.tally(()),
            "held": self.tally([*amounts.existing, *held]),
            "host": self.tally(()),
        }
        self.now: dict[str, str] = {}
        self.begin()

    def tally(self, forms: Iterable[int]) -> Tally:
        found = Tally()
        for form in forms:
            self.add(found, form, 1)
        return found

    def add(self, sum_: Tally, form: int, sign: int) -> None:
        number = self.number[form]
        if number is None:
            sum_.forms[form] += sign
        else:
            sum_.fixed += sign * number

    def term(self, form: int) -> str:
        number = self.number[form]
        if number is not None:
            return numeral(number)
        if form not in self.declared:
            self.declared.add(form)
            self.encoding.state(f"(declare-const S{form} Int)(assert (>= S{form} 0))")
        return f"S{form}"

    def written(self, sum_: Tally) -> str:
        """A sum as a term; equal sizes are counted."""
        parts = [f"(* {numeral(n)} {self.term(form)})" for form, n in sum_.forms.items() if n]
        if sum_.fixed or not parts:
            parts.append(numeral(sum_.fixed))
        return total(parts)

    def begin(self) -> None:
        """At the start of a part the sums have the values that the part before ends with."""
        for name, sum_ in self.sums.items():
            self.count += 1
            term = self.written(sum_)
            self.now[name] = self.encoding.define(f"{name}{self.count}", "Int", term)

    def cut(self) -> None:
        for name, sum_ in self.sums.items():
            self.encoding.ask(f"(not (= {self.now[name]} {self.written(sum_)}))")
        self.encoding.cut()
        self.declared.clear()
        self.begin()

    def step(self, event: Event) -> None:
        if event.takes or event.to_host:
            self.rows.append(self.row(event))
        changes = list(self.changes(event))
        for sum_, now in list(self.now.items()):
            if terms := [term for name, term in changes if name == sum_]:
                self.count += 1
                term = total([now, *terms])
                self.now[sum_] = self.encoding.define(f"{sum_}{self.count}", "Int", term)
        advance(self.facts, self.statements, event)
        self.follow(event)
        if event.ends is not None:
            # The storage may count as another class under its new name.
            self.rows.append(self.row(None, event.index))

    def row(self, event: Event | None, index: int = 0) -> Row:
        """What is alive, and what a step takes while it runs: its results and its workspace."""
        now = self.now["act"], self.now["held"], self.now["host"]
        if event is None:
            return Row(index, *now, "0", "0")
        workspace: tuple[int, ...] = ()
        if event.cnode is not None:
            workspace = (self.amounts.workspace[event.cnode.name][event.execution > 1],)
        made = [(self.amounts.anode[name], counted(self.statements, name)) for name in event.makes]
        on_top = (
            self.tally([*workspace, *(form for form, _ in made)]),
            self.tally([*workspace, *(form for form, sum_ in made if sum_ == "act")]),
            self.tally(self.amounts.anode[name] for name in event.to_host),
        )
        return Row(event.index, *now, *map(self.written, on_top))

    def changes(self, event: Event) -> Iterator[tuple[str, str]]:
        """Per aNode, the sum that counts it and the term that a step adds to that."""
        form = self.amounts.anode
        for name in event.makes:
            if self.number[form[name]] != 0:
                alive = self.facts.now("alive", name)
                yield counted(self.statements, name), f"(ite {alive} 0 {self.term(form[name])})"
        if event.ends is not None and event.becomes is not None:
            old, new = event.ends, event.becomes
            if counted(self.statements, old) != counted(self.statements, new):
                yield counted(self.statements, old), f"(- {self.term(form[old])})"
                yield counted(self.statements, new), self.term(form[new])
        for name in event.gives_back:
            if self.number[form[name]] != 0:
                yield counted(self.statements, name), f"(- {self.term(form[name])})"
        for name in event.to_host:
            yield "host", self.term(form[name])
        for name in event.off_host:
            yield "host", f"(- {self.term(form[name])})"

    def follow(self, event: Event) -> None:
        """The same by a plain walk, to begin the next part with; `cut` asks whether it is so."""
        for name, sign in self.alive.after(event):
            self.add(self.sums[counted(self.statements, name)], self.amounts.anode[name], sign)
        for name in event.to_host:
            self.add(self.sums["host"], self.amounts.anode[name], 1)
        for name in event.off_host:
            self.add(self.sums["host"], self.amounts.anode[name], -1)


def encode_memory(
    statements: Statements,
    events: Sequence[Event],
    amounts: Amounts,
    number: Sequence[int | None],
    ceilings: Callable[[int], tuple[Tally, Tally]],
    host_ceiling: Callable[[int], Tally],
) -> tuple[Encoding, list[Row]]:
    """The definitions of the sums; the goals say that a step exceeds its ceilings.

    `ceilings` gives those of a row by its number: for all bytes of the device, and for
    activations; `host_ceiling` that of a row of the host, by its number among these.
    """
    encoder = _Encoder(statements, amounts, number)
    asked = on_host = on_device = 0
    for event in events:
        encoder.step(event)
        for row in encoder.rows[asked:]:
            if event.to_host:
                host = encoder.written(host_ceiling(on_host))
                encoder.encoding.ask(f"(> (+ {row.host} {row.on_host}) {host})")
                on_host += 1
                continue
            device, activation = map(encoder.written, ceilings(on_device))
            on_device += 1
            encoder.encoding.ask(f"(> (+ {row.act} {row.activation}) {activation})")
            encoder.encoding.ask(f"(> (+ {row.act} {row.held} {row.device}) {device})")
        asked = len(encoder.rows)
        if encoder.encoding.is_full:
            encoder.cut()
    return encoder.encoding, encoder.rows


def prove_memory(
    statements: Statements,
    events: list[Event],
    amounts: Amounts,
    env: Mapping[str, int],
    limits: Limits,
    deadline: Deadline,
) -> Bytes | Excess | OutOfTime:
    """At `env`: the least bound that z3 proves within `limits`, or the steps above them."""
    during = walk(statements, events, amounts.at(env))
    bound = peaks(during)
    tried = limits.at_most(bound)
    ceilings = Tally(tried.device), Tally(tried.activation)
    number = [value(form, env) for form in amounts.forms]
    host = Tally(tried.host)
    encoding, rows = encode_memory(
        statements, events, amounts, number, lambda _: ceilings, lambda _: host
    )
    match answer := encoding.check(deadline):
        case OutOfTime():
            return answer
        case NoModel() if tried == bound:
            return bound
        case Model() if tried != bound and _agree(rows, answer, during):
            return Excess(during)
        case _:
            return OutOfTime("z3 and the plain walk do not agree on the bytes")


def _agree(rows: Sequence[Row], model: Model, during: Mapping[int, Bytes]) -> bool:
    """Whether the model's sums are what the walk says, at every step that it speaks of."""
    for row in rows:
        seen = during[row.event]
        act, held, host = (model.values.get(name) for name in (row.act, row.held, row.host))
        if act is not None and act + int(row.activation) > seen.activation:
            return False
        if act is not None and held is not None and act + held + int(row.device) > seen.device:
            return False
        if host is not None and host + int(row.on_host) > seen.host:
            return False
    return True
