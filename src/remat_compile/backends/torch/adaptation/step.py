"""A training step that runs one of several proven plans, and changes it between steps alone."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ....ir.codecs import pairs
from ....ir.diagnostics import fail
from ..module import PlannedModule
from ..train import place_of_loss
from .rule import Audit, Rules, State, decide
from .signals import CHUNK_BYTES, Gradients, Watch, compared, largest, norm_of

LOG = logging.getLogger("remat_compile.adaptive")


class Rung(NamedTuple):
    """A plan of the ladder: its name, and the drop-in that runs it."""

    name: str
    module: PlannedModule


def fingerprint(rungs: Iterable[Rung]) -> str:
    """A digest of the values that lossy codecs pack, and how: bits of gradients depend on no more
    of a ladder."""
    told = []
    for rung in rungs:
        graph = rung.module.planned_step.program.graph
        calls = {c.results[0]: c.call for c in graph.cnodes}
        lossy = {p.packed: p.source for p in pairs(graph) if p.codec.is_lossy}
        told.append([rung.name, sorted((lossy[name], str(calls[name])) for name in lossy)])
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def reserved_bytes(module: PlannedModule) -> int:
    """Bytes beside a plan: those that a step is repeated from, and to compare gradients."""
    held = [*_changed(module), torch.get_rng_state()]
    return sum(t.nbytes for t in held) + CHUNK_BYTES


def _changed(module: PlannedModule) -> list[Tensor]:
    """The buffers that a forward writes to."""
    known = dict(module.named_buffers(remove_duplicate=False))
    names = [b.names for b in module.planned_step.program.binding.buffers if b.update is not None]
    return [next(known[name] for name in each if name in known) for each in names]


class AdaptiveStep:
    """`step(*args)` runs forward and backward of one batch and gives the loss, as
    `loss.backward()` leaves the gradients in `.grad`: exact ones where it was audited or repeated.
    Between steps it goes up and down a ladder of plans (`rule.py`). `module` is the exact drop-in.
    """

    def __init__(self, rungs: Sequence[Rung], rules: Rules, group: Any = None) -> None:
        """FB0545 for a model that gives no number to minimise, or several; FB0566 where ranks have
        other ladders."""
        self.rungs = tuple(rungs)
        self.module = self.rungs[0].module
        self.state = State()
        self._rules, self._group = rules, group
        self._place = place_of_loss(self.module)
        self._is_running = False
        self._fingerprint = fingerprint(rungs)
        number = float(int(self._fingerprint[:12], 16))
        if largest([number, -number], group) != [number, -number]:
            message = "ranks have other ladders, whose lossy plans pack other values"
            hint = 'plan by costs that are the same everywhere: costs="roofline" and a device'
            fail("FB0566", message, hint=hint)

    @property
    def rung(self) -> str:
        """The name of the plan that the next step runs."""
        return self.rungs[self.state.rung].name

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """One step. FB0564 inside of another, FB0565 for gradients that are there or hooks that
        take them, FB0910 for a call that no plan was made for."""
        with self._whole("a step begins"):
            self._refuse_other_readers(args, kwargs)
            audit = None
            if self._rules.rungs > 1 and self.state.is_audited:
                loss, norm, audit = self._audited(_Start(self.module), args, kwargs)
            else:
                loss, norm = self._stepped(args, kwargs)
            before = self.rung
            self.state, cause = decide(self.state, norm, audit, self._rules)
            if cause:
                step = self.state.step
                LOG.info("step %d runs %s in place of %s: %s", step, self.rung, before, cause)
        return loss

    def _refuse_other_readers(self, args: Any, kwargs: Any) -> None:
        taken = [p for p in self._parameters if p.grad is not None or p._post_accumulate_grad_hooks]
        leaves = tree_leaves((args, kwargs))
        if taken or any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves):
            message = "a step may run its backward several times, and its gradients are added up"
            hint = "call zero_grad() before each step, give it no hooks, and detached arguments"
            fail("FB0565", message, hint=hint)

    @property
    def _parameters(self) -> list[nn.Parameter]:
        return list(self.module.parameters())

    def _stepped(self, args: Any, kwargs: Any) -> tuple[Tensor, float]:
        """The loss and the norm of the gradient. A lossy step with a gradient that is not finite is
        repeated exactly, on all ranks."""
        start = _Start(self.module) if self.state.rung else None
        loss = self._run(self.state.rung, args, kwargs)
        (norm,) = largest([norm_of([p.grad for p in self._parameters])], self._group)
        if start is not None and not math.isfinite(norm):
            self._put(None)
            start.restore()
            loss = self._run(0, args, kwargs)
        return loss, norm

    def _audited(self, start: _Start, args: Any, kwargs: Any) -> tuple[Tensor, float, Audit | None]:
        """The loss, the norm of the exact gradient, and how far from that the present rung and the
        next one are."""
        loss = self._run(0, args, kwargs)
        exact = [p.grad for p in self._parameters]
        (norm,) = largest([norm_of(exact)], self._group)
        if not math.isfinite(norm):
            return loss, norm, None
        at = self.state.rung
        audits = {
            rung: self._compared(rung, start, exact, args, kwargs)
            for rung in (at, at + 1)
            if 0 < rung < self._rules.rungs
        }
        self._put(exact)
        following = audits[at + 1].error if at + 1 in audits else None
        return loss, norm, replace(audits.get(at, Audit()), next_error=following)

    def _compared(
        self, rung: int, start: _Start, exact: Gradients, args: Any, kwargs: Any
    ) -> Audit:
        """How far the gradients of the same step by another rung, which are freed, are from the
        exact ones: of the biases the largest by size over ranks."""
        self._put(None)
        start.restore()
        with Watch() as watch:
            self._run(rung, args, kwargs)
        errors, biases = compared([p.grad for p in self._parameters], exact)
        self._put(None)
        told = [max(errors, default=0.0), watch.bad_groups, watch.overflow]
        error, bad, overflow, *both = largest([*told, *biases, *(-b for b in biases)], self._group)
        highest, lowest = both[: len(biases)], both[len(biases) :]
        signed = tuple(h if h >= low else -low for h, low in zip(highest, lowest, strict=True))
        return Audit(error, signed, int(bad), int(overflow))

    def _run(self, rung: int, args: Any, kwargs: Any) -> Tensor:
        module = self.rungs[rung].module
        with torch.enable_grad():
            made = module(*args, **kwargs)
            loss = module.planned_step.tensors(made)[self._place]
        with torch.autocast(loss.device.type, enabled=False):  # where the plan's backward runs
            torch.autograd.backward(loss)
        return loss.detach()

    def _put(self, gradients: Gradients | None) -> None:
        for at, parameter in enumerate(self._parameters):
            parameter.grad = None if gradients is None else gradients[at]

    def state_dict(self) -> dict[str, Any]:
        """All that the next decisions depend on: numbers, texts, tuples and dictionaries."""
        with self._whole("the state is saved"):
            return {"ladder": self._fingerprint, "state": asdict(self.state)}

    def load_state_dict(self, held: dict[str, Any]) -> None:
        """Goes on as the step that gave `held` would. FB0566 for what another ladder gave."""
        with self._whole("a state is loaded"):
            try:
                is_ours, state = held["ladder"] == self._fingerprint, State(**held["state"])
            except (KeyError, TypeError):
                is_ours, state = False, self.state
            if not (is_ours and 0 <= state.rung < len(self.rungs)):
                message = "this is no state of this ladder: its lossy plans pack other values"
                hint = "plan with the same model, budget and options, and with cache=True"
                fail("FB0566", message, hint=hint)
            self.state = state

    @contextmanager
    def _whole(self, event: str) -> Iterator[None]:
        """FB0564 between the forward and the end of the backward of a step."""
        if self._is_running:
            message = f"{event} inside of a step, which runs one plan from its beginning to its end"
            fail("FB0564", message, hint="do it after the step, not in a hook or in the model")
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False


class _Start:
    """What a step begins from and changes: buffers that it writes to, and the generator."""

    def __init__(self, module: PlannedModule) -> None:
        self._generator = torch.get_rng_state()
        self._buffers = [(buffer, buffer.clone()) for buffer in _changed(module)]

    @torch.no_grad()
    def restore(self) -> None:
        torch.set_rng_state(self._generator)
        for buffer, value in self._buffers:
            buffer.copy_(value)
