"""A plan: one schedule of one program, proven before it is saved, emitted or run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ..capture.output_spec import Loss, Outputs, Wanted
from ..costs.device import library_bytes
from ..ir.diagnostics import Diagnostic, FBError
from ..ir.program import Budget
from ..ir.semantics.simulate import simulate
from ..ir.terminal import printable
from .budget import Baseline, format_bytes, parse_budget, resolve_budget
from .files.files import write_bytes, write_text
from .messages.summary import summary
from .options import Emitted, JaxStyle, ProofKeywords, named_keywords
from .prove import ProofRequest, in_file, prove, prove_with_scripts, proven_program
from .request import check_choice

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ..backends.torch.kernels import Kernels
    from ..capture.lowered import Exported
    from ..ir.graph import Graph
    from ..ir.program import Program, Proven
    from ..ir.schedule import Schedule
    from ..ir.semantics.simulate import Trace
    from ..report.charts.picture import ChartName, Picture
    from ..report.fit import Fit
    from ..report.subject import Subject
    from ..verifier import Assumption, Choice, Largest, Refuted, Script, Undecided, Verdict
    from .compare.graph import GraphCheck
    from .files.files import FileRead

REPR_WIDTH = 120


@dataclass(frozen=True, eq=False)
class PlanText:
    """The text that a graph and a schedule were read from: the checker reads it itself."""

    graph: Graph
    schedule: Schedule
    text: str

    def is_of(self, program: Program, schedule: Schedule) -> bool:
        """Return whether they are still what was read."""
        return self.graph is program.graph and self.schedule is schedule


@dataclass(frozen=True, eq=False)
class Plan:
    """A schedule and the graph it runs.

    `program` holds both, as they stand in a `.fbir` file. `warnings` are what a user
    should know about the model; `lower_bound_s` bounds the time of every plan within
    the budget, where the planner knows one; `phase_s` is the seconds that each phase of
    making it took. A plan from a file is not trusted before `verify()` has proven it;
    `save`, `emit` and `bind` do so by themselves.
    """

    program: Program
    schedule: Schedule
    budget: Budget | None = None
    warnings: tuple[Diagnostic, ...] = ()
    lower_bound_s: float | None = None
    phase_s: Mapping[str, float] = field(default_factory=dict)
    _is_proven: bool = False
    _exported: Exported | None = field(default=None, repr=False)
    _reads: tuple[FileRead, ...] = field(default=(), repr=False)
    _text: PlanText | None = field(default=None, repr=False)
    _kernels: Kernels | None = field(default=None, repr=False)

    @property
    def graph(self) -> Graph:
        return self.program.graph

    @property
    def planner(self) -> str:
        """The planner with its options, as in `periodic{segments=4}`."""
        return self.schedule.planner

    @cached_property
    def trace(self) -> Trace:
        """Memory after every step, predicted. FBError where the schedule is invalid."""
        return simulate(self.program, self.schedule)

    @cached_property
    def baseline(self) -> Baseline:
        """The same step with nothing recomputed."""
        return Baseline.of(self.program)

    @property
    def peak_bytes(self) -> int:
        """The largest number of device bytes in the step."""
        return self.trace.peak_bytes

    @property
    def activation_peak_bytes(self) -> int:
        """The same on top of parameters, buffers, inputs and parameter gradients."""
        return self.trace.activation_peak_bytes

    @property
    def host_peak_bytes(self) -> int:
        """The largest number of bytes of copies on the host."""
        return self.trace.host_peak_bytes

    @property
    def time_s(self) -> float:
        """The predicted time of one step: its computations, and its waits for copies."""
        return self.trace.time_ns / 1e9

    @property
    def proven(self) -> Proven | None:
        """Return the recorded proof of this schedule."""
        recorded = [p for p in self.program.proven if p.schedule == self.schedule.name]
        return recorded[-1] if recorded else None

    @property
    def assuming(self) -> tuple[Assumption, ...]:
        """Return the assumptions of the recorded proof; nothing without one."""
        from ..verifier import assumptions

        if self.proven is None:
            return ()
        c = self.proven.certificate
        ranges = () if c is None else c.ranges
        return assumptions(self.program, self.schedule, (name for name, _, _ in ranges))

    @named_keywords(ProofKeywords)
    def verify(self, *budgets: Budget | str | int, **options: Unpack[ProofKeywords]) -> Verdict:
        """Proves the plan again, within `budgets`, or those it was made for and claims.

        A budget is bytes, or a text such as `"8GiB"`, and counts all device bytes, unless it is
        a `Budget` that says otherwise.
        """
        return prove(self.program, self.schedule, self._to_prove(budgets, options))

    @named_keywords(ProofKeywords)
    def verify_with_scripts(
        self, *budgets: Budget | str | int, **options: Unpack[ProofKeywords]
    ) -> tuple[Verdict, tuple[Script, ...]]:
        """`verify`, with the SMT-LIB 2.6 scripts that were asked on the way."""
        return prove_with_scripts(self.program, self.schedule, self._to_prove(budgets, options))

    def _to_prove(
        self, budgets: Iterable[Budget | str | int], options: ProofKeywords
    ) -> ProofRequest:
        return ProofRequest(self._bounds(budgets), **options, text=self._own_text)

    def _bounds(self, budgets: Iterable[Budget | str | int]) -> tuple[Budget, ...]:
        """Return the bounds to be held: the budgets given, or what the plan was made for and
        claims."""
        given = tuple(
            bound
            if isinstance(bound, Budget)
            else resolve_budget(parse_budget(bound), self.baseline)
            for bound in budgets
        )
        made_for = () if self.budget is None else (self.budget,)
        claimed = () if self.proven is None else self.proven.budgets
        return given or (*made_for, *claimed)

    def check_model(
        self,
        model: nn.Module | str | Path | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        loss: Loss = None,
        outputs: Outputs = None,
        optimizer: Optimizer | None = None,
        max_grad_norm: float | None = None,
    ) -> GraphCheck:
        """Holds the graph against `model`, captured again: by its text, or executed.

        `model` is a module with its sample, a path or `file.py:factory`; it may be left out as
        in `bind`; `loss` and `outputs` are those of `plan`. With the `optimizer` of a training step
        its updates are compared too. FB0720 where the graph is another, FB0721 where that cannot be
        told.
        """
        from .compare.graph import check_graph

        updates = None
        name = self.program.header.source or "of this process"
        if isinstance(model, str | Path):
            from .files.recorded import with_sizes
            from .source import load_source

            name = str(model)
            source = load_source(name, with_sizes(self.program))
            exported, updates = source.exported, source.optimizer
        else:
            if model is not None:
                name = type(model).__name__
            hint = "pass the model: plan.check_model(model, args)"
            exported = self._capture(model, tuple(args), kwargs, Wanted(loss, outputs), hint)
        if optimizer is not None:
            from ..capture.torch.optimizer import updates_of

            updates = updates_of(optimizer, exported, max_grad_norm)
        return check_graph(self.program, exported, name, updates)

    @named_keywords()
    def largest(
        self,
        symbol: str,
        *budgets: Budget | str | int,
        time_limit_s: float = 60.0,
        solver: Choice = "z3",
    ) -> Largest | Refuted | Undecided:
        """The largest value of `symbol` that holds `budgets`, or those the plan is made for."""
        from ..verifier import prove_largest

        return prove_largest(
            self.program,
            self.schedule,
            self._bounds(budgets),
            symbol,
            time_limit_s=time_limit_s,
            solver=solver,
            text=self._own_text,
        )

    @property
    def _own_text(self) -> str | None:
        """The text of the file it was read from, while the plan is still that one."""
        read = self._text
        return read.text if read and read.is_of(self.program, self.schedule) else None

    def save(self, path: str | Path) -> None:
        """Writes the `.fbir` file, whole or not at all; `-` is standard output.

        FB0703 where it cannot be written or is the model, FB0714 where the plan is not
        proven, FB0719 for an existing file of another kind.
        """
        from ..ir.text.printer import format_program
        from .files.outputs import check_output

        check_output(path, "plan", self._reads)
        write_text(path, format_program(self.trusted().program))

    def emit(self, backend: Emitted = "torch", *, jax_style: JaxStyle = "explicit") -> str:
        """The plan as the source of `backend`: "torch" or "jax"; or as a "trace" (Chrome,
        Perfetto) or a "dot" graph of what is simulated, for which nothing is proven.

        FB0707 for one that does not exist, FB0931 where JAX is missing, FB0920 and FB0933
        for what JAX cannot express. `jax_style` is `"explicit"`, `"annotated"` or
        `"annotated-nearest"`; see docs/guide/jax.md.
        """
        check_choice("backend", backend, Emitted)
        check_choice("JAX style", jax_style, JaxStyle)
        if backend == "trace" or backend == "dot":
            from ..report.dot import dot
            from ..report.trace import trace_json

            return trace_json(self._subject) if backend == "trace" else dot(self._subject)
        plan = self.trusted()
        if backend == "torch":
            from ..backends.torch import emit

            return emit(plan.program, plan.schedule)
        from .jax.source import source_of_plan

        return source_of_plan(plan.program, plan.schedule, jax_style)

    def bind(
        self,
        model: nn.Module | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        loss: Loss = None,
        outputs: Outputs = None,
        optimizer: Optimizer | None = None,
        max_grad_norm: float | None = None,
        cuda_graph: bool = False,
    ) -> nn.Module:
        """The drop-in that runs this plan; with an `optimizer`, and the `max_grad_norm` that was
        planned, the whole step as `compile` gives it.

        `model` with its sample `args`, `loss` and `outputs` as in `plan` may be left out where
        the plan was made from a model in this process, `cuda_graph` as in `compile`. FB0709 where
        there is none; FB0710 where the model gives another graph than the plan's.
        """
        from .bind import bind

        hint = "pass the model and its sample arguments: plan.bind(model, args)"
        exported = self._capture(model, args, kwargs, Wanted(loss, outputs), hint)
        plan = self.trusted()
        updates = None
        if optimizer is not None:
            from ..capture.torch.optimizer import updates_of

            updates = updates_of(optimizer, exported, max_grad_norm)
        given = plan.program, plan.schedule, exported, self._kernels
        return bind(*given, cuda_graph=cuda_graph, optimizer=updates)

    def _capture(
        self,
        model: nn.Module | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        wanted: Wanted,
        hint: str,
    ) -> Exported:
        """`model`, or the one that the plan was made from. FB0709 where there is none."""
        if model is not None:
            from ..capture.torch import export

            return export(model, args, kwargs, wanted=wanted)
        if self._exported is None:
            message = "this plan comes from a file and does not hold its model"
            raise FBError(Diagnostic("FB0709", message, hint=hint))
        return self._exported

    @cached_property
    def _subject(self) -> Subject:
        """Return the subject of reports."""
        from ..report.subject import Subject
        from ..verifier import cost_assumptions

        known = {a.key: a.text for a in (*self.assuming, *cost_assumptions(self.program))}
        assuming = tuple(known.values())
        library = library_bytes(self.program.target.name)
        return Subject(self.program, self.schedule, self.budget, assuming, library_bytes=library)

    @named_keywords()
    def fit(self, optimizer: str | None = None) -> Fit:
        """The bytes of the step beside the target's memory, and what fills it. `optimizer` is
        assumed where none is in the plan ("adamw"; FB0968 for one that is not known)."""
        from ..report.fit import Fit

        return Fit.of(self._subject, optimizer)

    def report(self, path: str | Path | None = None) -> str:
        """The plan as one HTML page that needs nothing else, written to `path` if that is given.

        What it shows is simulated. FB0712 without the extra `[report]`; FB0703 and FB0719 as
        `save`.
        """
        from ..report.page import page
        from .files.pictures import kept

        return kept(lambda: page(self._subject), path, self._reads, write_text)

    def plot(self, chart: ChartName = "memory", path: str | Path | None = None) -> Picture:
        """A chart of the report that stands still: `memory` over the step by kind, `streams`,
        `lives` (when the largest tensors are held), `operators` (time). A notebook shows it.

        Written to `path` if that is given, `.svg` or `.png`: FB0725 for another name or chart,
        FB0712 without the extra `[report]`, FB0703 and FB0719 as `save`.
        """
        from ..report.charts.picture import picture_of_plan
        from .files.pictures import kept_picture

        return kept_picture(lambda: picture_of_plan(self._subject, chart), path, self._reads)

    def memory_snapshot(self, path: str | Path | None = None) -> bytes:
        """Return a pickled snapshot for pytorch.org/memory_viz and `torch.cuda._memory_viz`: each
        allocation and free as simulated. Written to `path` if that is given; FB0703 and FB0719 as
        `save`."""
        from ..report.snapshot import snapshot
        from .files.pictures import kept

        return kept(lambda: snapshot(self._subject), path, self._reads, write_bytes)

    def _repr_html_(self) -> str:
        """For notebooks: the summary, and memory over the step where the extra `[report]` is."""
        from ..report.notebook import summary_html

        return summary_html(self._subject, repr(self))

    def trusted(self) -> Plan:
        """This plan once it is proven, with the proof recorded. FB0714 where it is not."""
        if self._is_proven:
            return self
        from ..verifier import accept_certificate

        request, maker = self._to_prove((), {}), in_file(self.schedule)
        verdict = prove(self.program, self.schedule, request)
        program = proven_program(self.program, self.schedule, verdict, request, maker)
        if not accept_certificate(self.program, self.schedule, self.proven):
            program = self.program  # it was proven before, and is again: the file stays as it is
        return replace(self, program=program, _is_proven=True)

    def __repr__(self) -> str:
        """One line, from what is known without simulating."""
        by = f" by {self.planner}" if self.planner else ""
        size = f"{len(self.graph.cnodes)} computations in {len(self.schedule.steps)} steps"
        held = "not proven"
        if self.proven is not None:
            how = "proven" if self._is_proven else "recorded as proven"
            held = f"{how} <= {format_bytes(self.proven.device_bytes)}"
        shown = printable(f"@{self.schedule.name}{by} of @{self.graph.name}")
        return f"Plan({shown[:REPR_WIDTH]}: {size}, {held})"

    def summary(self) -> str:
        """A short table: what the plan takes, and what the step takes without it."""
        return summary(
            self.program,
            self.schedule,
            self.trace,
            self.baseline,
            budget=self.budget,
            lower_bound_s=self.lower_bound_s,
            is_proven=self._is_proven,
        )
