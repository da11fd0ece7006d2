"""One training step of a plan beside the same step under ordinary autograd."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from ...backends.torch import PlannedModule, measure_step
from ...capture.trace.module import restored
from ...device.devices import forked_generators, synchronize
from ...device.memory import Mark, measure_regions
from ...ir.analysis.liveness import held_bytes
from ...ir.semantics.simulate import Sizes
from ...operators.repeats import differences, largest_difference
from ...verifier.read.lossy import Reach
from ..budget import format_bytes

if TYPE_CHECKING:
    from ...capture.lowered import Exported
    from ...ir.program import Binding, Program
    from ..plan import Plan

SEED = 20240229
FORWARD, BACKWARD = "forward", "backward"
Around = Callable[[str, Callable[[], Any]], Any]


@dataclass(frozen=True)
class StepReport:
    """Bytes, times and values of a step. Bytes are those of the device; times in seconds.

    `max_difference` is the largest of outputs, gradients and buffers, relative to the
    largest value of the same tensor. `eager_bytes` is measured alike for ordinary autograd.
    `tensors` counts what was compared, `irreproducible` those of them that differ between two
    steps of eager or of the plan itself, which do not count for `bit_equal`. Gradients that lossy
    codecs make approximate are counted by themselves, with their own largest difference.
    """

    measured_bytes: int
    eager_bytes: int
    time_s: float
    eager_time_s: float
    bit_equal: bool
    max_difference: float
    tensors: int
    irreproducible: int = 0
    approximate: int = 0
    approximate_difference: float = 0.0

    def above(self, bound: int, device: str) -> list[str]:
        """Return a message where more was measured than the proven `bound` in bytes."""
        if self.measured_bytes <= bound:
            return []
        over = format_bytes(self.measured_bytes - bound)
        lines = [f"the measured peak exceeds the proven bound by {over}"]
        if torch.device(device).type == "cuda":
            lines += [
                "PyTorch leaves up to 1 MiB of a free block with the tensor that gets it, and "
                "counts it: PYTORCH_ALLOC_CONF=expandable_segments:True in the environment has it "
                "count what tensors take"
            ]
        return lines


class _Tangent(torch.autograd.Function):
    """Gives an output a fixed random tangent that, as in training, nobody else holds."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, seed: int) -> Tensor:
        ctx.like, ctx.seed = output.detach().to("meta"), seed
        ctx.device = output.device
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[Tensor, None]:
        generator = torch.Generator(ctx.device).manual_seed(ctx.seed)
        shape, dtype = ctx.like.shape, ctx.like.dtype
        made = torch.randn(shape, dtype=dtype, device=ctx.device, generator=generator)
        return made, None


def compare_step(
    plan: Plan, compiled: nn.Module, exported: Exported, repeats: int = 3
) -> StepReport:
    """Runs the step of `compiled` and of the model itself from the same state.

    What the plan does not differentiate gets no tangent in either. One scalar that is
    differentiated is the loss; else each output gets a random tangent.
    Parameters and buffers are as before afterwards. Times are medians of `repeats`
    interleaved runs; bytes are from one run of each.
    """
    with restored(exported.original):
        return _compared(plan, compiled, exported, repeats)


def _compared(plan: Plan, compiled: nn.Module, exported: Exported, repeats: int) -> StepReport:
    binding = plan.program.binding
    ours = StepRunner(compiled, exported, binding)
    theirs = StepRunner(exported.original, exported, binding)
    lossy = _approximate(plan.program)

    def exact(run: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        return {name: value for name, value in run().items() if name not in lossy}

    mine, expected = ours.run(), theirs.run()
    pairs = [{n: x.pop(n) for n in lossy & x.keys()} for x in (mine, expected)]
    approximate, difference = len(pairs[1]), largest_difference(*pairs)
    differing = differences(mine, expected, partial(exact, ours.run), partial(exact, theirs.run))
    worst, count = largest_difference(mine, expected), len(expected)
    del mine, expected, pairs
    times = [(ours.time_s(), theirs.time_s()) for _ in range(repeats)]
    held = held_bytes(plan.program, "device", Sizes.of(plan.program))
    return StepReport(
        ours.planned_peak_bytes(),
        held + theirs.peak_bytes(),
        median(t for t, _ in times),
        median(t for _, t in times),
        not differing.real,
        worst,
        count,
        len(differing.changing),
        approximate,
        difference,
    )


def _approximate(program: Program) -> set[str]:
    """The gradients that lossy codecs make approximate, by their names in `StepRunner.run`."""
    binding, reach = program.binding, Reach(program.graph)
    named = [(f"gradient of {p.names[0]}", p.grad) for p in binding.params if p.grad is not None]
    named += [(f"input {index}", grad) for index, grad in binding.input_grads]
    return {name for name, grad in named if reach.error_of(grad) is not None}


class StepRunner:
    """Runs steps of one module, each from the same random state and buffers."""

    def __init__(self, module: nn.Module, exported: Exported, binding: Binding):
        self.module = module
        self.exported = exported
        self.params = {p.names[0]: module.get_parameter(p.names[0]) for p in binding.params}
        self.updated = [b.names[0] for b in binding.buffers if b.update is not None]
        self.buffers = {name: b.detach().clone() for name, b in module.named_buffers()}

    def time_s(self) -> float:
        """Seconds of the forward and of the backward of one step."""
        total = 0.0

        def timed(_: str, call: Callable[[], Any]) -> Any:
            nonlocal total
            start = time.perf_counter()
            made = call()
            synchronize(self.exported.device)
            total += time.perf_counter() - start
            return made

        self.run(timed)
        return total

    def planned_peak_bytes(self) -> int:
        """Device bytes of the generated forward and backward, from entry to exit of each."""
        assert isinstance(self.module, PlannedModule)
        args, kwargs = self._prepare()
        with forked_generators():
            torch.manual_seed(SEED)
            use = measure_step(self.module, args, kwargs, loss=_whole_loss)
        self._take_state()
        return use.measured_bytes

    def peak_bytes(self) -> int:
        """Bytes of a step on top of what the caller holds, from entry to exit of the
        forward and of autograd's backward."""

        def step(mark: Mark) -> None:
            def marked(name: str, call: Callable[[], Any]) -> Any:
                with mark(name):
                    return call()

            self.run(marked)

        _, uses = measure_regions(step, self.exported.device)
        return max(
            uses[FORWARD].peak_bytes_over_entry,
            uses[FORWARD].end_bytes_over_entry + uses[BACKWARD].peak_bytes_over_entry,
        )

    def run(self, around: Around = lambda _, call: call()) -> dict[str, Tensor]:
        """Outputs, gradients and buffers after one step; the buffers are then restored.

        `around(name, call)` calls the forward and the backward.
        """
        module, exported = self.module, self.exported
        args, kwargs = self._prepare()
        with forked_generators():
            torch.manual_seed(SEED)
            with exported.autocast.around():
                outputs = exported.tensors(around(FORWARD, lambda: module(*args, **kwargs)))
            values = {f"output {i}": o.detach().clone() for i, o in enumerate(outputs)}
            losses = _losses(outputs)
            around(BACKWARD, lambda: torch.autograd.backward(losses))
        values |= self._take_state()
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        return values | {f"input {i}": t.grad for i, t in enumerate(leaves) if t.grad is not None}

    def _prepare(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Drops gradients; the arguments as the caller passes them."""
        for parameter in self.params.values():
            parameter.grad = None
        given = (self.exported.args, self.exported.kwargs)
        args, kwargs = tree_map_only(Tensor, _leaf, given)
        return args, kwargs

    def _take_state(self) -> dict[str, Tensor]:
        """Takes the gradients and new buffers, and restores the state from before."""
        state: dict[str, Tensor] = {}
        for name, parameter in self.params.items():
            if parameter.grad is not None:
                state[f"gradient of {name}"] = parameter.grad
                parameter.grad = None
        for name in self.updated:
            state[f"buffer {name}"] = self.module.get_buffer(name).detach().clone()
        with torch.no_grad():
            for name, buffer in self.module.named_buffers():
                buffer.copy_(self.buffers[name])
        return state


def _leaf(tensor: Tensor) -> Tensor:
    """The caller's own tensor; a leaf of its own where it wants a gradient."""
    return tensor.detach().requires_grad_() if tensor.requires_grad else tensor


def _losses(outputs: Sequence[Tensor]) -> list[Tensor]:
    trained = [output for output in outputs if output.requires_grad]
    if len(trained) == 1 and trained[0].dim() == 0:
        return trained
    return [
        _Tangent.apply(output, SEED + index)  # type: ignore[no-untyped-call]
        for index, output in enumerate(outputs)
        if output.requires_grad
    ]


def _whole_loss(outputs: Sequence[Tensor]) -> Tensor:
    losses = _losses(outputs)
    return losses[0] if len(losses) == 1 else torch.stack([x.double() for x in losses]).sum()
