"""A direct interpreter of schedules over symbolic values, after `spec/semantics.md`.

The tests' own third opinion: it runs a schedule on a machine whose memory holds terms and
whose random stream is a term too. It does what the steps say even where they are wrong
(memory that was given back, or that a copy still writes, reads as garbage), so that the
damage shows in what the caller gets: `harm` lists every way in which a schedule is not the
unplanned step. An edit of a plan without harm is no mutant. It shares nothing with the
simulator or the verifier but the data of the graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from remat_compile.ir.expr import Add, CeilDiv, Const, Expr, FloorDiv, Max, Mul, RoundUp, Sym
from remat_compile.ir.graph import Arg, Call, CNode, Ref, View
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.schedule import (
    Compute,
    Free,
    Home,
    HostFree,
    Offload,
    Prefetch,
    Schedule,
    Step,
    Wait,
)

CALLER = ("input", "param", "buffer", "const", "opt_state")
KEPT = ("output", "param_grad", "updated")
NO_ACTIVATION = (*CALLER, "param_grad", "updated")
MAY_BE_AWAY = ("param", "buffer", "opt_state", "param_grad")


class Terms:
    """Hash-consed terms: equal terms, and only those, have equal numbers."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}

    def of(self, *parts: object) -> int:
        return self._numbers.setdefault(parts, len(self._numbers))

    def garbage(self) -> int:
        """What memory that was given back holds: equal to no other term."""
        return self.of("garbage", len(self._numbers))


@dataclass
class Run:
    """What a schedule did.

    `observed` is what the caller sees, as terms: results when they are handed over and at the
    end, gradients, buffers, the state of the random stream. `faults` are the acts
    that no caller sees and that are wrong all the same. `device`, `activation` and `host` are
    the bytes during each step.
    """

    observed: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    device: list[int] = field(default_factory=list)
    activation: list[int] = field(default_factory=list)
    host: list[int] = field(default_factory=list)

    def peak(self, kind: str = "device") -> int:
        during = {"device": self.device, "activation": self.activation, "host": self.host}
        return max(during[kind], default=0)


def unplanned(program: Program) -> Schedule:
    """Every cNode once in the order of the graph; nothing is given back before the end."""
    steps = [Compute(c.name) for c in program.graph.cnodes]
    run = _Machine(program, Schedule("unplanned", "", tuple(steps)), Terms())
    run.run()
    left = [n for n in run.memory if run.kind[n] not in (*CALLER, *KEPT)]
    return Schedule("unplanned", "", (*steps, *(Free(name) for name in left)))


def interpret(program: Program, schedule: Schedule, terms: Terms | None = None) -> Run:
    """Runs `schedule` at the sample. KeyError for a step that names nothing."""
    machine = _Machine(program, schedule, terms or Terms())
    machine.run()
    return machine.result


def harm(program: Program, schedule: Schedule, *budgets: Budget) -> list[str]:
    """Why `schedule` is not the unplanned step within `budgets`; empty if it is."""
    terms, wanted = _wanted(program)
    try:
        outcome = interpret(program, schedule, terms)
    except KeyError as unknown:
        return [f"a step names {unknown.args[0]}, which is nothing that can be run or freed"]
    reasons = [
        f"{what} differs"
        for what, term in wanted.observed.items()
        if outcome.observed[what] != term
    ]
    reasons += outcome.faults
    for budget in budgets:
        if outcome.peak(budget.kind) > budget.bytes:
            reasons.append(f"{outcome.peak(budget.kind)} {budget.kind} bytes of {budget.bytes}")
    return reasons


def _wanted(program: Program) -> tuple[Terms, Run]:
    """The unplanned step and the terms it is told in; the last program's is kept."""
    if _last and _last[0][0] is program:
        return _last[0][1]
    terms = Terms()
    machine = _Machine(program, unplanned(program), terms, captured=True)
    machine.run()
    wanted = machine.result
    assert not wanted.faults, wanted.faults
    _last[:] = [(program, (terms, wanted))]
    return terms, wanted


_last: list[tuple[Program, tuple[Terms, Run]]] = []


def names_of(call: Call) -> Iterator[str]:
    """The names that a call reads, repeats included."""

    def walk(arg: Arg) -> Iterator[str]:
        if isinstance(arg, Ref):
            yield arg.name
        elif isinstance(arg, tuple):
            for part in arg:
                yield from walk(part)

    for arg in (*call.args, *(value for _, value in call.kwargs)):
        yield from walk(arg)


class _Machine:
    """Memory, the random stream and the caller's buffers."""

    def __init__(
        self, program: Program, schedule: Schedule, terms: Terms, *, captured: bool = False
    ):
        self.program, self.schedule, self.terms = program, schedule, terms
        # In the captured step a buffer is read with its initial contents, always.
        self.captured = captured
        self.updated: dict[str, int] = {}
        graph = program.graph
        self.kind = {a.name: a.kind for a in graph.anodes}
        self.views = {v.name: v for v in graph.views}
        self.cnodes = {c.name: c for c in graph.cnodes}
        unit = program.target.granularity_bytes

        def rounded(expr: Expr) -> int:
            return -(-_value(expr, program.sample) // unit) * unit

        self.rounded = rounded
        self.size = {a.name: rounded(a.size) for a in graph.anodes}
        # On the host between two steps.
        self.homes = {s.anode for s in schedule.steps if isinstance(s, Home)}
        self.said: set[str] = set()
        own = {n for n, kind in self.kind.items() if kind in CALLER}
        # What each counts while it is in memory; what the caller holds is counted once.
        self.on_device = {n: 0 if n in own - self.homes else s for n, s in self.size.items()}
        self.of_activations = {
            n: 0 if self.kind[n] in CALLER or self.kind[n] in NO_ACTIVATION else size
            for n, size in self.size.items()
        }
        self.total = Counter(s.cnode for s in schedule.steps if isinstance(s, Compute))
        self.runs: Counter[str] = Counter()
        self.memory = {n: terms.of("caller", n) for n in self.kind if n in own - self.homes}
        self.host = {n: terms.of("caller", n) for n in self.kind if n in own & self.homes}
        self.stream = terms.of("stream")
        binding = program.binding
        self.held = sum(self.size[n] for n in self.memory)
        self.held_on_host = 0
        base = {a.name: a.name for a in program.graph.anodes}
        base.update({v.name: v.base for v in program.graph.views})
        for p in binding.params if binding.grads == "accumulate" else ():
            if p.grad is not None and base[p.grad] in self.homes:
                self.held_on_host += self.size[p.name]
            elif p.grad is not None:
                self.held += self.size[p.name]
        self.losses, self.begun = 0, False
        # What updates end.
        updates = [c for c in graph.cnodes if c.call.op == "update"]
        self.old = {n for c in updates for n in dict(self.pairs(c))}
        self.handed_over = {base[r.name] for r in program.binding.results}
        roots = [n for c in program.graph.cnodes if c.phase == "loss" for n in c.writes if n]
        self.handed_over.update(n for n in roots if self.kind[n] == "output")
        self.stale: set[str] = set()
        # The copies in flight: to the host or back, and what they read when they were issued.
        self.flight: dict[str, tuple[type[Step], int]] = {}
        self.result = Run()

    # -- values -----------------------------------------------------------------------

    def base(self, name: str) -> str:
        return self.views[name].base if name in self.views else name

    def read(self, name: str) -> int:
        """The content under a name: memory, or a view's function of memory."""
        view = self.views.get(name)
        if view is not None:
            return self.terms.of("view", view.index, *self.apply(view.call), self.whole(view))
        if name not in self.memory:
            self.fault(f"reads %{name}, which is not alive")
            return self.terms.garbage()
        if self.flight.get(name, (None,))[0] is Prefetch:
            self.fault(f"reads %{name} while a copy writes it")
            return self.terms.garbage()
        if name in self.updated and not self.captured:
            if self.losses and self.here != "the end":
                self.fault(f"reads buffer %{name} after its update")
            return self.updated[name]
        return self.memory[name]

    def whole(self, view: View) -> int:
        return self.read(view.base)

    def apply(self, call: Call) -> tuple[object, ...]:
        """A call with the contents of what it reads in place of the names."""

        def of(arg: Arg) -> object:
            if isinstance(arg, Ref):
                return ("term", self.read(arg.name))
            if isinstance(arg, tuple):
                return tuple(of(part) for part in arg)
            return (type(arg).__name__, repr(arg))

        named = tuple((key, of(value)) for key, value in call.kwargs)
        return (call.op, tuple(of(arg) for arg in call.args), named)

    def fault(self, what: str) -> None:
        self.result.faults.append(f"{self.here}: {what}")

    # -- steps ------------------------------------------------------------------------

    def run(self) -> None:
        for index, step in enumerate(self.schedule.steps):
            self.here = f"step {index + 1}"
            self.begun |= not isinstance(step, Home)
            if isinstance(step, Compute):
                self.compute(self.cnodes[step.cnode], step)
                continue
            if step.anode not in self.kind:
                raise KeyError(step.anode)
            if isinstance(step, Free | Home):
                self.count(0, 0)
                (self.free if isinstance(step, Free) else self.say_home)(step.anode)
            else:
                self.copy(step)
        self.here = "the end"
        self.finish()

    def count(self, transient: int, activation: int) -> None:
        alive = sum(map(self.on_device.__getitem__, self.memory))
        acts = sum(map(self.of_activations.__getitem__, self.memory))
        self.result.device.append(self.held + alive + transient)
        self.result.activation.append(acts + activation)
        self.result.host.append(self.host_bytes())

    def host_bytes(self) -> int:
        return self.held_on_host + sum(self.size[n] for n in self.host)

    def say_home(self, name: str) -> None:
        updated = {b.name for b in self.program.binding.buffers if b.update is not None}
        if name in self.said or self.begun:
            self.fault(f"says late, or twice, that %{name} is on the host")
        if self.kind[name] not in MAY_BE_AWAY or name in updated | self.handed_over:
            self.fault(f"says that %{name} is on the host")
        self.said.add(name)

    def copy(self, step: Offload | Prefetch | Wait | HostFree) -> None:
        """A copy is in flight from issue to wait; only then does its destination have a content."""
        name = step.anode
        taken = self.size[name] if isinstance(step, Prefetch) else 0
        self.count(taken, 0 if self.kind[name] in NO_ACTIVATION else taken)
        match step:
            case Offload():
                if self.kind[name] in CALLER:
                    self.fault(f"offloads %{name} of the caller")
                if name in self.host:
                    self.fault(f"offloads %{name}, which the host holds already")
                self.busy(name)
                self.flight[name] = Offload, self.read(name)
                self.host[name] = self.terms.garbage()
                self.stale.discard(name)
                self.result.host[-1] = self.host_bytes()
            case Prefetch():
                if name not in self.host:
                    self.fault(f"prefetches %{name}, of which the host holds nothing")
                if name in self.stale:
                    self.fault(f"prefetches a stale copy of %{name}")
                if name in self.memory:
                    self.fault(f"prefetches %{name}, which is alive")
                self.busy(name)
                self.flight[name] = Prefetch, self.host.get(name, self.terms.garbage())
                self.memory[name] = self.terms.garbage()
            case Wait():
                self.end_copy(name)
            case HostFree():
                if name not in self.host:
                    self.fault(f"gives back a host copy of %{name} that is not there")
                if self.kind[name] in CALLER and name not in self.stale:
                    self.fault(f"gives back %{name} of the caller")
                self.busy(name)
                self.host.pop(name, None)

    def end_copy(self, name: str) -> None:
        if name not in self.flight:
            self.fault(f"waits for a copy of %{name} that was not issued")
            return
        direction, content = self.flight.pop(name)
        if direction is not Prefetch and name in self.host:
            self.host[name] = content
        elif direction is Prefetch and name in self.memory:
            self.memory[name] = content

    def busy(self, name: str) -> None:
        """The bytes of a copy in flight are touched: some timing of it reads or writes garbage."""
        if name in self.flight:
            self.fault(f"touches %{name} while a copy of it is in flight")
            self.flight[name] = self.flight[name][0], self.terms.garbage()

    def free(self, name: str) -> None:
        self.busy(name)
        if self.kind[name] in CALLER and name not in self.homes:
            self.fault(f"frees %{name} of the caller")
        elif name not in self.memory:
            self.fault(f"frees %{name}, which is not alive")
        elif self.losses and name in self.handed_over:
            self.fault(f"frees %{name}, which the caller holds")
        else:
            del self.memory[name]

    def compute(self, c: CNode, step: Compute) -> None:
        self.runs[c.name] += 1
        first = self.runs[c.name] == 1
        if c.call.op == "update" and not (step.on_host and step.nosave):
            (self.update_on_host if step.on_host else self.update)(c)
            return
        if step.on_host:
            self.count(0, 0)
            self.fault(f"runs {c.name} on the host")
            return
        if c.call.op == "accumulate":
            self.accumulate(c)
            return
        made = self.outcome(c, first)
        workspace = c.workspace if first or c.replay is None else c.replay.workspace
        extra = self.rounded(workspace)
        acts = sum(self.size[n] for n in made if self.kind[n] not in NO_ACTIVATION)
        self.count(sum(self.size[n] for n in made) + extra, acts + extra)
        for name, term in made.items():
            self.busy(name)
            self.memory.setdefault(name, term)
        if c.phase == "loss":
            self.hand_over()
        if step.nosave:
            for name in made:
                if self.kind[name] == "phantom":
                    del self.memory[name]

    def accumulate(self, c: CNode) -> None:
        partial, addend = names_of(c.call)
        (named,) = c.writes
        assert named is not None
        workspace = self.rounded(c.workspace)
        self.count(workspace, workspace)
        term = self.terms.of("accumulate", self.read(partial), self.read(addend))
        self.busy(self.base(partial))
        self.busy(named)
        if self.base(partial) in self.host:
            self.stale.add(self.base(partial))
        if named in self.memory:
            self.fault(f"names a storage %{named} while another is alive")
        self.memory.pop(self.base(partial), None)
        self.memory[named] = term

    @staticmethod
    def pairs(c: CNode) -> list[tuple[str, str]]:
        """What an update ends, each with the name under which it goes on."""
        return list(zip(names_of(c.call), filter(None, c.writes), strict=False))

    def update(self, c: CNode) -> None:
        made = self.outcome(c, True)
        workspace = self.rounded(c.workspace)
        self.count(workspace, workspace)
        for old, new in self.pairs(c):
            self.busy(old)
            self.busy(new)
            if new in self.memory:
                self.fault(f"names a storage %{new} while another is alive")
            if old in self.host:
                self.stale.add(old)
            if self.memory.pop(old, None) is not None and old not in self.homes:
                self.held -= self.size[old]
            self.memory[new] = made[new]
            self.move_home(old, new)

    def move_home(self, old: str, new: str) -> None:
        if old in self.homes:
            self.homes = self.homes - {old} | {new}

    def update_on_host(self, c: CNode) -> None:
        """It reads host copies, which nobody touches until the waits."""
        self.count(0, 0)
        pairs = dict(self.pairs(c))
        reads = {self.base(name) for name in names_of(c.call)}
        for name in sorted(reads):
            self.busy(name)
            if name in self.stale:
                self.fault(f"reads a stale copy of %{name}")
            if name in pairs and name in self.memory:
                self.fault(f"updates %{name}, which is alive on the device")
        device, self.memory = self.memory, self.host
        made = self.outcome(c, True)
        self.memory = device
        for old, new in pairs.items():
            self.busy(new)
            self.host.pop(old, None)
            if new in self.memory or new in self.host:
                self.fault(f"names a storage %{new} while another is there")
            self.host[new] = self.terms.garbage()
            self.flight[new] = Compute, made[new]
            self.move_home(old, new)
        for name in reads - pairs.keys():
            self.flight[name] = Compute, self.host.get(name, self.terms.garbage())

    def outcome(self, c: CNode, first: bool) -> dict[str, int]:
        """The contents of what an execution writes, its token included."""
        draw = self.draw(c, first)
        made: dict[str, int] = {}
        if first and c.token is not None and self.total[c.name] > 1:
            made[c.token] = draw
        pure = () if c.replay is None else tuple(filter(None, c.replay.writes))
        # A replay form computes the same contents (P2): theirs is its term, first run included.
        own = self.apply(c.call) if first or c.replay is None else ()
        again = self.apply(c.replay.call) if c.replay is not None else ()
        written = c.writes if first or c.replay is None else c.replay.writes
        for name in written:
            if name is not None:
                call = again if name in pure else own
                made[name] = self.terms.of("result", self.place(c, name), call, draw)
        if c.phase == "loss":
            results = tuple(self.read(r.name) for r in self.program.binding.results)
            made = {n: self.terms.of("tangent", n, results, draw) for n in made}
        return made

    @staticmethod
    def place(c: CNode, name: str) -> int:
        """The position of a result; every position but an unused one has a name."""
        return c.writes.index(name)

    def draw(self, c: CNode, first: bool) -> int:
        """The state that a random operator or the caller's loss runs with."""
        if c.token is None and c.phase != "loss":
            return -1
        if first or c.token is None:
            state = self.stream
            self.stream = self.terms.of("drawn", c.name, state)
            return state
        return self.read(c.token)

    def hand_over(self) -> None:
        """The caller gets the results and writes the new contents of its buffers back."""
        self.losses += 1
        binding, seen = self.program.binding, self.result.observed
        for index, r in enumerate(binding.results):
            seen[f"result {index} when handed over"] = self.read(r.name)
        new = [(b.name, self.read(b.update)) for b in binding.buffers if b.update is not None]
        for name, term in new:
            # A second writing back of the same contents is an update too many.
            self.updated[name] = self.terms.of("written back", self.losses, term)

    def finish(self) -> None:
        binding, seen = self.program.binding, self.result.observed
        updated = {b.name for b in binding.buffers if b.update is not None}
        if self.losses != 1:
            self.fault(f"the loss ran {self.losses} times")
            for index in range(len(binding.results)):
                seen.setdefault(f"result {index} when handed over", self.terms.garbage())
        for name in self.flight:
            self.fault(f"a copy of %{name} is still in flight")
        for name in self.host.keys() - self.homes:
            self.fault(f"a host copy of %{name} is left behind")
        for name in self.homes:
            if name in self.memory or name not in self.host or name in self.stale:
                self.fault(f"%{name} is not on the host, or elsewhere too")
            self.memory[name] = self.host.get(name, self.terms.garbage())
        for name, kind in self.kind.items():
            if name in self.memory and (kind not in (*CALLER, *KEPT) or name in self.old):
                self.fault(f"%{name} is left behind")
            if kind in (*KEPT, *CALLER) and name not in updated | self.old:
                seen[f"%{name}"] = self.read(name)
        for p in binding.params:
            if p.grad is not None:
                seen[f'gradient of "{p.names[0]}"'] = self.read(p.grad)
        for index, name in binding.input_grads:
            seen[f"gradient of argument {index}"] = self.read(name)
        for b in binding.buffers:
            seen[f'buffer "{b.names[0]}"'] = self.updated.get(b.name, self.memory[b.name])
        seen["state of the random stream"] = self.stream


def _value(expr: Expr, env: Mapping[str, int]) -> int:
    match expr:
        case Const(value):
            return value
        case Sym(name):
            return env[name]
        case Add(parts):
            return sum(_value(p, env) for p in parts)
        case Mul(parts):
            product = 1
            for p in parts:
                product *= _value(p, env)
            return product
        case Max(parts):
            return max(_value(p, env) for p in parts)
        case FloorDiv(inner, n):
            return _value(inner, env) // n
        case CeilDiv(inner, n):
            return -(-_value(inner, env) // n)
        case RoundUp(inner, n):
            return -(-_value(inner, env) // n) * n
