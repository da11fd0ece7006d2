"""One rank's part of a pipelined step: its row, step by step, on real tensors.

Each micro-batch of a stage has instances of its own; the row says when values come and go. What a
stage keeps is freed in its backward after the last use. Gradients of parameters and new contents of
buffers stay aside until all ranks have ended their rows, so a step that fails changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from ....device.devices import get_rng_state, set_rng_state
from ....ir.diagnostics import Diagnostic, FBError
from ....ir.graph import DTYPE_BYTES, CNode
from ....ir.pipeline import Move, OnValue, Pipeline, RowStep, StageProgram, StageRun, Value
from ....ir.program import Program
from ....ir.text.pipeline import format_row_step
from ....operators.instances import Instances, plain_mode, run_cnode
from .draws import Draws, generator_state, set_generator
from .transport import WORD_BYTES, CrossingTensor, Transport


def message_bytes(program: Program, max_grad_norm: float | None) -> int:
    """Bytes of what a rank tells the others after its row: its word, or the norms of all gradients,
    one by one and together, then those together and the scale made of them and of two numbers."""
    params, anode = program.binding.params, program.graph.anode
    norms = [DTYPE_BYTES[anode[p.name].dtype] for p in params if p.grad is not None]
    if max_grad_norm is None or not norms:
        return WORD_BYTES
    return max(WORD_BYTES, 2 * sum(norms), sum(norms) + 4 * max(norms) + 2 * WORD_BYTES)


class StepFailed(FBError):
    """FB1030: a step of a row failed or was not answered in time. Nothing of the model changed."""


@dataclass(frozen=True)
class RankResult:
    """Summed gradients by parameter aNode, new contents by buffer aNode, and the losses of all
    micro-batches on the rank of the last stage."""

    gradients: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    losses: Sequence[Tensor]


class RankRun:
    """One step of one rank.

    `values` are the caller's tensors by aNode, `inputs` those of each micro-batch; `forms` those of
    what crosses. Both may lack what the rank's stages do not read. `random_S` are the random cNodes
    of each stage of all ranks. Gradients are averaged over the transport's replicas, then clipped
    to `max_grad_norm`, the norm of all ranks' together.
    """

    def __init__(
        self,
        program: Program,
        pipeline: Pipeline,
        stages: Mapping[int, StageProgram],
        rank: int,
        values: Mapping[str, Tensor],
        inputs: Sequence[Mapping[str, Tensor]],
        forms: Mapping[str, CrossingTensor],
        transport: Transport,
        random_S: Sequence[Sequence[str]] = (),
        max_grad_norm: float | None = None,
    ):
        self.program, self.pipeline, self.rank = program, pipeline, rank
        self.stages, self.forms, self.transport = stages, forms, transport
        self.inputs, self.random_S = inputs, random_S
        self.draws: Draws | None = None
        self.max_grad_norm = max_grad_norm
        self.device = torch.device(program.header.device)
        graph = program.graph
        self.updates = {b.update: b.name for b in program.binding.buffers if b.update is not None}
        mine = {c for s in stages.values() for c in s.forward}
        read = {x for c in mine for x in graph.reads(graph.cnode[c])}
        own = set(self.updates.values()) & read
        # Buffers that change are copied: the model's own change when all ranks have ended.
        self.values = {k: v.clone() if k in own else v for k, v in values.items()}
        self.buffers = {name: self.values[name] for name in own}
        self.gradients: dict[str, Tensor] = {}
        self.of_storage: dict[str, list[tuple[str, str]]] = {}
        for p in program.binding.params:
            param = self.values.get(p.name)
            if p.grad is not None and p.name in read and param is not None:
                self.of_storage.setdefault(graph.storage[p.grad], []).append((p.name, p.grad))
        self.losses: list[Tensor] = []
        self.live: dict[Value, list[Tensor]] = {}
        self.saved: dict[tuple[int, int], Instances] = {}

    def run(self) -> RankResult:
        """All steps of the row, then the word of all ranks. StepFailed if anything fails; then the
        generator is as it was, else as the step on one rank leaves it."""
        step: RowStep | None = None
        state = generator_state(self.device) if any(self.random_S) else None
        try:
            with plain_mode(self.device):
                if state is not None:
                    set_generator(self.transport.of_first(state), self.device)
                    m = self.pipeline.microbatches
                    self.draws = Draws(self.program, self.random_S, self.stages.keys(), m)
                    end = generator_state(self.device)
                for step in self.pipeline.rows[self.rank]:
                    self._step(step)
                step = None
                self.transport.average([self.gradients[name] for name in sorted(self.gradients)])
                if self.max_grad_norm is not None:
                    self._clip(self.max_grad_norm)
            if not self.transport.all_ranks(True):
                raise RuntimeError("another rank failed")
            if state is not None:
                state = end
        except Exception as error:
            raise self._failure(step, error) from error
        finally:
            if state is not None:
                set_generator(state, self.device)
        return RankResult(self.gradients, self.buffers, self.losses)

    def _clip(self, max_norm: float) -> None:
        """As `torch.nn.utils.clip_grad_norm_`: by the norm of the norms of all, in order."""
        trained = [p.name for p in self.program.binding.params if p.grad is not None]
        norms = torch.stack(
            [
                torch.linalg.vector_norm(self.gradients[name])
                if name in self.gradients
                else torch.zeros((), dtype=self.values[name].dtype, device=self.device)
                for name in trained
            ]
        )
        total = torch.linalg.vector_norm(self.transport.sum(norms))
        scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
        for gradient in self.gradients.values():
            gradient.mul_(scale)

    def _failure(self, step: RowStep | None, error: Exception) -> StepFailed:
        at = "after its row" if step is None else f"at {format_row_step(step)}"
        peer = f" (peer {step.peer})" if isinstance(step, Move) else ""
        if isinstance(step, OnValue) and step.word == "wait":
            ends = self.pipeline.ends_of(step.value[0], step.value[1])
            peer = f" (peer {ends[0] if ends[1] == self.rank else ends[1]})"
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        message = f"rank {self.rank} fails {at}{peer}: {text}"
        hint = (
            "nothing of the model was changed; make the process group anew and run the step again"
        )
        return StepFailed(Diagnostic("FB1030", message, hint=hint))

    def _step(self, step: RowStep) -> None:
        if isinstance(step, StageRun):
            self.compute(step)
        elif isinstance(step, Move):
            if step.word == "send":
                self.transport.send(step.value, self.live[step.value], step.peer)
            else:
                forms = [self.forms[name] for name in self._names(step.value)]
                self.live[step.value] = self.transport.receive(step.value, forms, step.peer)
        elif step.word == "wait":
            self.transport.wait(step.value)
        else:
            del self.live[step.value]

    def compute(self, step: StageRun) -> None:
        """Runs a pass on what is here."""
        key = (step.stage, step.microbatch)
        if step.word == "fwd":
            self._forward(*key)
        elif step.word == "bwd":
            self._backward(*key)
        else:
            weights = self.stages[step.stage].weights
            self._run(self.saved.pop(key), weights, frozenset())

    def _names(self, value: Value) -> tuple[str, ...]:
        """The aNodes of a value, from whichever side of its boundary is here."""
        kind, s, _ = value
        if s in self.stages:
            stage = self.stages[s]
            return stage.act_behind if kind == "act" else stage.grad_behind
        stage = self.stages[s + 1]
        return stage.act_before if kind == "act" else stage.grad_before

    def _enter(self, instances: Instances, value: Value) -> None:
        for name, tensor in zip(self._names(value), self.live.get(value, ()), strict=False):
            instances.put(name, tensor)

    def _leave(self, instances: Instances, value: Value) -> None:
        """Moves what a pass made for another stage out of its instances."""
        names = self._names(value)
        self.live[value] = [self.forms[name].laid_out(instances[name]) for name in names]
        for name in names:
            instances.drop(name)

    def _forward(self, s: int, k: int) -> None:
        stage, graph = self.stages[s], self.program.graph
        instances = Instances(graph, self.program.sample, {**self.values, **self.inputs[k]})
        if s:
            self._enter(instances, ("act", s - 1, k))
        stays = stage.kept | set(stage.act_behind) | set(graph.loss.results)
        if self.draws is not None:
            self.draws.enter(s, k)
        self._run(instances, stage.forward, stays, again=False)
        if self.draws is not None:
            self.draws.leave(s, k)
        if s:
            for name in stage.act_before:
                instances.drop(name)
        if s < self.pipeline.last_stage:
            self._leave(instances, ("act", s, k))
        self.saved[s, k] = instances

    def _backward(self, s: int, k: int) -> None:
        stage, p = self.stages[s], self.pipeline
        instances = self.saved.pop((s, k))
        if p.stages[s].reads_input:
            self._enter(instances, ("act", s - 1, k))
        if p.stages[s].reads_output:
            self._enter(instances, ("act", s, k))
        if s < p.last_stage:
            self._enter(instances, ("grad", s, k))
        graph = self.program.graph
        later = {a for c in stage.weights for a in graph.reads(graph.cnode[c])}
        self._run(instances, stage.backward, later | set(stage.grad_before))
        if s and p.has_gradient(s - 1):
            self._leave(instances, ("grad", s - 1, k))
        if stage.weights:
            self.saved[s, k] = instances

    def _run(
        self, instances: Instances, cnodes: Sequence[str], stays: Set[str], *, again: bool = True
    ) -> None:
        """The cNodes in order, those of the forward once more if `again`. What no later one reads
        is dropped, unless it `stays`."""
        graph = self.program.graph
        held = self.values.keys() | self.inputs[0].keys()
        forms = [
            (c := graph.cnode[name], 2 if again and c.phase == "fwd" else 1) for name in cnodes
        ]
        wanted = held | stays
        ends: list[list[str]] = []
        for c, n in reversed(forms):
            reads, writes = graph.reads(c, n), c.results_at(n)
            ends.append([a for a in {*reads, *writes} if a not in wanted])
            wanted = (wanted - set(writes)) | set(reads) | held
        for (c, n), ended in zip(forms, reversed(ends), strict=True):
            self._compute(instances, c, n, stays)
            for a in ended:
                instances.drop(a)

    def _compute(self, instances: Instances, c: CNode, n: int, stays: Set[str]) -> None:
        """The n-th execution of a cNode. (On its own, so that no local name outlives what is
        dropped.)"""
        if c.is_loss:
            self._loss(instances)
            return
        if c.token is not None and n > 1:
            set_rng_state(instances[c.token], self.device)
        elif c.token is not None and c.token in stays:
            instances.put(c.token, get_rng_state(self.device))
        results = run_cnode(c, n, instances, token=None, device=self.device)
        if c.is_accumulate:
            instances.drop(c.call.refs()[0])
        writes = c.writes if n == 1 or c.replay is None else c.replay.writes
        for made, result in zip(writes, results, strict=True):
            if made is not None and result is not None:
                instances.put(made, result)
                if n == 1:
                    self._take(instances, made)

    def _take(self, instances: Instances, a: str) -> None:
        """New contents of a buffer, or the gradients that an aNode holds."""
        if (buffer := self.updates.get(a)) is not None:
            self.values[buffer].copy_(instances[a])
        for param, name in self.of_storage.get(a, ()):
            if param in self.gradients:
                self.gradients[param].add_(instances[name])
            elif (there := self.values[param].grad) is not None:  # goes on from it, in a copy
                self.gradients[param] = there + instances[name]
            else:  # a storage that several gradients share is that of the first
                taken = any(
                    param != other for other, _ in self.of_storage[a] if other in self.gradients
                )
                self.gradients[param] = instances[name].clone() if taken else instances[name]

    def _loss(self, instances: Instances) -> None:
        """The mean over micro-batches is differentiated: each tangent is 1 / m."""
        (result,) = self.program.binding.results
        loss = instances[result.name]
        self.losses.append(loss.clone())  # its storage may have room that a kernel wanted
        for name in self.program.graph.loss.results:
            instances.put(name, torch.ones_like(loss).div_(self.pipeline.microbatches))
