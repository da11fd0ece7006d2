"""A model's training step on the ranks of a process group."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from ...backends.torch.pipeline import (
    CrossingTensor,
    RankRun,
    StageModule,
    TorchSchedule,
    Transport,
    message_bytes,
    random_stages,
    schedule_csv,
)
from ...backends.torch.pipeline.transport import from_first, gathered, rank_and_size
from ...capture.torch import Wanted, ensure_trusted, export, lower
from ...capture.torch.optimizer import updates_of
from ...ir.diagnostics import Diagnostic, FBError, fail
from ...ir.expr import Const, evaluate
from ...ir.pipeline import Pipeline, StageProgram
from ...ir.program import Binding, Program
from ...ir.semantics.pipeline import simulate_pipeline
from ...ir.text.pipeline import format_pipeline, parse_pipeline
from ...ir.text.printer import format_program
from ...planners.pipeline.from_program import StepLayers
from ...verifier.pipeline import check_pipeline
from ..make import costed
from ..request import PlanRequest
from ..run_planner import Phases
from ..source import Source
from .make import PipelineRequest, make_pipeline

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ...capture.lowered import Lowered

_LEAST_TIMEOUT_S = 30.0


@dataclass(frozen=True, eq=False)
class PipelineStep:
    """Runs the rows of `pipeline`: called on every rank with the arguments of the whole batch.

    It adds the gradients of the mean loss over micro-batches to `.grad` of the parameters that this
    rank's stages use, updates their buffers, and returns that mean loss on the rank of the last
    stage, None elsewhere. Gradients that are there already take their bytes once more, in a first
    backward also the largest of them. With an `optimizer` it then updates these parameters, their
    gradients clipped to `max_grad_norm` (that of all ranks together), and leaves no gradients of
    them.

    If a step fails on any rank, the ranks raise FB1030 and nothing of theirs is changed. (A rank
    that ends while all ranks tell each other that their rows are done may leave some that were told
    and some that were not.)
    """

    pipeline: Pipeline
    program: Program
    stages: Mapping[int, StageProgram]
    rank: int
    values: Mapping[str, Tensor]
    forms: Mapping[str, CrossingTensor]
    random_S: Sequence[Sequence[str]]
    group: Any
    timeout_s: float
    own: frozenset[str]
    optimizer: Optimizer | None = None
    max_grad_norm: float | None = None
    replicas: Any = None

    @property
    def text(self) -> str:
        """The rows of all ranks, as `remat-compile pipeline FILE.fbpl` checks them."""
        return format_pipeline(self.pipeline)

    @property
    def peak_bytes(self) -> int:
        """The proven peak of this rank."""
        assert self.pipeline.claims is not None
        return self.pipeline.claims.peak_bytes_R[self.rank]

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor | None:
        m = self.pipeline.microbatches
        inputs = [self._inputs(*part) for part in microbatches_of(args, kwargs, m)]
        transport = Transport(self.group, self.timeout_s, self.replicas)
        run = RankRun(
            self.program,
            self.pipeline,
            self.stages,
            self.rank,
            self.values,
            inputs,
            self.forms,
            transport,
            self.random_S,
            self.max_grad_norm,
        )
        result = run.run()
        with torch.no_grad():
            for name, gradient in result.gradients.items():
                self.values[name].grad = gradient.detach()
            for name, tensor in result.buffers.items():
                self.values[name].copy_(tensor)
            if self.optimizer is not None:
                self.optimizer.step()
                for name in result.gradients:
                    self.values[name].grad = None
            if not result.losses:
                return None
            return torch.stack(list(result.losses)).mean()

    def state_dict(self) -> dict[str, Any]:
        """This rank's part of a checkpoint: under `model` the parameters and buffers of its stages
        (on rank 0 also those that no stage reads), under `optimizer` its state.

        `merged` makes one of all parts, which the model on one rank loads.
        """
        bound = self.program.binding
        tensors = {
            path: self.values[name].detach()
            for name, names in _state_names(bound)
            if name in self.own
            for path in names
        }
        made = {} if self.optimizer is None else {"optimizer": self.optimizer.state_dict()}
        return {"model": tensors, **made}

    @staticmethod
    def merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """The checkpoint of all ranks' parts: `model.load_state_dict(it["model"])`, and so on."""
        whole: dict[str, Any] = {"model": {}}
        for part in parts:
            whole["model"].update(part["model"])
            if (given := part.get("optimizer")) is not None:
                kept = whole.setdefault("optimizer", {**given, "state": {}})
                kept["state"].update(given["state"])
        return whole

    def torch_schedule(self, *args: Any, **kwargs: Any) -> TorchSchedule:
        """The same stages and order for `torch.distributed.pipelining`, for batches like this one.
        FB0735 for rows that its runtime cannot follow. Bytes of a rank are not proven there."""
        if any(self.random_S):
            hint = "leave dropout out, or run the rows"
            fail("FB0735", "each rank would draw random numbers of its own", hint=hint)
        csv = schedule_csv(self.pipeline)
        sample = self._inputs(*microbatches_of(args, kwargs, self.pipeline.microbatches)[0])
        values = {name: value.detach() for name, value in self.values.items()}
        modules = {}
        for s, stage in self.stages.items():
            begin = partial(
                RankRun,
                self.program,
                self.pipeline,
                {s: stage},
                self.rank,
                values,
                forms=self.forms,
                transport=Transport(self.group, self.timeout_s),
            )
            modules[s] = StageModule(s, begin, self.program, stage, self.values)
        return TorchSchedule(csv, self.pipeline, modules, self.forms, sample, self.group)

    def _inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Tensor]:
        """The tensors of one micro-batch by aNode. FB1033 where they are not as planned."""
        leaves = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        bound = self.program.binding.arguments
        if len(leaves) != len(bound):
            fail("FB1033", f"{len(leaves)} tensors are given, planned for {len(bound)}")
        shapes = self.program.graph.anode
        for leaf, argument in zip(leaves, bound, strict=True):
            shape = shapes[argument.name].shape
            planned = tuple(evaluate(n, self.program.sample) for n in shape)
            if tuple(leaf.shape) != planned:
                message = f"{argument.path} has shape {list(leaf.shape)} in a micro-batch"
                hint = f"planned for {list(planned)}"
                fail("FB1033", message, hint=hint)
        return {a.name: leaf for a, leaf in zip(bound, leaves, strict=True)}


def microbatches_of(
    args: Sequence[Any], kwargs: Mapping[str, Any], m: int
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments cut into m equal parts along dimension 0 of every tensor. FB1033 for tensors
    without that dimension, of another size there, or of one that m does not divide."""
    leaves, spec = tree_flatten((tuple(args), dict(kwargs)))
    sizes = {x.shape[0] if x.dim() else None for x in leaves if isinstance(x, Tensor)}
    if len(sizes) != 1 or None in sizes:
        message = f"the arguments have sizes {sorted(map(str, sizes))} in dimension 0"
        hint = "give every tensor the batch as its first dimension"
        fail("FB1033", message, hint=hint, usage=True)
    (batch,) = sizes
    assert batch is not None
    if m < 1 or batch % m:
        hint = "give a number of micro-batches that divides the batch"
        fail("FB1033", f"a batch of {batch} in {m} micro-batches", hint=hint, usage=True)
    step = batch // m
    return [
        tree_unflatten(
            [x[k * step : (k + 1) * step] if isinstance(x, Tensor) else x for x in leaves], spec
        )
        for k in range(m)
    ]


def _state_names(bound: Binding) -> list[tuple[str, tuple[str, ...]]]:
    """The aNodes of parameters and buffers with their paths in the model."""
    params = [(p.name, p.names) for p in bound.params]
    return [*params, *((x.name, x.names) for x in bound.buffers)]


def check_runnable(program: Program) -> None:
    """FB1034 for a step that rows cannot run: its loss is not in the model, a gradient of an input
    is wanted."""
    results, graph = program.binding.results, program.graph
    problems = []
    is_scalar = len(results) == 1 and not graph.anode[graph.storage[results[0].name]].shape
    if not is_scalar or results[0].tangent is None:
        problems.append(("the model does not return one scalar loss", "give loss= a path to it"))
    if program.binding.input_grads:
        problems.append(("an argument wants a gradient", "detach() it"))
    if problems:
        raise FBError(Diagnostic("FB1034", message, hint=hint) for message, hint in problems)


def check_stages(pipeline: Pipeline, step: StepLayers) -> None:
    """FB1019 for stages that are not of this step: other layers or other bytes."""
    problems = []
    for number, s in enumerate(pipeline.stages):
        if s.last > len(step) or s.first in step.obstacles_B:
            problems.append((number, f"there is no cut at {s.first}..{s.last}", s.span))
            continue
        ends = [s.first, *(b for segment in s.remade for b in segment), s.last]
        if ends != sorted(ends) or any(a == b for a, b in s.remade):
            problems.append((number, f"it makes again layers {s.remade}", s.span))
            continue
        parts = step.parts_of(s, pipeline.microbatches)
        real = {f.name: getattr(parts, f.name) for f in fields(parts) if f.name.endswith("_bytes")}
        real["activation_bytes"] = step.bytes_of(step.act_B[s.last])
        real["gradient_bytes"] = step.bytes_of(step.grad_B[s.last])
        for name, size in real.items():
            if getattr(s, name) < size:
                problems.append((number, f"{name} are {size}, not {getattr(s, name)}", s.span))
        if (s.reads_input, s.reads_output) != (parts.reads_input, parts.reads_output):
            problems.append((number, "its backward reads something else of its borders", s.span))
    for name in ("message_bytes", "draw_bytes"):
        size, told = getattr(step, name), getattr(pipeline, name)
        if told < size:
            problems.append((len(pipeline.stages) - 1, f"{name} are {size}, not {told}", None))
    if pipeline.stages[-1].last != len(step):
        problems.append((len(pipeline.stages) - 1, "layers are missing behind it", None))
    if problems:
        hint = "plan the model again"
        raise FBError(
            Diagnostic("FB1019", f"stage {number}: {why}", span, hint=hint)
            for number, why, span in problems
        )


def build_step(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    request: PipelineRequest,
    planning: PlanRequest,
    phases: Phases,
    *,
    wanted: Wanted,
    group: Any = None,
    timeout_s: float | None = None,
    optimizer: Optimizer | None = None,
    max_grad_norm: float | None = None,
    replicas: Any = None,
) -> PipelineStep:
    """Captures one micro-batch on every rank, plans on rank 0, and checks the rows on every rank.

    FB1031 where ranks captured different steps, FB1032 for a group of another size than the rows.
    Until the step is built, ranks wait for each other as long as the group's own timeout says.
    """
    rank, size = rank_and_size(group)
    replica = 0 if replicas is None else rank_and_size(replicas)[0]
    request, m = request.on(size), request.microbatches
    if m is None:
        fail("FB1023", "a batch is cut before it is planned", hint="give a number", usage=True)
    micro = microbatches_of(args, kwargs, m)[0]
    source = Source(export(model, *micro, wanted=wanted))
    updates = None
    if optimizer is not None:
        updates = updates_of(optimizer, source.exported, max_grad_norm).bytes_on
    with ExitStack() as stack:
        if (rank or replica) and planning.device is None:  # rank 0 measures
            lowered = stack.enter_context(lower(source.exported))
            program = lowered.program
        else:
            program, lowered = stack.enter_context(costed(source, planning.device, phases))
        check_runnable(program)
        values = lowered.values()
    # Outside of the block, in which PyTorch traces: what follows computes with tensors.
    same_on_all(group, program, m)
    step = StepLayers(program, updates, message_bytes(program, max_grad_norm))
    text = "" if rank or replica else _planned(step, request, phases)
    if replicas is not None:
        same_on_all(replicas, program, m)
        text = from_first(replicas, text)
    text = from_first(group, text)
    _raise_refusal(text)
    pipeline = parse_pipeline(text, "rank 0's rows")
    check_rows(pipeline, step, size)
    check_update(pipeline, step)
    stages = {
        number: step.stage_program(s) for number, s in enumerate(pipeline.stages) if s.rank == rank
    }
    forms = _forms(lowered, stages)
    forward_S = [step.stage_program(s).forward for s in pipeline.stages]
    if (random_S := random_stages(program, forward_S)) is None:
        message = "random numbers are drawn in a backward, or in another order than stages run"
        fail("FB1034", message, hint="leave dropout out")
    ensure_trusted(lowered)
    assert pipeline.claims is not None
    limit_s = max(_LEAST_TIMEOUT_S, 20 * pipeline.claims.makespan_ns / 1e9)
    graph = program.graph
    read_S = [{x for c in names for x in graph.reads(graph.cnode[c])} for names in forward_S]
    others = {x for s, read in enumerate(read_S) if s not in stages for x in read}
    own = {x for s in stages for x in read_S[s]}
    if rank == 0:
        own |= {name for name, _ in _state_names(program.binding)} - others
    return PipelineStep(
        pipeline,
        program,
        stages,
        rank,
        values,
        forms,
        random_S,
        group,
        limit_s if timeout_s is None else timeout_s,
        frozenset(own),
        optimizer,
        max_grad_norm,
        replicas,
    )


def check_update(pipeline: Pipeline, step: StepLayers) -> None:
    """FB0742 where the optimizer's step on the parameters of a rank takes more than is proven."""
    assert pipeline.claims is not None
    for rank, peak in enumerate(pipeline.claims.peak_bytes_R):
        stages = [s for s in pipeline.stages if s.rank == rank]
        _, more = step.update_bytes(*((s.first, s.last) for s in stages))
        held = sum(s.held_bytes + s.sums_bytes + s.weight_sums_bytes for s in stages)
        total = held + more
        if total > peak:
            message = f"the optimizer's step on rank {rank} takes {total} bytes, its rows {peak}"
            fail("FB0742", message, hint="make the optimizer with foreach=False")


def _planned(step: StepLayers, request: PipelineRequest, phases: Phases) -> str:
    """The rows, or a refusal as a text too, so that no rank waits for it."""
    try:
        return make_pipeline(step, request, phases.say).text
    except FBError as error:
        return json.dumps([(d.code, d.message, d.hint) for d in error.diagnostics])


def _raise_refusal(text: str) -> None:
    """Raises on every rank what rank 0 was refused."""
    if text.startswith("["):
        raise FBError(
            Diagnostic(code, message, hint=hint) for code, message, hint in json.loads(text)
        )


def check_rows(pipeline: Pipeline, step: StepLayers, size: int) -> None:
    """FB1032 for another number of ranks; every rank proves all rows for itself."""
    if pipeline.ranks != size:
        hint = f"start {pipeline.ranks} processes"
        fail("FB1032", f"{size} processes for rows of {pipeline.ranks} ranks", hint=hint)
    verdict = check_pipeline(pipeline)
    if not verdict.holds:
        raise FBError(verdict.problems)
    simulate_pipeline(pipeline)
    check_stages(pipeline, step)


def same_on_all(group: Any, program: Program, microbatches: int) -> None:
    """FB1031 on every rank where one has another graph, torch or number of micro-batches."""
    calls = tuple(
        replace(c, time_ns=None, workspace=Const(0), replay=None) for c in program.graph.cnodes
    )
    anodes = tuple(replace(a, size=Const(0)) for a in program.graph.anodes)  # measured too
    uncosted = Program(replace(program.graph, anodes=anodes, cnodes=calls), program.binding)
    text = f"{format_program(uncosted)}\n{torch.__version__}\n{microbatches}"
    digests = gathered(group, hashlib.sha256(text.encode()).hexdigest())
    others = [str(rank) for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        message = f"ranks {', '.join(others)} have another step than rank 0"
        hint = "give every rank the same model, shapes, micro-batches and version of torch"
        fail("FB1031", message, hint=hint)


def _forms(lowered: Lowered, stages: Mapping[int, StageProgram]) -> dict[str, CrossingTensor]:
    """The form of everything that crosses a border of these stages, as it was captured. FB1034 for
    what is not dense in memory."""
    forms: dict[str, CrossingTensor] = {}
    for stage in stages.values():
        for name in (
            *stage.act_before,
            *stage.act_behind,
            *stage.grad_before,
            *stage.grad_behind,
        ):
            fake = lowered.nodes[name].meta["val"]
            form = CrossingTensor(
                tuple(map(int, fake.shape)),
                tuple(map(int, fake.stride())),
                fake.dtype,
                torch.device(lowered.program.header.device),
            )
            span = sum((n - 1) * s for n, s in zip(form.shape, form.strides, strict=True)) + 1
            if span != fake.numel():
                hint = "call contiguous() in the model at that place"
                fail("FB1034", f"%{name} crosses stages and is not dense in memory", hint=hint)
            forms[name] = form
    return forms
