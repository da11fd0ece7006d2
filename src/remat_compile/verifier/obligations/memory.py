"""Obligation 2: device, activation and host bytes within a bound at every step.

Stands on obligation 1. Bytes are prefix sums: `dev` counts all that is on the device, `act` the
activations among it, `host` the copies on the host, in single-assignment form. What a step
does to them follows from what it does to what is there (`machine.EncodedMachine`), which z3 sees
too: a result that is still alive when its cNode runs again is made beside the old one and dropped.

Where the symbols are fixed a size is the expression of the file, which z3 evaluates. Where they
range (`symbolic`) it is a constant that may be any number >= 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..answer import TACTICS
from ..arithmetic.terms import ground, total
from ..arithmetic.walk import Alive, StepBytes, counted, peaks, walk
from ..inquiry import Inquiry
from ..read.events import Event
from ..read.sizes import Amounts, value
from ..read.statements import Statements
from ..smt import Encoding, Facts, Model, NoModel, OutOfTime, numeral
from .machine import EncodedMachine, advance

RANGING_TACTICS = ("solve-eqs", "simplify", "smt")
"""For sums in which sizes may be any number: without `propagate-values` before them a part of 8 000
lines takes 0.27 s of z3 and not 0.60; where all sizes are known it is the other way round."""


@dataclass(frozen=True)
class ByteLimits:
    """Budgets in bytes; None where there is none."""

    device: int | None
    activation: int | None
    host: int | None = None

    @property
    def all(self) -> tuple[int | None, int | None, int | None]:
        return self.device, self.activation, self.host

    def at_most(self, bound: StepBytes) -> StepBytes:
        """The lower of the bound and the budget, each for itself."""

        def lower(count: int, limit: int | None) -> int:
            return count if limit is None else min(count, limit)

        return StepBytes(
            lower(bound.device, self.device),
            lower(bound.activation, self.activation),
            lower(bound.host, self.host),
        )


@dataclass(frozen=True)
class Excess:
    """The bytes during every counted step of a schedule that does not hold its limits."""

    during: dict[int, StepBytes]


@dataclass(frozen=True, slots=True)
class Row:
    """During step `event`: the constants that hold the sums, and what comes on top.

    `device`, `activation` and `on_host` are the terms of it, the others its forms.
    """

    event: int
    dev: str
    act: str
    host: str
    device: str
    activation: str
    on_host: str
    device_forms: tuple[int, ...] = ()
    activation_forms: tuple[int, ...] = ()
    host_forms: tuple[int, ...] = ()


@dataclass(slots=True)
class Tally:
    """A sum of sizes: how many of each form, the fixed ones added up."""

    fixed: int = 0
    forms: Counter[int] = field(default_factory=Counter)


class _MemoryEncoder:
    """`number` holds, per form of `amounts`, its bytes at `env`; None for one that may be any."""

    def __init__(
        self,
        statements: Statements,
        amounts: Amounts,
        number: Sequence[int | None],
        env: Mapping[str, int],
    ):
        self.statements = statements
        self.amounts = amounts
        self.number = number
        self.env = env
        self.encoding = Encoding(RANGING_TACTICS if None in number else TACTICS)
        self.facts = Facts(self.encoding)
        self.machine = EncodedMachine(self.facts, statements)
        self.declared: set[int] = set()
        self.proven: set[int] = set()
        self.rows: list[Row] = []
        self.count = 0
        self.alive = Alive(statements)
        held = [amounts.anode[name] for name in statements.caller]
        at_home = [amounts.anode[name] for name in statements.homes]
        self.claimed = {
            "dev": self.tally([*amounts.existing, *held]),
            "act": self.tally(()),
            "host": self.tally([*amounts.existing_host, *at_home]),
        }
        self.now: dict[str, str] = {}
        self.start()

    def tally(self, forms: Iterable[int]) -> Tally:
        sums = Tally()
        for form in forms:
            self.add(sums, form, 1)
        return sums

    def add(self, sum_: Tally, form: int, sign: int) -> None:
        number = self.number[form]
        if number is None:
            sum_.forms[form] += sign
        else:
            sum_.fixed += sign * number

    def term(self, form: int) -> str:
        """The constant of a size: what the file says, or any number >= 0 where symbols range."""
        if form in self.declared:
            return f"S{form}"
        self.declared.add(form)
        number = self.number[form]
        if number is None:
            self.encoding.state(f"(declare-const S{form} Int)(assert (>= S{form} 0))")
            return f"S{form}"
        self.encoding.define(f"S{form}", "Int", ground(self.amounts.forms[form], self.env))
        if form not in self.proven:
            self.proven.add(form)
            self.encoding.ask(f"(not (= S{form} {numeral(number)}))")
        return f"S{form}"

    def written(self, sum_: Tally) -> str:
        """A sum as a term; equal sizes are counted."""
        parts = [f"(* {numeral(n)} {self.term(form)})" for form, n in sum_.forms.items() if n]
        if sum_.fixed or not parts:
            parts.append(numeral(sum_.fixed))
        return total(parts)

    def change(self, sum_: str, term: str) -> None:
        self.count += 1
        self.now[sum_] = self.encoding.define(f"{sum_}{self.count}", "Int", term)

    def start(self) -> None:
        """Before the first step there is what is alive then. Equal aNodes are counted."""
        form = self.amounts.anode
        alike = Counter((kind, form[name]) for name, kind in self.machine.kinds.items())
        there = [
            f"(* {n} (counts (start.alive {kind}) {self.term(form)}))"
            for (kind, form), n in alike.items()
        ]
        self.change("dev", total([*there, *map(self.term, self.amounts.existing)]))
        activations = [
            f"(* {n} (counts (start.alive {kind}) (act.size {kind} {self.term(form)})))"
            for (kind, form), n in alike.items()
        ]
        self.change("act", total(activations))
        hosted = [
            f"(* {n} (counts (start.hosted {kind}) {self.term(form)}))"
            for (kind, form), n in alike.items()
            if kind in ("kind.home", "kind.old_home")
        ]
        self.change("host", total([*hosted, *map(self.term, self.amounts.existing_host)]))

    def cut(self) -> None:
        """The next part starts from what a plain walk says; this one is asked whether it is so."""
        claims = {name: self.written(tally) for name, tally in self.claimed.items()}
        for name, claim in claims.items():
            self.encoding.ask(f"(not (= {self.now[name]} {claim}))")
        self.encoding.cut()
        self.declared.clear()
        for name, tally in self.claimed.items():
            self.change(name, self.written(tally))

    def step(self, event: Event) -> None:
        if event.takes or event.to_host:
            self.rows.append(self.row(event))
        terms: dict[str, list[str]] = {name: [] for name in self.now}
        for change in self.machine.contents(event):
            kind = self.machine.kinds[change.anode]
            size = self.term(self.amounts.anode[change.anode])
            facts = f"{change.before} {change.after}"
            if change.what == "hosted":
                terms["host"].append(f"(change {facts} {size})")
            else:
                terms["dev"].append(f"(change {facts} {size})")
                terms["act"].append(f"(change {facts} (act.size {kind} {size}))")
        for name, changes in terms.items():
            if changes:
                self.change(name, total([self.now[name], *changes]))
        advance(self.facts, self.statements, event)
        self.follow(event)
        if event.renames:
            # The storage may count as another class under its new name.
            self.rows.append(self.row_after(event))

    def row(self, event: Event) -> Row:
        """The bytes present, and those that a step takes while it runs: its results and its
        workspace."""
        form, kinds = self.amounts.anode, self.machine.kinds
        workspace: tuple[int, ...] = ()
        if event.cnode is not None:
            workspace = (self.amounts.workspace[event.cnode.name][event.execution > 1],)
        made = [form[name] for name in event.makes]
        activations = [form[n] for n in event.makes if counted(self.statements, n) == "act"]
        copied = [form[name] for name in event.to_host]
        top = [self.term(number) for number in workspace]
        sizes = [self.term(number) for number in made]
        among = [
            f"(act.size {kinds[name]} {size})"
            for name, size in zip(event.makes, sizes, strict=True)
        ]
        return Row(
            event.index,
            self.now["dev"],
            self.now["act"],
            self.now["host"],
            total([*top, *sizes]),
            total([*top, *among]),
            total(map(self.term, copied)),
            (*workspace, *made),
            (*workspace, *activations),
            tuple(copied),
        )

    def row_after(self, event: Event) -> Row:
        """The bytes present after a step."""
        now = self.now["dev"], self.now["act"], self.now["host"]
        return Row(event.index, *now, "0", "0", "0")

    def follow(self, event: Event) -> None:
        """The same by a plain walk, to begin the next part with; `cut` asks whether it is so."""
        for name, sign in self.alive.after(event):
            self.add(self.claimed["dev"], self.amounts.anode[name], sign)
            if counted(self.statements, name) == "act":
                self.add(self.claimed["act"], self.amounts.anode[name], sign)
        for old, new in event.takes_over if event.update is not None else ():
            self.add(self.claimed["host"], self.amounts.anode[old], -1)
            self.add(self.claimed["host"], self.amounts.anode[new], 1)
        for name in event.to_host:
            self.add(self.claimed["host"], self.amounts.anode[name], 1)
        for name in event.off_host:
            self.add(self.claimed["host"], self.amounts.anode[name], -1)


def starts_on_host(statements: Statements, amounts: Amounts) -> bool:
    """Return whether the host holds something before the first step: its bytes are a row too."""
    return bool(statements.homes or amounts.existing_host)


def encode_memory(
    statements: Statements,
    events: Sequence[Event],
    amounts: Amounts,
    number: Sequence[int | None],
    env: Mapping[str, int],
    ceilings: Callable[[int], tuple[Tally, Tally]],
    host_ceiling: Callable[[int], Tally],
    *,
    keep_rows: bool = True,
) -> tuple[Encoding, list[Row]]:
    """The definitions of the sums; the goals say that a step exceeds its ceilings. The rows, which
    take more memory than the plan, only where `keep_rows` says so.

    `number` claims the bytes of each form at `env`, and is proven; None where a symbol of the
    form ranges. `ceilings` gives those of a row by its number: for all bytes of the device, and for
    activations; `host_ceiling` that of a row of the host, by its number among these.
    """
    encoder = _MemoryEncoder(statements, amounts, number, env)
    asked = on_host = on_device = 0
    if starts_on_host(statements, amounts):
        encoder.encoding.ask(f"(> {encoder.now['host']} {encoder.written(host_ceiling(on_host))})")
        on_host += 1
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
            encoder.encoding.ask(f"(> (+ {row.dev} {row.device}) {device})")
        if not keep_rows:
            encoder.rows.clear()
        asked = len(encoder.rows)
        if encoder.encoding.is_full:
            encoder.cut()
    return encoder.encoding, encoder.rows


def prove_memory(
    statements: Statements,
    events: list[Event],
    amounts: Amounts,
    env: Mapping[str, int],
    limits: ByteLimits,
    inquiry: Inquiry,
) -> StepBytes | Excess | OutOfTime:
    """At `env`: the least bound that z3 proves within `limits`, or the steps above them."""
    sizes = amounts.at(env)
    during = walk(statements, events, sizes)
    bound = peaks(during)
    tried = limits.at_most(bound)
    ceilings = Tally(tried.device), Tally(tried.activation)
    number = [value(form, env) for form in amounts.forms]
    if any(number[form] != sizes.anode[name] for name, form in amounts.anode.items()):
        return OutOfTime("the sizes of the plain walk are not those that z3 proves")
    del sizes  # as `during`: the encoding takes as much again
    host = Tally(tried.host)
    if tried == bound:
        during = {}  # of no use any more: what is refuted is what is above a limit
    encoding, rows = encode_memory(
        statements,
        events,
        amounts,
        number,
        env,
        lambda _: ceilings,
        lambda _: host,
        keep_rows=tried != bound,
    )
    match answer := encoding.check(inquiry):
        case OutOfTime():
            return answer
        case NoModel() if tried == bound:
            return bound
        case Model() if tried != bound and _agree(rows, answer, during):
            return Excess(during)
        case _:
            return OutOfTime("z3 and the plain walk do not agree on the bytes")


def _agree(rows: Sequence[Row], model: Model, during: Mapping[int, StepBytes]) -> bool:
    """True if the model's sums equal the walk's at every step of the model."""

    def above(constant: str, forms: Iterable[int], most: int) -> bool:
        counts = [model.values.get(name) for name in (constant, *(f"S{form}" for form in forms))]
        known = [count for count in counts if count is not None]
        return len(known) == len(counts) and sum(known) > most

    for row in rows:
        seen = during[row.event]
        if (
            above(row.act, row.activation_forms, seen.activation)
            or above(row.dev, row.device_forms, seen.device)
            or above(row.host, row.host_forms, seen.host)
        ):
            return False
    return True
