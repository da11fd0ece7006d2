"""The regions that share one budget: planned when they are met, and run."""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, fx

from ..backends.torch import compiled_step
from ..capture.torch import RegionCall, ensure_trusted, region_of
from ..capture.trace.descriptors import BufferAOTInput, ParamAOTInput, PlainAOTInput
from ..ir.diagnostics import Diagnostic, FBError
from ..ir.semantics.simulate import simulate
from ..plans.bind import lowered_again
from ..plans.budget import Baseline, BudgetText
from ..plans.make import costed, plan_costed
from ..plans.request import PlanRequest
from ..plans.run_planner import Phases
from ..plans.source import Source
from .part import (
    NO_GRADIENT,
    Calls,
    Part,
    Storages,
    fall_back,
    needs_of,
    owned_by,
    report_of,
    saved_bytes,
    storages_of,
    warn,
    writes_to_argument,
)
from .report import RegionsReport
from .share import Used
from .sharing import Sharing

if TYPE_CHECKING:
    from ..capture.lowered import Lowered

__all__ = ["Options", "Part", "Session"]

LOG = logging.getLogger("remat_compile.dynamo")


@dataclass(frozen=True)
class Options:
    request: PlanRequest
    fallback: bool = True
    report: Callable[[RegionsReport], None] | None = None


class _CallTicket:
    """Lives as long as the autograd graph of a call."""


@dataclass(frozen=True, eq=False)
class _CallInFlight:
    """A call whose backward has not begun."""

    ticket: weakref.ref[_CallTicket]
    part: Part
    storages: Storages


class Session:
    """Plans the regions of one options object, and runs them."""

    def __init__(self, options: Options):
        self.options = options
        self._parts: list[Part] = []
        self._regions = 0
        self._flying: list[_CallInFlight] = []
        self._sharing = Sharing(options.request, fallback=options.fallback)
        self._unsettled = False
        self._untold = False

    def name_of_region(self, place: str) -> str:
        """By number and, where it is known, by the line on which it begins."""
        self._regions += 1
        return f"region {self._regions}" + (f" ({place})" if place else "")

    # -- a region at one kind of call ----------------------------------------------------

    def part_of(
        self, name: str, graph: fx.GraphModule, sources: Sequence[str], inputs: Sequence[Any]
    ) -> Part:
        """Lowers the region and finds its costs. One that cannot be planned runs in eager."""
        part = Part(name, graph, sources)
        self._parts.append(part)
        self._untold = True
        try:
            call = region_of(graph, sources, inputs)
            if call is None:
                part.is_eager, part.why = True, NO_GRADIENT
            else:
                self._read(part, call, inputs)
                call.let_go()
        except Exception as error:  # also what no capture of a module has met so far
            fall_back(part, _refusal(error), may=self.options.fallback)
        return part

    def _read(self, part: Part, call: RegionCall, inputs: Sequence[Any]) -> None:
        request = self.options.request
        with costed(Source(call.exported), request.device, Phases()) as (program, lowered):
            if request.grads is not None:
                binding = replace(program.binding, grads=request.grads)
                program = replace(program, binding=binding)
            if all(c.is_loss for c in program.graph.cnodes):
                part.is_eager, part.why = True, "it computes nothing"
                return
            part.program = program
            part.baseline = Baseline.of(program)
            part.needs = needs_of(program, lowered, part.baseline)
            part.owned = owned_by(part.needs, call, inputs)
        ensure_trusted(lowered)

    # -- a call --------------------------------------------------------------------------

    def run(self, part: Part, inputs: Sequence[Any]) -> Any:
        """One forward of a part that can be planned."""
        self._flying = [flight for flight in self._flying if flight.ticket() is not None]
        if not self._flying:
            self._settle()
        calls = Counter(flight.part for flight in self._flying)
        calls[part] += 1
        storages = storages_of(part, inputs)
        if calls[part] > 1:
            self._meet_storages(part, storages)
        if self._sharing.meet(calls):
            self._unsettled = self._untold = True
        if part.step is None and not part.failed:
            try:
                self._plan(part, inputs, calls)
            except Exception as error:  # as above; its frames hold the inputs
                part.failed = _refusal(error)
                if not self._may_get_more(part):
                    fall_back(part, part.failed, may=self.options.fallback)
        aliases = part.step is not None and writes_to_argument(part, inputs)
        if aliases and not part.is_aliasing_reported:
            part.is_aliasing_reported = True
            why = "an argument shares memory with a buffer that the region writes to"
            message = f"a call of {part.name} runs in eager and is not bounded: {why}"
            warn(message, "give the argument memory of its own, with clone()")
        if part.step is None or aliases:
            made = self.run_eagerly(part, inputs)
            lands = self._takes_off(part, storages)
            for tensor in made:
                if isinstance(tensor, Tensor) and tensor.grad_fn is not None:
                    tensor.register_hook(lands)  # type: ignore[no-untyped-call]
            return made
        tensors = [inputs[at] for at in part.order]
        if torch.is_autocast_enabled(tensors[0].device.type):
            with torch._C._DisableAutocast():  # the casts are part of the graph
                made = part.step.run(tensors)
        else:
            made = part.step.run(tensors)
        if (node := part.step.flight.watch(made, inputs)) is not None:
            node.register_hook(self._takes_off(part, storages))
        out = list(part.constants)
        for place, tensor in zip(part.returned, made, strict=True):
            out[place] = tensor
        return tuple(out)

    def run_eagerly(self, part: Part, inputs: Sequence[Any]) -> Any:
        """One forward of a part that has no plan."""
        assert part.graph is not None
        if part.most_in_flight and self._untold and not self._flying:  # a step has gone by
            self._tell_if_settled()
        part.most_in_flight = max(1, part.most_in_flight)
        return part.graph(*inputs)

    def _takes_off(self, part: Part, storages: Storages) -> Callable[..., None]:
        """Counts a call as in flight until its backward calls what is returned, or its graph,
        which holds that, is gone."""
        ticket = _CallTicket()
        flight = _CallInFlight(weakref.ref(ticket), part, storages)
        self._flying.append(flight)

        def lands(*_: object, ticket: _CallTicket = ticket) -> None:
            self._flying = [other for other in self._flying if other is not flight]
            if not self._flying and self._untold:
                self._tell_if_settled()

        return lands

    def _may_get_more(self, part: Part) -> bool:
        """Return whether a part for which there is no plan within its share may have another one at
        the next step: when all regions are known, or by keeping everything, which others pay
        for."""
        if not self.options.fallback or (part.share_bytes is None and not part.is_provisional):
            return False
        if part.is_provisional:
            return True
        assert part.needs is not None
        if part.needs.room_bytes == 0:
            return False
        part.needs = replace(part.needs, floor_bytes=part.needs.peak_bytes)
        self._unsettled = True
        return True

    def _meet_storages(self, part: Part, storages: Storages) -> None:
        """Remembers what calls of one part hold together, unless they held more before."""
        assert part.needs is not None
        met = [flight.storages for flight in self._flying if flight.part is part] + [storages]
        held: dict[Hashable, int] = {}
        grads: dict[Hashable, int] = {}
        for of_call in met:
            for at, (_, size, grad) in zip(of_call, part.owned, strict=True):
                held[at] = size
                if grad:
                    grads[at] = grad
        users: Counter[Hashable] = Counter(at for of_call in met for at in set(of_call))
        is_repeated = part.needs.is_repeated or any(users[at] > 1 for at in grads)
        if sum(held.values()) > sum(part.needs.held.values()):
            part.needs = replace(part.needs, held=held, grads=grads)
            self._unsettled = self._untold = True
        if is_repeated != part.needs.is_repeated:
            part.needs = replace(part.needs, is_repeated=True)
            self._unsettled = self._untold = True

    # -- sharing -------------------------------------------------------------------------

    def _plan(self, part: Part, inputs: Sequence[Any], calls: Calls) -> None:
        """Plans for the share that the part has, or for what those in flight leave of it."""
        assert part.graph is not None
        assert part.program is not None
        budget = self.options.request.budget
        if budget is not None and part.share_bytes is None and (len(calls) > 1 or calls[part] > 1):
            part.share_bytes = self._sharing.left_bytes(part, calls)
        if part.share_bytes is not None:
            budget = _bytes_of_activations(part.share_bytes)
        request = replace(self.options.request, budget=budget)
        plan = plan_costed(part.program, request, Phases())
        call = region_of(part.graph, part.sources, inputs)
        assert call is not None
        with lowered_again(plan.program, call.exported) as lowered:
            planned_graph = lowered.with_program(plan.program)
            part.step = compiled_step(planned_graph, plan.schedule, name=part.name)
            part.order = call.order(list(map(_target, _descriptors(lowered))))
        binding = plan.program.binding
        part.written = call.order([b.names[0] for b in binding.buffers if b.update is not None])
        part.outside = call.order(range(len(binding.arguments)))
        call.let_go()
        part.constants, part.returned = call.constants, call.returned
        trace = simulate(plan.program, plan.schedule)
        part.used = Used(trace.activation_peak_bytes, saved_bytes(trace))
        part.device_bytes = trace.peak_bytes
        self._untold = True

    def _settle(self) -> None:
        """At the begin of a step: gives every region its share of what was met so far."""
        shares = self._sharing.fair_shares() if self._must_settle() else {}
        self._unsettled = False
        for part in self._parts:
            part.is_provisional &= not part.most_in_flight  # not called yet
            share = shares.get(part, part.share_bytes)
            if share != part.share_bytes:
                part.share_bytes, part.step, part.used, part.failed = share, None, None, ()
            elif part.failed and not part.is_eager:
                fall_back(part, part.failed, may=self.options.fallback)

    def _must_settle(self) -> bool:
        return self._unsettled and self._sharing.is_unfair()

    # -- the report ----------------------------------------------------------------------

    def _tell_if_settled(self) -> None:
        if self._must_settle() or any(p.step is None and not p.is_eager for p in self._parts):
            return  # the next step may find other plans
        self._untold = False
        report = self.report()
        for line in str(report).splitlines():
            LOG.info(line)
        if self.options.report is not None:
            self.options.report(report)

    def report(self) -> RegionsReport:
        """Return the present proofs."""
        bound, most = self._sharing.worst()
        return RegionsReport(tuple(map(report_of, self._parts)), bound, most, self._sharing.kind)


def _refusal(error: Exception) -> tuple[Diagnostic, ...]:
    if isinstance(error, FBError):
        return error.diagnostics
    said = (str(error).strip() or "no message").splitlines()[0]
    hint = "please report it with the model"
    return (Diagnostic("FB0521", f"{type(error).__name__}: {said}", hint=hint),)


def _descriptors(lowered: Lowered) -> list[Any]:
    """Return AOTAutograd's description of each flat input before the tangents."""
    placeholders = lowered.joint.graph_module.graph.find_nodes(op="placeholder")
    return [node.meta["desc"] for node in placeholders[: len(lowered.placeholders)]]


def _target(descriptor: Any) -> str | int:
    match descriptor:
        case ParamAOTInput(target=name) | BufferAOTInput(target=name):
            return str(name)
        case PlainAOTInput(idx=index):
            return int(index)
        case _:
            raise AssertionError(f"an input of kind {descriptor}")


def _bytes_of_activations(size: int) -> BudgetText:
    return BudgetText(f"{size}B", "activation", "bytes", Fraction(size))
