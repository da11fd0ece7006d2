"""A pipeline for `torch.distributed.pipelining`: its rows as CSV, its stages as modules.

A stage runs its own forward and backward of the plan, as one autograd node. That runtime decides on
its own when values come and go: it holds a receive buffer per micro-batch, so the bytes of a rank
are not proven there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ....ir.diagnostics import Diagnostic, FBError, fail
from ....ir.pipeline import Pipeline, StageProgram, StageRun
from ....ir.program import Program
from ....operators.instances import plain_mode
from .rank import RankRun
from .transport import CrossingTensor

_LETTERS = {"fwd": "F", "bwd": "B"}


def schedule_csv(pipeline: Pipeline) -> str:
    """A line per rank: `0F3` is the forward of stage 0 on micro-batch 3, `0B3` its backward.

    FB0735 for rows that this runtime cannot follow.
    """
    problems = [
        Diagnostic("FB0735", f"stage {s}: {why}", stage.span, hint="export another planner's rows")
        for s, stage in enumerate(pipeline.stages)
        for why in _obstacles(pipeline, s)
    ]
    if problems:
        raise FBError(problems)
    runs = [[step for step in row if isinstance(step, StageRun)] for row in pipeline.rows]
    lines = (",".join(f"{r.stage}{_LETTERS[r.word]}{r.microbatch}" for r in row) for row in runs)
    return "".join(f"{line}\n" for line in lines)


def _obstacles(pipeline: Pipeline, s: int) -> list[str]:
    found = []
    if "wgt" in pipeline.stages[s].passes:
        found.append(
            "gradients of parameters in a third pass, which that runtime leaves to autograd"
        )
    if s < pipeline.last_stage and not pipeline.has_gradient(s):
        found.append("no gradient flows back to it, and that runtime sends one")
    return found


class StageModule(nn.Module):
    """One stage. Called with the activations from the stage before and, by name, inputs of a
    micro-batch; stage 0 takes the inputs that it reads as arguments. Returns activations for the
    stage behind, or the loss. Its parameters and buffers are the model's."""

    def __init__(
        self,
        number: int,
        begin: Callable[..., RankRun],
        program: Program,
        stage: StageProgram,
        values: Mapping[str, Tensor],
    ):
        super().__init__()
        self.number, self.begin, self.stage, self.values = number, begin, stage, values
        read = {a for c in stage.forward for a in program.graph.reads(program.graph.cnode[c])}
        self.inputs = tuple(a.name for a in program.binding.arguments if a.name in read)
        trained = (p.name for p in program.binding.params if p.grad is not None)
        self.names = tuple(name for name in trained if name in read)
        self.trained = nn.ParameterList(values[name] for name in self.names)

    def forward(self, *before: Tensor, **inputs: Tensor) -> tuple[Tensor, ...] | Tensor:
        if not self.number:
            before, inputs = (), dict(zip(self.inputs, before, strict=True))
        made = _StageFunction.apply(self, inputs, len(before), *before, *self.trained)  # type: ignore[no-untyped-call]
        return made[0] if len(made) == 1 else tuple(made)


class _StageFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, module: StageModule, inputs: Mapping[str, Tensor], n: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        run, s = module.begin(inputs=[inputs]), module.number
        forms = [run.forms[name] for name in module.stage.act_before]
        if s:
            pairs = zip(forms, tensors[:n], strict=True)
            run.live["act", s - 1, 0] = [form.laid_out(x.detach()) for form, x in pairs]
        with plain_mode(run.device):
            run.compute(StageRun("fwd", s, 0))
            for name, tensor in run.buffers.items():
                module.values[name].copy_(tensor)
        ctx.module, ctx.run, ctx.shapes = module, run, [x.shape for x in tensors[:n]]
        return tuple(run.live.get(("act", s, 0), run.losses))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        module, run, s = ctx.module, ctx.run, ctx.module.number
        stage: StageProgram = module.stage
        if stage.act_behind:
            forms = [run.forms[name] for name in stage.grad_behind]
            pairs = zip(forms, grads, strict=True)
            run.live["grad", s, 0] = [_as_form(grad, form) for form, grad in pairs]
        else:
            for name in run.program.graph.loss.results:
                run.saved[s, 0].put(name, grads[0])
        with plain_mode(run.device):
            run.compute(StageRun("bwd", s, 0))
        before = [
            _flat(grad, run.forms[name]).view(shape)
            for name, grad, shape in zip(
                stage.grad_before, run.live.get(("grad", s - 1, 0), ()), ctx.shapes, strict=True
            )
        ]
        return (None, None, None, *before, *map(run.gradients.get, module.names))


def _flat(tensor: Tensor, form: CrossingTensor) -> Tensor:
    """The elements as they lie in memory."""
    return form.laid_out(tensor).as_strided((tensor.numel(),), (1,))


def _as_form(tensor: Tensor, form: CrossingTensor) -> Tensor:
    """A gradient that came in the shape of its activation, in the form it was sent from."""
    return tensor.contiguous().view(-1).as_strided(form.shape, form.strides)


@dataclass(frozen=True, eq=False)
class TorchSchedule:
    """`csv` has the passes of all ranks in order, `modules` the stages of this rank, `sample` the
    inputs of one micro-batch by name."""

    csv: str
    pipeline: Pipeline
    modules: Mapping[int, StageModule]
    forms: Mapping[str, CrossingTensor]
    sample: Mapping[str, Tensor]
    group: Any

    def __post_init__(self) -> None:
        """FB0735 for gradients that are not as large as the activations that they are of."""
        for s, module in self.modules.items():
            stage = module.stage
            for pair in (
                (stage.act_before, stage.grad_before),
                (stage.act_behind, stage.grad_behind),
            ):
                sizes = [
                    [(prod(self.forms[a].shape), self.forms[a].dtype) for a in names]
                    for names in pair
                ]
                if sizes[0] != sizes[1]:
                    hint = "run the rows here, or cut the model elsewhere"
                    fail("FB0735", f"stage {s}: its gradients have other sizes", hint=hint)

    @cached_property
    def runtime(self) -> Any:
        """PyTorch's runtime with these stages and this schedule."""
        from torch.distributed.pipelining import PipelineStage
        from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

        m = self.pipeline.microbatches
        stages = []
        for s, module in self.modules.items():
            before, behind = map(self._like, (module.stage.act_before, module.stage.act_behind))
            inputs = before if s else tuple(self.sample[name] for name in module.inputs)
            outputs = behind or (torch.zeros(()),)
            stages.append(
                PipelineStage(
                    module,
                    s,
                    len(self.pipeline.stages),
                    next(iter(self.sample.values())).device,
                    input_args=inputs,
                    output_args=outputs,
                    input_grads=tuple(x.detach() for x in before) or (None,) * len(inputs),
                    output_grads=tuple(x.detach() for x in behind) or (None,),
                    group=self.group,
                )
            )
        runtime: Any = _PipelineScheduleRuntime(  # type: ignore[no-untyped-call]
            stages, m, loss_fn=lambda loss, _: loss / m, scale_grads=False
        )
        with TemporaryDirectory() as folder:
            path = Path(folder, "schedule.csv")
            path.write_text(self.csv)
            runtime._load_csv(str(path), format="compute_only")  # private: no public one reads CSV
        return runtime

    def _like(self, names: Sequence[str]) -> tuple[Tensor, ...]:
        return tuple(self.forms[name].empty().contiguous().requires_grad_() for name in names)

    def step(self, *inputs: Tensor) -> Tensor | None:
        """Runs one step on the inputs of the whole batch, in the order of the call. Adds gradients
        of the mean loss to `.grad`; returns that loss on the rank of the last stage."""
        m = self.pipeline.microbatches
        planned = [(m * x.shape[0], *x.shape[1:]) for x in self.sample.values()]
        if [tuple(x.shape) for x in inputs] != planned:
            hint = f"planned for {[list(shape) for shape in planned]}"
            fail("FB1033", "tensors have other shapes or are not as many", hint=hint)
        named = dict(zip(self.sample, inputs, strict=True))
        first = self.modules.get(0)
        args = [named[name] for name in first.inputs] if first else []
        losses: list[Tensor] = []
        last = self.pipeline.last_stage in self.modules
        target = torch.zeros(m) if last else None
        self.runtime.step(*args, target=target, losses=losses, return_outputs=False, **named)
        return torch.stack(losses).sum().detach() if last else None
