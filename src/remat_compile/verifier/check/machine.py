"""Validity, values and races of a schedule, in one pass (`spec/semantics.md`).

What is known of a storage is a set of facts; a table says which of them a step needs, forbids,
begins and ends. What is live holds T unless it is `changed`: by the theorem, an execution that
finds T in all it reads, and draws in the order of the graph, makes T. Sizes play no part.
"""

from collections import Counter, defaultdict, deque

from .graph import KEPT, keeps_rules
from .read import CALLERS, Program, need

STEPS = {  # needs | never | begins | ends | reads the bytes of | changes the bytes of
    "free": "live | own given flying | | live | | live",
    "offload": "live | own flying host | host flying | stale | live | host",
    "prefetch": "host | flying stale live | live flying landing | | host | live",
    "wait": "flying | | | flying landing | |",
    "hostfree": "host | flying home | | host stale | | host",
}
RULES = STEPS | {  # of what an execution reads, and makes; at the loss; at the end
    "read": "live | landing changed | | | live |",  # rules 1 and 2
    "add to": "live | flying | stale | live own home | | live",  # rule 4
    "sum": "| live flying | live | | | live",
    "make": "| flying | live | | | live",  # rule 5
    "drop": "live | | | live | |",  # rule 6
    # Of an update on the host: what it reads, what it ends, and what that becomes.
    "look": "host | flying stale | flying | | host |",
    "old": "host | live flying stale | | host home | | host",
    "new": "| live host flying | host flying | | | host",
    "give": "| | given | | |",
    "update": "live | | changed | | |",
    "keep": "live | host flying | | | live |",
    "leave": "| live host flying | | | |",
    "stay": "host | live flying stale | | | |",  # at home on the host
}
TABLE = {what: [frozenset(part.split()) for part in row.split("|")] for what, row in RULES.items()}
LANES = {"offload": "d2h", "prefetch": "h2d", "look": "cpu", "new": "cpu"}
BYTES = (("live", ""), ("host", "host "))  # facts that take bytes: those of `%a`, or of `host %a`
SETS = dict[frozenset[str], frozenset[str]]()  # of facts: there are few, each of them one object


class Machine:
    """The state between two steps, and what became of the bytes."""

    def __init__(self, p: Program) -> None:
        keeps_rules(p)
        self.p = p
        # Who has not drawn yet, in order.
        self.draws = deque(c for c, call in p.nodes.items() if call.token or call.phase == "loss")
        starts = {"": frozenset({"live", "own"}), "host": frozenset({"host", "home"})}
        self.facts = {
            a: starts["host" if a in p.homes else ""] if kind in CALLERS else frozenset()
            for a, kind in p.kind.items()
        }
        self.homes, self.gone_on = {*p.homes}, set[str]()
        self.runs: Counter[str] = Counter()
        self.total = Counter(name for _, what, name in p.steps if what not in STEPS)
        self.begun, self.ended = Counter[str](), Counter[str]()  # copies of each direction
        self.copies: dict[str, Counter[str]] = {}  # in flight: number of its direction
        self.uses = defaultdict[str, dict[tuple[str, bool], int]](dict)  # last by a direction
        self.changes = [(1, a) for a in p.held()]  # bytes taken (1) or given back (-1), in order
        self.gone: list[str] = []  # what this step gives back
        self.times_ns: list[int] = []  # of the steps, without copies

    def run(self) -> None:
        """Raises `Wrong` at the first step that breaks a rule, or at the end."""
        for line, what, a in self.p.steps:
            self.p.line = line
            self.times_ns.append(0)
            if what in STEPS:
                self.do(what, a)
            else:
                need(what in ("compute", "nosave", "host"), "no such step:", what)
                (self.update if what == "host" else self.compute)(a, what == "nosave")
            self.give_back()
        self.p.line = 0
        need(not self.draws, "not all random numbers are drawn, or no loss runs")
        for name, call in self.p.nodes.items():  # it read all that is pending: each was made
            need(call.phase != "loss" or self.total[name] == 1, "the loss runs not once")
        for a, kind in self.p.kind.items():
            wanted = "keep" if kind in (*KEPT, *CALLERS) and a not in self.gone_on else "leave"
            self.do("stay" if a in self.homes else wanted, a)

    def do(self, what: str, a: str) -> None:
        """Holds the facts of `a` against a rule, and changes them."""
        needs, never, begins, ends, reads, changes = TABLE[what]
        before = self.facts[a]
        need(needs <= before and not never & before, what, a, "is against its rule")
        after = (before | begins) - ends
        self.facts[a] = SETS.setdefault(after, after)
        if lane := LANES.get(what):
            self.begun[lane] += what != "new"  # one with what it reads
            self.copies[a] = Counter({lane: self.begun[lane]})
        elif what == "wait":
            self.ended |= self.copies.pop(a)  # the larger number of each
        for fact, where in BYTES:
            if fact in reads or fact in changes:
                self.use(where + a, fact in changes, what)
            if fact in begins:
                self.changes.append((1, where + a))
            if fact in ends or (fact in begins and fact in before):
                self.gone.append(where + a)

    def use(self, name: str, changes: bool, what: str) -> None:
        """No race. An earlier use by the compute stream has ended when a later step is issued; one
        by a copy once that copy, or a later one of its direction, was waited for."""
        for (other, changed), number in self.uses.get(name, {}).items():
            ended = other == LANES.get(what) or number <= self.ended[other]
            need(ended or not (changes or changed), "a copy races for", name)
        if lane := LANES.get(what):
            self.uses[name][lane, changes] = self.begun[lane]

    def give_back(self) -> None:
        self.changes += [(-1, name) for name in self.gone]
        self.gone.clear()

    def go_on(self, a: str, b: str) -> None:
        """The bytes of `a` are those of `b` from here on, and so is its home."""
        self.give_back()  # and takes it again under its new name
        self.gone_on.add(a)
        if a in self.homes:
            self.homes ^= {a, b}

    def update(self, name: str, nosave: bool) -> None:
        """An update on the host, in flight until the waits for all that it reads and makes."""
        own = self.p.nodes[name]
        need(own.operator == "update" and not nosave, name, "is no update")
        self.runs[name] += 1
        old = own.takes_over(self.p.reads(own))
        for a in {*self.p.reads(own)} - {*old}:
            self.do("look", a)
        self.begun["cpu"] += 1
        for a, b in old.items():
            self.do("old", a)
            self.go_on(a, b)
            self.do("new", b)

    def compute(self, name: str, nosave: bool) -> None:
        own = self.p.nodes[name]
        self.runs[name] += 1
        first = self.runs[name] == 1
        form = own if first else own.replay or own
        reads, made = self.p.reads(form), form.made()
        if own.token and self.total[name] > 1:
            (made if first else reads).append(own.token)
        for a in reads:
            self.do("read", a)
        if first and (own.token or own.phase == "loss"):  # rule 3
            need(self.draws and self.draws.popleft() == name, name, "draws out of order")
        if form.workspace != "0":
            self.changes.append((1, form.workspace))
            self.gone.append(form.workspace)
        old = own.takes_over(reads)
        for a, b in old.items():
            self.do("add to", a)
            self.go_on(a, b)
            self.do("sum", b)
        for a in () if old else made:
            self.do("make", a)
        for a in (a for a in made if nosave and self.p.kind[a] == "phantom"):
            self.do("drop", a)
        for a in (a for a in made if own.phase == "loss" and self.p.kind[a] == "output"):
            self.do("give", a)
        for kind, a, second in self.p.bound if own.phase == "loss" else ():
            if kind == "result" or (kind == "buffer" and second):
                self.do("give" if kind == "result" else "update", a)
        self.times_ns[-1] = own.time_ns or 0 if form.time_ns is None else form.time_ns
