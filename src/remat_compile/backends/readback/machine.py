"""The machine of spec/semantics.md over abstract values: what each step is to read and write.

`next_copy_or_computation` goes from one copy or computation to the next; the frees between them
are done on the way. Waits and frees on the host are where code has them (`says_waits`), and else
done on the way too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from ...ir.graph import CALLER_KINDS, Arg, Atom, Call, CNode, Ref
from ...ir.program import Program
from ...ir.rewrites.reshapes import RESHAPES, VIEW
from ...ir.schedule import Compute, Free, Home, HostFree, Offload, Prefetch, Schedule, Step, Wait
from .values import (
    ANodeInstance,
    Items,
    Literal,
    Poly,
    RandomState,
    Value,
    ViewValue,
    as_value,
    dimension,
    integer,
    size_of_expr,
    viewed,
)


class Dead(Exception):
    """The schedule reads what it has not got: it was not verified."""


@dataclass(frozen=True)
class Execution:
    """The n-th execution of a cNode; `number` counts the steps of the schedule from 1.

    `slots` are the instances that its results are, by position, `ended` what an accumulation or an
    update turns into its results, and `token` the state that a replay is run with.
    """

    number: int
    cnode: CNode
    n: int
    nosave: bool
    op: str
    args: tuple[Value, ...]
    kwargs: dict[str, Value]
    slots: tuple[ANodeInstance, ...]
    ended: tuple[ANodeInstance, ...] = ()
    token: Value | None = None

    def __str__(self) -> str:
        times = "" if self.n == 1 else f", execution {self.n}"
        nosave = " nosave" if self.nosave else ""
        return f"step {self.number} ({self.cnode.name}{nosave}{times}: {self.op})"


class AbstractMachine:
    """`live` and `host` say which instance of each aNode is there, `flying` which of them are
    being copied; `draws` counts the draws from the random stream so far. `changes` lists what
    began and ended to be live, in order, until someone takes it."""

    def __init__(self, program: Program, schedule: Schedule, *, says_waits: bool = False):
        self.says_waits = says_waits
        self.program, self.graph = program, program.graph
        self.steps = schedule.steps
        self.at = 0
        self.draws = 0
        self.runs: Counter[str] = Counter()
        held: dict[str, ANodeInstance | RandomState] = {
            a.name: ANodeInstance(a.name, 0) for a in self.graph.anodes if a.kind in CALLER_KINDS
        }
        homes = schedule.homes
        self.live = {name: value for name, value in held.items() if name not in homes}
        self.host = {name: value for name, value in held.items() if name in homes}
        self.flying: dict[str, None] = {}
        self.changes: list[tuple[ANodeInstance | RandomState, bool]] = []
        self._replayed = {
            name
            for name, n in Counter(s.cnode for s in self.steps if isinstance(s, Compute)).items()
            if n > 1
        }
        self._made = 0
        arguments = program.binding.arguments
        self.symbols: dict[str, Poly] = {}
        for symbol in program.symbols:
            size = integer(dimension(arguments[symbol.argument].name, symbol.dim))
            assert size is not None
            self.symbols[symbol.name] = size
        ops = frozenset(view.call.op for view in self.graph.views)
        self.view_operators = ops if ops.isdisjoint(RESHAPES) else ops | {VIEW}
        self._views: dict[Value, frozenset[Value]] = {}
        self._views_of: dict[str, list[str]] = {}
        self._looks_at: dict[Value, dict[str, Value]] = {}  # values of views, by what is below
        for view in self.graph.views:
            self._views_of.setdefault(view.base, []).append(view.name)

    # -- steps ------------------------------------------------------------------------

    def next_copy_or_computation(self) -> Step | None:
        """Does the steps that no code stands for up to the next that some does."""
        while self.at < len(self.steps):
            step = self.steps[self.at]
            match step:
                case Free(name):
                    if name not in self.live:
                        raise Dead(name)
                    self._leave(name)
                    self.at += 1
                case Home():
                    self.at += 1
                case HostFree() | Wait() if not self.says_waits:
                    self.end_copy(step)
                case _:
                    return step
        return None

    def execution(self) -> Execution:
        """Return the work of the computation at hand, before it is done."""
        step = self.steps[self.at]
        assert isinstance(step, Compute)
        c = self.graph.cnode[step.cnode]
        n = self.runs[c.name] + 1
        again = n > 1 and c.replay is not None
        writes = c.replay.writes if again and c.replay is not None else c.writes
        call = c.replay.call if again and c.replay is not None else c.call
        slots = tuple(
            ANodeInstance(name or f"{c.name}.unused{i}", self._made + i + 1)
            for i, name in enumerate(writes)
        )
        ended: list[ANodeInstance] = []
        for old, _ in c.takes_over:
            held = self.live.get(old)
            if not isinstance(held, ANodeInstance):
                raise Dead(old)
            ended.append(held)
        token: Value | None = None
        if c.token is not None and n > 1:
            if c.token not in self.live:
                raise Dead(c.token)
            token = self.live[c.token]
        args, kwargs = self._arguments(call)
        how = step.nosave, call.op, args, kwargs, slots, tuple(ended), token
        return Execution(self.at + 1, c, n, *how)

    def taken_state(self, now: Execution) -> RandomState | None:
        """The state that the execution at hand leaves in its token, if it leaves one."""
        if now.cnode.token is None or now.n > 1 or now.cnode.name not in self._replayed:
            return None
        return RandomState(self.draws)

    def compute(self, now: Execution) -> None:
        """Does the computation at hand: points 4 to 6 of the rules of an execution."""
        self.at += 1
        self.runs[now.cnode.name] = now.n
        self._made += len(now.slots)
        state = self.taken_state(now)
        if state is not None and now.cnode.token is not None:
            self._enter(now.cnode.token, state)
        # What the caller does at the loss may draw too: its states are others.
        self.draws += now.n == 1 and (now.cnode.token is not None or now.cnode.is_loss)
        for old in now.ended:
            self._leave(old.anode)
        results = [slot for slot in now.slots if slot.anode in self.graph.anode]
        for slot in results:
            if slot.anode not in self.live:
                self._enter(slot.anode, slot)
        if now.nosave:
            for slot in results:
                if self.graph.anode[slot.anode].kind == "phantom":
                    self._leave(slot.anode)

    def _enter(self, name: str, value: ANodeInstance | RandomState) -> None:
        self.live[name] = value
        self.changes.append((value, True))

    def _leave(self, name: str) -> None:
        value = self.live.pop(name)
        self._looks_at.pop(value, None)
        self.changes.append((value, False))

    def offload(self, step: Offload) -> ANodeInstance | RandomState:
        """Makes a copy on the host; gives what is copied."""
        if step.anode not in self.live:
            raise Dead(step.anode)
        self.at += 1
        self.flying[step.anode] = None
        self.host[step.anode] = self.live[step.anode]
        return self.live[step.anode]

    def prefetch(self, step: Prefetch) -> ANodeInstance | RandomState:
        """Brings a copy back: a new instance on the device."""
        if step.anode not in self.host:
            raise Dead(step.anode)
        self.at += 1
        self.flying[step.anode] = None
        self._made += 1
        # The copy of a token is the same state wherever it lies.
        held = self.host[step.anode]
        back = held if isinstance(held, RandomState) else ANodeInstance(step.anode, self._made)
        self._enter(step.anode, back)
        return back

    def update_on_host(self, step: Compute) -> None:
        """Does an update of host copies, which are in flight from here on."""
        self.at += 1
        c = self.graph.cnode[step.cnode]
        self.runs[c.name] += 1
        old = dict(c.takes_over)
        for name in self.graph.reads(c):
            if name not in self.host:
                raise Dead(name)
            if name in old:
                del self.host[name]
            else:
                self.flying[name] = None
        for name in c.results:
            self._made += 1
            self.host[name] = ANodeInstance(name, self._made)
            self.flying[name] = None

    def end_copy(self, step: Wait | HostFree) -> None:
        """Waits for a copy, or gives its bytes on the host back."""
        self.at += 1
        (self.flying if isinstance(step, Wait) else self.host).pop(step.anode, None)

    # -- values -----------------------------------------------------------------------

    def value(self, name: str) -> Value:
        """Return the present value of an aNode or view. Dead where its storage is not live."""
        if name not in self.graph.view:
            return self._held(name)
        base = self.graph.view[name].base
        known = self._looks_at.setdefault(self._held(base), {})
        for view in self.graph.views_below(name, known):
            reads = view.call.refs()
            values = {read: known[read] if read in known else self._held(read) for read in reads}
            args, kwargs = self.arguments_inside(view.call, values)
            made = ViewValue(view.call.op, args, frozenset(kwargs.items()), view.index)
            known[view.name] = viewed(made)
        return known[name]

    def _held(self, name: str) -> Value:
        if name not in self.live:
            raise Dead(name)
        return self.live[name]

    def is_view(self, value: Value, of: Value) -> bool:
        """Return whether a value is that of a view of what `of` is now, or of all its parts."""
        if not isinstance(of, ANodeInstance) or self.live.get(of.anode) != of:
            return False
        if of not in self._views:
            views: set[Value] = set()
            for name in self._views_of.get(of.anode, ()):
                known = self.value(name)
                views.add(known)
                if isinstance(known, ViewValue) and known.part is not None:
                    views.add(ViewValue(known.op, known.args, known.kwargs))
            self._views[of] = frozenset(views)
        return value in self._views[of]

    def _arguments(self, call: Call) -> tuple[tuple[Value, ...], dict[str, Value]]:
        return self.arguments_inside(call, None)

    def arguments_inside(
        self, call: Call, names: Mapping[str, Value] | None
    ) -> tuple[tuple[Value, ...], dict[str, Value]]:
        """The arguments of a call in a region, in which `names` have these values; else those of
        a call of the graph."""
        args = tuple(self._argument(a, names) for a in call.args)
        return args, {key: self._argument(a, names) for key, a in call.kwargs}

    def _argument(self, arg: Arg, names: Mapping[str, Value] | None) -> Value:
        match arg:
            case Ref(name):
                return self.value(name) if names is None else names[name]
            case Atom():
                return arg
            case tuple():
                return Items(tuple(self._argument(part, names) for part in arg))
            case None | bool() | int() | float() | str():
                return Literal(repr(arg))
            case _:
                return as_value(size_of_expr(arg, self.symbols))
