"""A reference executor: runs a schedule of a graph on real tensors, step by step.

It does what `ir/semantics/simulate.py` says and nothing else: each aNode instance is the tensor
that its writer returned, dropped exactly at `free`; views are derived again from the
current instance; `accumulate` adds in place; a random operator that runs again restores
the generator state of its first execution; buffers are written back at the loss; a copy to
or from the host is made at once. Tests, cost sources and the frontend's
self-check use it; the torch backend does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..device.devices import get_rng_state
from ..device.shards import whole
from ..ir.diagnostics import Diagnostic, FBError, fail
from ..ir.graph import CALLER_KINDS, CNode
from ..ir.program import Program
from ..ir.schedule import Compute, Free, Home, HostFree, Offload, Prefetch, Schedule, Step, Wait
from ..ir.semantics.simulate import simulate
from .aten import from_torch_dtype, to_torch, torch_dtype
from .callable import check_operators
from .instances import Instances, plain_mode, run_cnode

Draw = Callable[[CNode, Mapping[str, Tensor]], tuple[Tensor | None, ...]]
"""The results of a random cNode, one per write, from what can be read when it runs."""

Again = Callable[[CNode, str, Tensor, Tensor], None]
"""Is told of each result of a later execution that is alive already: cNode, name, the tensor
that is kept and the one that is dropped."""

Loss = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]
"""From the model's results by name (aNode or view) to the tangents by aNode name."""


@dataclass(frozen=True)
class ExecutedStep:
    """Outcome of a run: results in the binding's order, gradients by parameter aNode and by index
    of argument, and every aNode that is alive at the end (the caller's left out)."""

    results: tuple[Tensor, ...]
    param_grads: Mapping[str, Tensor]
    input_grads: Mapping[int, Tensor]
    live: Mapping[str, Tensor]


def result_names(program: Program) -> tuple[str, ...]:
    """Return the arguments of the loss: the model's results; in a graph without binding, all that
    the loss reads but pending buffer contents."""
    if program.binding.results:
        return tuple(result.name for result in program.binding.results)
    graph = program.graph
    return tuple(
        name
        for name in graph.loss.call.refs()
        if graph.anode[graph.storage[name]].kind != "pending"
    )


def ones(program: Program, env: Mapping[str, int], device: str | None = None) -> Loss:
    """The loss whose tangents are all ones, laid out as the results they belong to; on the
    program's device unless another is given."""
    result_of = {r.tangent: r.name for r in program.binding.results if r.tangent is not None}

    def loss(results: Mapping[str, Tensor]) -> dict[str, Tensor]:
        tangents = {}
        for name in program.graph.loss.results:
            node = program.graph.anode[name]
            shape = [to_torch(extent, env, {}) for extent in node.shape]
            if name in result_of and list(results[result_of[name]].shape) == shape:
                tangents[name] = torch.ones_like(results[result_of[name]])
            else:
                dtype = torch_dtype(node.dtype)
                tangents[name] = torch.ones(
                    shape, dtype=dtype, device=device or program.header.device
                )
        return tangents

    return loss


def check_values(program: Program, values: Mapping[str, Tensor], env: Mapping[str, int]) -> None:
    """Raises FBError FB0905 with every caller-held aNode whose tensor is missing or differs."""
    problems = []
    for node in program.graph.anodes:
        if node.kind not in CALLER_KINDS or node.kind == "opt_state":
            continue
        if node.name not in values:
            problems.append(f"no tensor for {node.kind} %{node.name}")
            continue
        tensor = values[node.name]
        shape = tuple(to_torch(extent, env, {}) for extent in node.shape)
        if tuple(tensor.shape) != shape or from_torch_dtype(tensor.dtype) != node.dtype:
            problems.append(
                f"{node.kind} %{node.name} is {node.dtype}{list(shape)} in the graph and "
                f"{from_torch_dtype(tensor.dtype)}{list(tensor.shape)} here"
            )
    if problems:
        raise FBError(Diagnostic("FB0905", problem) for problem in problems)


def execute(
    program: Program,
    steps: Iterable[Step],
    values: Mapping[str, Tensor],
    loss: Loss | None = None,
    *,
    env: Mapping[str, int] | None = None,
    write_back: bool = True,
    draw: Draw | None = None,
    again: Again | None = None,
) -> ExecutedStep:
    """Runs `steps` on `values`, the tensors of everything that the caller holds.

    `loss` gives the tangents (ones by default); `env` binds the symbols (the sample by
    default). With `write_back` the buffers of `values` are updated in place at the loss. Where
    `draw` is given, it does the work of the random operators, each time they run. `again` sees
    what is computed a second time while the first is alive. Raises FBError for a schedule that is
    not valid (as the simulator does), FB0904/FB0905 where the tensors do not fit the graph, FB0942
    for operators that may not be called.
    """
    at = program.sample if env is None else env
    check_operators(program.graph)
    check_values(program, values, at)
    steps = Schedule("executed", "", tuple(steps)).elementary.steps
    device = torch.device(program.header.device)
    with plain_mode(device):
        run = _Executor(
            program, steps, values, at, loss or ones(program, at), write_back, draw, again
        )
        for step in run.steps:
            match step:
                case Compute():
                    run.compute(step)
                case Free(name):
                    run.instances.drop(name)
                case Offload(name):
                    run.host[name] = whole(run.instances[name], torch.device("cpu"))
                case Prefetch(name):
                    run.instances.put(name, whole(run.host[name], device))
                case HostFree(name):
                    del run.host[name]
                case Home(name):
                    if name in run.instances:
                        run.host[name] = run.instances[name]
                        run.instances.drop(name)
                case Wait():  # nothing is asynchronous here
                    pass
        for name, tensor in run.host.items():  # at home there
            run.instances.put(name, tensor)
        return run.finish()


class _Executor:
    """The state of one `execute`."""

    def __init__(
        self,
        program: Program,
        steps: tuple[Step, ...],
        values: Mapping[str, Tensor],
        env: Mapping[str, int],
        loss: Loss,
        write_back: bool,
        draw: Draw | None,
        again: Again | None,
    ):
        trace = simulate(program, Schedule("executed", "", steps), env)
        self.program = program
        self.steps = steps
        self.values = values
        self.loss = loss
        self.write_back = write_back
        self.draw = draw
        self.again = again
        self.device = torch.device(program.header.device)
        self.instances = Instances(program.graph, env, values)
        self.total = trace.executions
        self.done: dict[str, int] = {}
        self.host: dict[str, Tensor] = {}

    def compute(self, step: Compute) -> None:
        c = self.program.graph.cnode[step.cnode]
        n = self.done[c.name] = self.done.get(c.name, 0) + 1
        if c.is_loss:
            self._run_loss(c)
            return
        token = None
        if c.token is not None and self.total[c.name] > 1:
            if n == 1:
                self.instances.put(c.token, get_rng_state(self.device))
            else:
                token = self.instances[c.token]
        if c.token is not None and self.draw is not None:
            results = self.draw(c, self.instances)
        else:
            results = run_cnode(c, n, self.instances, token=token, device=self.device)
        if c.is_accumulate:
            self.instances.drop(c.call.refs()[0])
        writes = c.writes if n == 1 or c.replay is None else c.replay.writes
        for name, result in zip(writes, results, strict=True):
            if name is None or result is None:
                continue
            if name not in self.instances:
                self.instances.put(name, result)
            elif self.again is not None:  # computed and dropped
                self.again(c, name, self.instances[name], result)
        if step.nosave:
            for name in c.results:
                if self.program.graph.anode[name].kind == "phantom":
                    self.instances.drop(name)

    def _run_loss(self, c: CNode) -> None:
        results = {name: self.instances[name] for name in result_names(self.program)}
        tangents = self.loss(results)
        missing = [name for name in c.results if name not in tangents]
        if missing:
            listed = ", ".join(f"%{name}" for name in missing)
            fail("FB0905", f"the loss gave no tangent for {listed}", c.span)
        for name in c.results:
            self.instances.put(name, tangents[name])
        if self.write_back:
            for buffer in self.program.binding.buffers:
                if buffer.update is not None:
                    self.values[buffer.name].copy_(self.instances[buffer.update])

    def finish(self) -> ExecutedStep:
        binding = self.program.binding
        held = set(self.values)
        return ExecutedStep(
            tuple(self.instances[result.name] for result in binding.results),
            {p.name: self.instances[p.grad] for p in binding.params if p.grad is not None},
            {index: self.instances[name] for index, name in binding.input_grads},
            {name: self.instances[name] for name in self.instances if name not in held},
        )
