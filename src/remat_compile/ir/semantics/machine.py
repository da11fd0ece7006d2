"""The machine that runs a schedule on sizes, step by step; `simulate.py` drives it."""

from __future__ import annotations

from dataclasses import dataclass

from ..diagnostics import Diagnostic, Note
from ..graph import CALLER_KINDS, CNode, Graph
from ..program import Program
from ..schedule import Compute, Direction, Home, Schedule, Step, StorageStep
from ..span import Span
from .copies import Copies
from .sizes import HOMES, KEPT_KINDS, NON_ACTIVATION_KINDS, Sizes, existing_grads


@dataclass(frozen=True, slots=True)
class During:
    """Bytes during a step."""

    device: int
    activation: int
    host: int


class Machine:
    """The mutable state of a run; collects violations instead of stopping at the first."""

    def __init__(self, program: Program, sizes: Sizes, steps: tuple[Step, ...]):
        self.graph: Graph = program.graph
        self.sizes = sizes
        self.executions: dict[str, int] = {}
        self.runs: dict[str, int] = {}
        for step in steps:
            if isinstance(step, Compute):
                self.runs[step.cnode] = self.runs.get(step.cnode, 0) + 1
        self.updated = {b.name for b in program.binding.buffers if b.update is not None}
        self.held_since_loss = program.held_since_loss
        said = (step.anode for step in steps if isinstance(step, Home))
        homes = {name for name in said if self._may_be_away(name)}
        self.homes: dict[str, Span | None] = {}
        """The caller's storage on the host, and gradients that end there, as far as read."""
        self.extra, extra_on_host = existing_grads(program, sizes, homes)
        callers = [a.name for a in self.graph.anodes if a.kind in CALLER_KINDS]
        self.live: dict[str, None] = {name: None for name in callers if name not in homes}
        self.total = sum(sizes.anode[name] for name in self.live) + self.extra
        self.activation = 0
        self.ended: dict[str, Note] = {}
        self.started = self.loss_done = False
        # First executions of random operators and of the loss follow the order of capture.
        ordered = (c.name for c in self.graph.cnodes if c.token is not None or c.is_loss)
        self.draw_order = {name: i for i, name in enumerate(ordered)}
        self.drawn: list[str] = []
        self.run_once = frozenset(program.header.run_once)
        self.diagnostics: list[Diagnostic] = []
        self.copies = Copies(sizes.anode, program.target, self._report)
        self.copies.begin((name for name in callers if name in homes), extra_on_host)

    def _report(
        self,
        code: str,
        message: str,
        span: Span | None,
        notes: tuple[Note, ...] = (),
        hint: str | None = None,
    ) -> None:
        self.diagnostics.append(Diagnostic(code, message, span, notes, hint))

    def bytes_of_live(self) -> dict[str, int]:
        live_bytes = {name: self.sizes.anode[name] for name in self.live}
        if self.extra:
            live_bytes["(existing gradients)"] = self.extra
        return live_bytes

    def allocated(self, c: CNode, execution: int) -> tuple[str, ...]:
        """aNodes for which the n-th execution takes memory (also those it drops again)."""
        if c.takes_over:
            return ()
        token = (c.token,) if c.token and execution == 1 and self.runs[c.name] > 1 else ()
        return (*c.results_at(execution), *token)

    def apply(self, index: int, step: Step) -> During:
        """Runs a step; returns the bytes during it."""
        self.started |= not isinstance(step, Home)
        if isinstance(step, Compute):
            if step.on_host:
                self._update_on_host(index, step)
                return During(self.total, self.activation, self.copies.host_bytes)
            device, activation = self._compute(step)
            return During(device, activation, self.copies.host_bytes)
        if isinstance(step, Home):
            self._home(step)
        if step.copies is not None:
            self._copy(index, step, step.copies)
        during = During(self.total, self.activation, self.copies.host_bytes)
        if step.waits:
            self.copies.wait(index, step.anode, step.span)
        if step.gives_back == "device":
            self.copies.at_rest(step.anode, f"{step.word} of", step.span)
            self._free(step.anode, step.span, step.word)
        elif step.gives_back == "host":
            self.copies.give_back(step)
        return during

    def _may_be_away(self, name: str) -> bool:
        kept_here = name in self.updated or name in self.held_since_loss
        return self.graph.anode[name].kind in HOMES and not kept_here

    def _home(self, step: Home) -> None:
        """Storage that the step finds on the host, or leaves there. The state has it already."""
        name, kind = step.anode, self.graph.anode[step.anode].kind
        if self.started:
            why = "after another step: where storage is at first is said before all steps"
        elif name in self.homes:
            why = "a second time"
        elif not self._may_be_away(name):
            what = "a result" if name in self.held_since_loss else f"a {kind}"
            what += " that the loss updates" if name in self.updated else ""
            why = (
                f"{what}: only parameters, their gradients, optimizer states and buffers that "
                "no step updates can be there"
            )
        else:
            self.homes[name] = step.span
            return
        self._report("FB0327", f"{step.word} %{name}, {why}", step.span, hint="remove this line")

    def _copy(self, index: int, step: StorageStep, direction: Direction) -> None:
        """Issues a copy: one to the host reads the device, the other takes bytes there."""
        name, span = step.anode, step.span
        kind = self.graph.anode[name].kind
        if direction == "d2h" and kind in CALLER_KINDS:
            message = f"{step.word} of %{name}, a {kind}: it belongs to the caller"
            hint = f"{step.word} what the step makes itself"
            self._report("FB0312", message, span, hint=hint)
        elif direction == "d2h" and name not in self.live:
            self._report_dead(step.word, name, span)
        if not self.copies.may_issue(name, f"{step.word} of", span):
            return
        if direction == "h2d" and name in self.live:
            message = f"{step.word} of %{name}, which is alive on the device"
            hint = f"remove this step, or put `free %{name}` before it"
            self._report("FB0316", message, span, hint=hint)
        elif direction == "h2d":
            self._take(name)
        self.copies.issue(index, step, direction)

    def _compute(self, step: Compute) -> tuple[int, int]:
        c = self.graph.cnode[step.cnode]
        n = self.executions[c.name] = self.executions.get(c.name, 0) + 1
        self._check_reads(c, n, step)
        if n == 2 and c.name in self.run_once:
            message = f"{c.name} runs a second time, and is to run once"
            hint = "remove this step, or `once` from the line `captured`"
            self._report("FB0490", message, step.span, hint=hint)
        if n == 1 and c.name in self.draw_order:
            self._check_draw(c, step)
        taken = self.allocated(c, n)
        for name in c.results if c.takes_over else taken:
            self.copies.at_rest(name, f"{c.name} makes", step.span)
        transient = sum(self.sizes.anode[name] for name in taken)
        transient_activation = sum(
            self.sizes.anode[name] for name in taken if self._is_activation(name)
        )
        workspace = self.sizes.workspace_at(c, n)
        during = (
            self.total + transient + workspace,
            self.activation + transient_activation + workspace,
        )
        self._take_over(c, step)
        for name in taken:
            if name not in self.live:
                self._take(name)
        self.copies.now_ns += c.time_ns_at(n)
        if c.is_loss:
            self.loss_done = True
        if step.nosave:
            for name in taken:
                if self.graph.anode[name].kind == "phantom" and name in self.live:
                    self._free(name, step.span, "free")
        return during

    def _take_over(self, c: CNode, step: Compute) -> None:
        """The same storage under another name; the kinds may count differently."""
        for ended, named in c.takes_over:
            if ended in self.live:
                if not self.copies.arriving(ended):  # else the read was refused already
                    self.copies.at_rest(ended, f"{c.name} ends", step.span)
                how = Note(f"{c.name} ended %{ended} here", step.span)
                self._drop(ended, how)
                self.copies.age(ended, how)
            if named not in self.live:
                self._take(named)
            self._move_home(ended, named)

    def _move_home(self, ended: str, named: str) -> None:
        """An aNode that takes over a storage has its home."""
        if ended in self.homes:
            self.homes[named] = self.homes.pop(ended)
            self.copies.leave_home(ended)

    def _update_on_host(self, index: int, step: Compute) -> None:
        """An update of host copies, which are in flight from here to their waits."""
        c = self.graph.cnode[step.cnode]
        self.executions[c.name] = self.executions.get(c.name, 0) + 1
        if not c.is_update or step.nosave:
            hint = "run it on the device"
            self._report("FB0329", f"{c.name} on host is no update", step.span, hint=hint)
            return
        old = dict(c.takes_over)
        for name in self.graph.reads(c):
            if name in old and name in self.live:
                message = f"{c.name} on host updates %{name}, which is alive on the device"
                hint = f"put `free %{name}` before it"
                self._report("FB0316", message, step.span, hint=hint)
        for name in c.results:
            if name in self.live:
                self._report("FB0304", f"%{name} is already alive", step.span)
        self.copies.update(index, c, self.graph.reads(c), step)
        for ended, named in c.takes_over:
            self._move_home(ended, named)

    def _check_draw(self, c: CNode, step: Compute) -> None:
        """Random numbers come out of one stream, so they are drawn as captured."""
        before = self.drawn[-1] if self.drawn else c.name
        if self.draw_order[c.name] < self.draw_order[before]:
            message = (
                f"{c.name} runs first after {before}, which draws random numbers or is the loss "
                "and was captured later"
            )
            hint = f"run {c.name} before {before} for the first time"
            self._report("FB0311", message, step.span, hint=hint)
        else:
            self.drawn.append(c.name)

    def _check_reads(self, c: CNode, n: int, step: Compute) -> None:
        wanted = [*self.graph.reads(c, n)]
        if c.token and n > 1:
            wanted.append(c.token)
        for name in wanted:
            if name not in self.live:
                self._report_dead(c.name, name, step.span)
            elif issued := self.copies.arriving(name):
                message = f"{c.name} reads %{name} before its prefetch is waited for"
                hint = f"put `wait %{name}` before it"
                self._report("FB0313", message, step.span, (issued,), hint)
            elif self.loss_done and not c.is_loss and name in self.updated:
                message = f"{c.name} reads buffer %{name} after its update was written back"
                hint = "run it before the loss, or keep its results instead"
                self._report("FB0303", message, step.span, hint=hint)
        for _, named in c.takes_over:
            if named in self.live:
                self._report("FB0304", f"%{named} is already alive", step.span)

    def _report_dead(self, who: str, name: str, span: Span | None) -> None:
        notes = (self.ended[name],) if name in self.ended else ()
        again = "again before this step, or free it later" if notes else "before this step"
        message = f"{who} reads %{name}, which is not alive here"
        hint = f"compute its writer {again}"
        if self.graph.anode[name].kind in CALLER_KINDS:
            hint = f"put `prefetch %{name}` and `wait %{name}` before this step"
        self._report("FB0301", message, span, notes, hint)

    def _take(self, name: str) -> None:
        self.live[name] = None
        self.total += self.sizes.anode[name]
        if self._is_activation(name):
            self.activation += self.sizes.anode[name]

    def _free(self, name: str, span: Span | None, word: str) -> None:
        caller = self.graph.anode[name].kind in CALLER_KINDS and name not in self.homes
        given = self.loss_done and name in self.held_since_loss
        if name in self.live and not caller and not given:
            self._drop(name, Note(f"%{name} was freed here", span))
            return
        why = "the caller holds since the loss" if given else "is not alive here"
        if caller:
            why = "belongs to the caller"
        notes = (self.ended[name],) if name in self.ended else ()
        self.diagnostics.append(
            Diagnostic("FB0302", f"{word} of %{name}, which {why}", span, notes, "remove this step")
        )

    def _drop(self, name: str, how: Note) -> None:
        del self.live[name]
        self.ended[name] = how
        self.total -= self.sizes.anode[name]
        if self._is_activation(name):
            self.activation -= self.sizes.anode[name]

    def _is_activation(self, name: str) -> bool:
        return self.graph.anode[name].kind not in NON_ACTIVATION_KINDS

    def check_effects(self, schedule: Schedule) -> None:
        """Buffers are updated and random numbers drawn as in the unplanned step."""
        for c in self.graph.cnodes:
            if c.name in self.executions:
                continue
            updates = any(self.graph.anode[r].kind == "pending" for r in c.results)
            if updates or c.token is not None:
                what = "updates a buffer" if updates else "draws random numbers"
                hint = f"run {c.name} once before the loss"
                self._report("FB0310", f"{c.name} {what} and never runs", schedule.span, hint=hint)

    def check_end(self, schedule: Schedule) -> None:
        self.copies.check_end(self.graph.anode, schedule, self.homes)
        end = f"at the end of schedule @{schedule.name}"
        for a in self.graph.anodes:
            away = a.name in self.homes
            if a.kind in KEPT_KINDS and a.name not in self.live and not away:
                notes = (self.ended[a.name],) if a.name in self.ended else ()
                message = f"{a.kind} %{a.name} is not alive {end}"
                hint = "compute its writer, and do not free it"
                self._report("FB0305", message, schedule.span, notes, hint)
            elif a.name in self.live and (away or a.kind not in KEPT_KINDS | CALLER_KINDS):
                hint = f"add `free %{a.name}` after its last use"
                self._report("FB0306", f"%{a.name} is left behind {end}", schedule.span, hint=hint)
