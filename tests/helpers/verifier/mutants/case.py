"""A correct plan with what its steps do, told by the reference's own reading of the graph."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

from helpers.paths import TESTS
from helpers.verifier.reference import Run, interpret, names_of
from remat_compile.ir.expr import Const
from remat_compile.ir.graph import CNode
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.schedule import Compute, CopyStep, Free, Prefetch, Schedule, Step
from remat_compile.ir.span import Span
from remat_compile.ir.text.parser import parse_program

from .fused import FUSED, all_runs_fused

PLANS = TESTS / "verifier" / "mutants" / "plans"
CALLER = frozenset(("input", "param", "buffer", "const", "opt_state"))
FILE = "mutant.fbir"
AT_SCHEDULE = 1
"""The line that every schedule stands on here; step `i` stands on line `i + 2`."""


@dataclass(frozen=True)
class Mutant:
    """A plan with one fault, and where it must be seen: `code` at one of the steps `at` (none:
    at the schedule itself), with `words` in the message."""

    kind: str
    case: str
    program: Program
    unplaced: Schedule
    budgets: tuple[Budget, ...]
    code: str
    at: tuple[int, ...]
    words: str
    place: Span | None = None
    """Where in the graph, for a fault of its statements."""

    @cached_property
    def schedule(self) -> Schedule:
        """The steps, each on a line of its own; made when it is asked for, since most of the
        places where a fault could be seeded are never tried."""
        return located(self.unplaced)

    @property
    def places(self) -> frozenset[tuple[str, int]]:
        """File and line; the diagnostic must name one of them."""
        if self.place is not None:
            return frozenset(((self.place.file, self.place.line),))
        lines = [index + AT_SCHEDULE + 1 for index in self.at] or [AT_SCHEDULE]
        return frozenset((FILE, line) for line in lines)


@dataclass(frozen=True)
class Event:
    """A step: what it reads (each storage with the name it is read by), makes and gives back."""

    index: int
    step: Step
    cnode: CNode | None
    execution: int
    reads: Mapping[str, str]
    makes: tuple[str, ...]
    ends: str | None
    frees: tuple[str, ...]

    @property
    def again(self) -> bool:
        return self.execution > 1


@dataclass
class Life:
    """One instance of an aNode: made at `born`, gone at `end` (None: never), read at `reads`."""

    anode: str
    born: int
    first: bool
    reads: list[int] = field(default_factory=list)
    end: int | None = None
    freed: bool = False
    """By a step of its own; else by `nosave` or an accumulation."""


class Edit:
    """Changes to a list of steps that remember where each step went."""

    def __init__(self, steps: Sequence[Step]):
        self.items: list[tuple[int, Step]] = list(enumerate(steps))
        self.next = len(self.items)

    def at(self, key: int) -> int:
        return next(i for i, (k, _) in enumerate(self.items) if k == key)

    def drop(self, key: int) -> Step:
        return self.items.pop(self.at(key))[1]

    def insert(self, step: Step, before: int | None) -> int:
        """Puts a new step before that one (None: at the end); its key."""
        place = len(self.items) if before is None else self.at(before)
        self.items.insert(place, (self.next, step))
        self.next += 1
        return self.next - 1

    def after(self, key: int, step: Step) -> int:
        self.items.insert(self.at(key) + 1, (self.next, step))
        self.next += 1
        return self.next - 1

    def move(self, key: int, before: int) -> None:
        step = self.drop(key)
        self.items.insert(self.at(before), (key, step))

    def move_after(self, key: int, after: int) -> None:
        step = self.drop(key)
        self.items.insert(self.at(after) + 1, (key, step))

    def change(self, key: int, step: Step) -> None:
        self.items[self.at(key)] = key, step


class Case:
    """One plan of one model."""

    def __init__(self, name: str, program: Program, schedule: Schedule):
        self.name, self.program = name, program
        self.schedule = located(schedule)
        self.steps = self.schedule.steps
        self.has_copies = any(isinstance(step, CopyStep) for step in self.steps)
        graph = program.graph
        self.base = {a.name: a.name for a in graph.anodes} | {v.name: v.base for v in graph.views}
        self.kind = {a.name: a.kind for a in graph.anodes}
        # The plans of the eight models have no symbols, and a granularity of one byte.
        self.size = {a.name: a.size.value for a in graph.anodes if isinstance(a.size, Const)}
        self.cnodes = {c.name: c for c in graph.cnodes}
        self.total = Counter(s.cnode for s in self.steps if isinstance(s, Compute))
        self.events = list(self._events())
        self.loss = next(e.index for e in self.events if e.cnode and e.cnode.phase == "loss")

    def _events(self) -> Iterator[Event]:
        runs: Counter[str] = Counter()
        for index, step in enumerate(self.steps):
            if not isinstance(step, Compute):
                freed = (step.anode,) if isinstance(step, Free) else ()
                fetched = (step.anode,) if isinstance(step, Prefetch) else ()
                yield Event(index, step, None, 0, {}, fetched, None, freed)
                continue
            c = self.cnodes[step.cnode]
            runs[c.name] += 1
            n = runs[c.name]
            form = c if n == 1 or c.replay is None else c.replay
            reads = {self.base[name]: name for name in reversed(list(names_of(form.call)))}
            if c.token is not None and n > 1:
                reads[c.token] = c.token
            written = [name for name in form.writes if name is not None]
            if c.token is not None and n == 1 and self.total[c.name] > 1:
                written.append(c.token)
            ends = self.base[next(names_of(c.call))] if c.call.op == "accumulate" else None
            unsaved = (n for n in written if step.nosave and self.kind[n] == "phantom")
            yield Event(index, step, c, n, reads, tuple(written), ends, tuple(unsaved))

    @cached_property
    def lives(self) -> list[Life]:
        """Every instance of every aNode that is not the caller's, in the order of birth."""
        born: list[Life] = []
        now: dict[str, Life] = {}
        known: set[str] = set()

        def end(name: str, event: Event) -> None:
            now[name].end, now[name].freed = event.index, event.cnode is None
            del now[name]

        for event in self.events:
            for name in event.reads:
                if name in now:
                    now[name].reads.append(event.index)
            if event.ends is not None:
                end(event.ends, event)
            for name in event.makes:
                if name not in now:
                    now[name] = Life(name, event.index, name not in known)
                    known.add(name)
                    born.append(now[name])
            for name in event.frees:
                end(name, event)
        return born

    @cached_property
    def alive(self) -> list[frozenset[str]]:
        """What is alive before each step, the caller's aside."""
        spans: dict[int, set[str]] = defaultdict(set)
        for life in self.lives:
            for index in range(
                life.born + 1, 1 + (len(self.steps) if life.end is None else life.end)
            ):
                spans[index].add(life.anode)
        return [frozenset(spans[index]) for index in range(len(self.steps) + 1)]

    @cached_property
    def last(self) -> dict[str, Life]:
        """The last instance of each aNode."""
        return {life.anode: life for life in self.lives}

    @cached_property
    def run(self) -> Run:
        return interpret(self.program, self.schedule)

    def needs_alive(self, event_or_names: Sequence[str], index: int) -> bool:
        """Whether all these storages are there before a step."""
        return all(n in self.alive[index] or self.kind[n] in CALLER for n in event_or_names)

    def edit(self) -> Edit:
        return Edit(self.steps)

    def mutant(
        self,
        kind: str,
        edit: Edit | None,
        code: str,
        *at: int,
        words: str = "",
        budgets: tuple[Budget, ...] = (),
        program: Program | None = None,
        place: Span | None = None,
    ) -> Mutant:
        """`at` are keys of the edit."""
        steps = self.steps if edit is None else tuple(step for _, step in edit.items)
        places = at if edit is None else tuple(edit.at(key) for key in at)
        return Mutant(
            kind,
            self.name,
            program or self.program,
            replace(self.schedule, steps=steps),
            budgets,
            code,
            places,
            words,
            place,
        )


def located(schedule: Schedule) -> Schedule:
    """Every step on a line of its own, as in a file."""
    steps = tuple(
        replace(step, span=Span(line, 3, 9, FILE))
        for line, step in enumerate(schedule.steps, AT_SCHEDULE + 1)
    )
    return replace(schedule, steps=steps, span=Span(AT_SCHEDULE, 1, 9, FILE))


@cache
def cases() -> tuple[Case, ...]:
    """Every plan of every model, one that copies to the host and back, and some that are fused."""
    from .offloaded import offloaded

    collected = []
    for path in sorted(PLANS.glob("*.fbir")):
        program = parse_program(path.read_text(encoding="utf-8"), path.name)
        bare = replace(program, schedules=())
        collected += [Case(f"{path.stem}@{s.name}", bare, s) for s in program.schedules]
        plan = offloaded(collected[-2])
        collected.append(Case(f"{path.stem}@{plan.name}", bare, plan))
        for schedule in program.schedules if path.stem in FUSED else ():
            fused, plan = all_runs_fused(bare, schedule)
            collected.append(Case(f"{path.stem}@{plan.name}", fused, plan))
    return tuple(collected)


NAMES = [
    f"{path.stem}@{plan}"
    for path in sorted(PLANS.glob("*.fbir"))
    for plan in (
        *("segments", "least", "offload"),
        *(("segments-fused", "least-fused") if path.stem in FUSED else ()),
    )
]
"""Of all `cases`, without reading one."""
QUICK = [name for name in NAMES if name.partition("@")[0] in ("mlp", "resnet", "unet")]
"""What every run proves; `make check` all of them."""


def case_named(name: str) -> Case:
    return next(case for case in cases() if case.name == name)
