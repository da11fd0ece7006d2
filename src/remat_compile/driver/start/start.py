"""The second start of a model: its step by what an earlier process kept, without a capture.

The key (`start_key`) holds everything that can change what a capture finds, and the model's own
operators are seen again besides, forward and backward, on tensors without numbers (`behaviour`).
Where both are those of the process that captured it and held it against eager, and the file's
graph has this model's parameters, buffers and arguments, its plan is proven again, its code is
generated and read back, and the capture and the comparison with eager are left out. Everything
else takes the long way.

A forward may set what is not there yet, and find it at each later call: in `transformers`, a
configuration's kind of problem, from the labels. The step belongs to the model as it is then, and
so the key that it has behind a call (`after`) is kept beside the one that it is looked up by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

from ..._torch.autocast import Autocast
from ..._torch.behaviour import Behaviour, behaviour
from ..._torch.collections import without_full_collections
from ..._torch.deciding import warnings_of_way
from ..._torch.gradients import lost_gradients
from ..._torch.host_reads import HostRead, warnings_of_reads
from ..._torch.lowered import Exported, Lowered
from ..._torch.shadows import Shapes, Unseen, content
from ..._torch.strides import Strides
from ..._torch.wanted import Wanted
from ..._torch.whole import StandIn, as_forward_sees, unalias, unchanged
from ...ir.diagnostics import Diagnostic, FBError
from ...ir.program import Program
from ..plan import Plan
from ..plan_cache import VARIABLE, PlanCache, asked_and_around, one_plan, plan_cache, proven_plan
from ..regions import has_regions
from ..request import PlanRequest
from .code import Unknown
from .entry import SUFFIX, StartEntry
from .fused import FusedEntry
from .interface import StepInterface, interface_of
from .key import start_key

if TYPE_CHECKING:
    from ...backends.torch import PlannedModule
    from ..run_planner import Phases

__all__ = ["Start", "start_of"]

SAID_ANYWAY = ("FB0959", "FB0523", "FB0470")
"""Of the cache, and of what was fused: each start says that for itself."""


@dataclass(frozen=True)
class Started:
    """A step that was not captured: what `Source` and `Plan` are to one that was."""

    exported: Exported
    module: PlannedModule
    warnings: tuple[Diagnostic, ...]


@dataclass(frozen=True)
class Start:
    """A model with its sample that may have been started before; `key` is what it is known by."""

    cache: PlanCache
    key: str
    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    wanted: Wanted
    request: PlanRequest
    device: torch.device

    def begin(
        self, phases: Phases, *, cuda_graph: bool = False
    ) -> tuple[Started | None, tuple[Diagnostic, ...]]:
        """The step, where it is known; and a warning (FB0523) where what is kept cannot be used."""
        path = self.cache.path(self.key, SUFFIX)
        try:
            looking = phases.phase("start", "looking for a step that was captured before")
            with looking, without_full_collections():
                entry = StartEntry.of(self.cache.read(self.key, SUFFIX))
                seen = self._behaviour(entry)
                started = (
                    None if seen is None else self._started(entry, seen, str(path), cuda_graph)
                )
                return started, ()
        except (FileNotFoundError, Unseen, Unknown):
            return None, ()
        except FBError as error:
            first = error.diagnostics[0]
            why = f"{first.code}: {first.message}"
        except Exception as error:  # whatever the texts of a stranger lead to
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
        message = f"cache of plans: {path} is not used: {why}"
        return None, (Diagnostic("FB0523", message, hint="it is written again"),)

    def _behaviour(self, entry: StartEntry) -> Behaviour | None:
        """What the model does, where that is what it did, and leaves the model as it did."""
        behaved = self._seen(entry.shapes, with_cache=entry.with_cache)
        if behaved.digest != entry.behaviour:
            return None
        is_left_so = entry.after == self.key or entry.after == self._key_now()
        return behaved if is_left_so else None

    def _seen(self, known: Shapes | None, *, with_cache: bool) -> Behaviour:
        given = self.model, self.args, self.kwargs, self.device, self.wanted
        return behaviour(*given, known, with_cache=with_cache)

    def _key_now(self) -> str:
        """Unknown where the model has none any more."""
        return _key(self.model, self.args, self.kwargs, self.wanted, self.device, self.request)

    def _started(self, entry: StartEntry, seen: Behaviour, name: str, cuda_graph: bool) -> Started:
        from ...backends.torch import build, recorder_for

        program = one_plan(entry.plan, name)
        exported = replace(self._exported(seen), with_cache=entry.with_cache)
        interface = interface_of(program, self.model, exported.flat_args)
        made = {a.name for a in program.graph.anodes if a.kind == "const"}
        is_literal = all(content(t) in seen.literals for t in entry.constants.values())
        if made != entry.constants.keys() or not is_literal:
            raise ValueError("it has other constants")
        if has_regions(program) != (entry.fused is not None):
            raise ValueError("what it was fused from is not there")
        fused = None if entry.fused is None else entry.fused.start(program, self.request, name)
        plan = proven_plan(program, entry.plan, self.request) if fused is None else fused.plan
        lowered = Lowered(
            exported=exported,
            joint=interface.wrappers(program, entry.tangents),  # type: ignore[arg-type]
            program=plan.program,
            nodes={} if fused is None else fused.nodes,
            placeholders=interface.names.inputs,
            tangents=interface.names.tangents,
            forward_outputs=interface.names.outputs,
            backward_outputs=interface.names.grads,
            constants=entry.constants,
            reads=_deciding(seen.reads),
            takes=_takes(replace(exported, known_reads=seen.reads), entry.tangents),
        )
        ranks = [len(program.graph.anode[name].shape) for name in lowered.tangents]
        if ranks != [len(strides) for strides in entry.tangents]:
            raise ValueError("it has other gradients")
        if seen.compiling:
            _hold_against_eager(lowered)
        diagnostics = self._diagnostics(seen, program)
        said = () if fused is None else (fused.warning,)
        recorder = recorder_for(lowered) if cuda_graph else None
        module = build(lowered, plan.schedule, plan._kernels, recorder)
        return Started(exported, module, (*diagnostics, *said))

    def _exported(self, seen: Behaviour) -> Exported:
        flat, spec = tree_flatten((self.args, self.kwargs))
        return Exported(
            original=self.model,
            module=self.model,
            args=self.args,
            kwargs=self.kwargs,
            flat_args=tuple(flat),
            in_spec=spec,
            trace_args=self.args,
            trace_kwargs=self.kwargs,
            symbol_names={},
            symbol_ranges={},
            device=self.device,
            autocast=Autocast.now(self.device.type),
            is_live=True,
            results=seen.results,
            changing=seen.changing,
            given=self.model,
        )

    def keep(self, plan: Plan, lowered: Lowered) -> tuple[Diagnostic, ...]:
        """Writes what the next start needs of a step that was captured, planned and held against
        eager; nothing where that could not do with it. FB0523 where it cannot be written."""
        try:
            entry = self._entry(plan, lowered)
            if entry is not None:
                self.cache.write(self.key, entry.held(), SUFFIX)
        except OSError as error:
            why = error.strerror or error
            message = f"cache of plans: the step is not kept in {self.cache.folder}: {why}"
            hint = f"name a folder that can be written in {VARIABLE}"
            return (Diagnostic("FB0523", message, hint=hint),)
        except Exception:  # Unseen, Unknown, and whatever the model's Python raises without numbers
            return ()
        return ()

    def _diagnostics(self, seen: Behaviour, program: Program) -> tuple[Diagnostic, ...]:
        lost = lost_gradients(program.binding, self.model)
        way = warnings_of_way(compiling=seen.compiling)
        return (*seen.warnings, *lost, *warnings_of_reads(_deciding(seen.reads)), *way)

    def _entry(self, plan: Plan, lowered: Lowered) -> StartEntry | None:
        """Unseen, Unknown or ValueError where it cannot describe the model, or that changed."""
        from ...ir.text.printer import format_program

        program, exported = plan.program, lowered.exported
        tangents = lowered.joint.tangent_strides()
        if tangents is None or not lowered.joint.is_plain() or program.symbols:
            return None
        fused = FusedEntry.kept(plan, lowered)
        after = self._key_now()
        interface = interface_of(program, self.model, exported.flat_args)
        if not _is_interface(interface, lowered):
            return None
        seen = self._seen(None, with_cache=exported.with_cache)
        if after != self._key_now():  # each call leaves another model
            return None
        diagnostics = self._diagnostics(seen, program)
        is_same = seen.changing == exported.changing
        # Else what was seen may be another branch of the forward than what was captured.
        is_same &= seen.compiling == lowered.joint.compiling
        is_same &= _numbers(seen.reads) == _numbers(lowered.joint.reads)
        says_the_same = _texts(diagnostics) == _texts(plan.warnings)
        are_literals = all(content(t) in seen.literals for t in lowered.constants.values())
        if not (is_same and says_the_same and are_literals):
            return None
        text = format_program(program)
        parts = (seen.digest, after, seen.shapes, tangents, lowered.constants)
        return StartEntry(text, *parts, exported.with_cache, fused)


def start_of(
    model: object,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None,
    wanted: Wanted,
    dynamic_shapes: object,
    request: PlanRequest,
) -> Start | None:
    """None for what has no second start: nothing is looked up or kept then."""
    cache = plan_cache() if request.cache else None
    is_plain = request.fuse != "xla" and request.device is None and dynamic_shapes is None
    if cache is None or not is_plain or not isinstance(model, nn.Module):
        return None
    if isinstance(model, StandIn):
        model = model._remat_compile_original()
    if model._forward_pre_hooks:  # may write to the sample, and shall not run more than once
        return None
    tensors = [t for t in tree_leaves((args, kwargs, [*model.parameters()])) if _is_tensor(t)]
    if not tensors or any(t.is_meta or type(t) not in (Tensor, nn.Parameter) for t in tensors):
        return None
    given, named = unalias(tuple(args), dict(kwargs or {}))
    device = tensors[0].device
    try:
        with unchanged(model):
            given, named = as_forward_sees(model, given, named)
        key = _key(model, given, named, wanted, device, request)
    except Exception:  # Unknown, and whatever objects of the model's do when they are looked at
        return None
    return Start(cache, key, model, given, named, wanted, request, device)


def _key(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    wanted: Wanted,
    device: torch.device,
    request: PlanRequest,
) -> str:
    asked = asked_and_around(request)
    if asked is None:
        raise Unknown("the planner is not ours")
    return start_key(model, args, kwargs, wanted, device, asked)


def _hold_against_eager(lowered: Lowered) -> None:
    """As after a capture, where the numbers of the sample say which way the forward goes eagerly.
    Unseen where that goes another way than the step: its capture says so."""
    from ...frontends.torch_export import ensure_trusted

    try:
        ensure_trusted(lowered)
    except FBError as error:
        raise Unseen("eager computes something else with these numbers") from error


def _deciding(reads: Sequence[HostRead]) -> tuple[HostRead, ...]:
    return tuple(read for read in reads if read.decides)


def _numbers(reads: Sequence[HostRead]) -> list[tuple[str, bool | int, bool]]:
    return [(str(read.place), read.number, read.decides) for read in reads]


def _is_tensor(leaf: object) -> bool:
    return isinstance(leaf, Tensor)


def _is_interface(interface: StepInterface, lowered: Lowered) -> bool:
    """Whether what is known without a capture is what was captured, but for which of two tied
    parameters is given their gradient."""
    names = interface.names
    return (
        interface.paths == lowered.joint.held()
        and names.inputs == lowered.placeholders
        and names.tangents == lowered.tangents
        and names.outputs == lowered.forward_outputs
        and {None, *names.grads} == {None, *lowered.backward_outputs}
    )


def _texts(warnings: Sequence[Diagnostic]) -> list[tuple[str, str]]:
    return [(w.code, w.message) for w in warnings if w.code not in SAID_ANYWAY]


# -- gradients in another layout -------------------------------------------------------


@dataclass(frozen=True)
class _Form:
    """A tensor of the sample without its numbers, which are the caller's."""

    shape: tuple[int, ...]
    stride: Strides
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool


def _takes(
    exported: Exported, tangents: tuple[Strides, ...]
) -> Callable[[Sequence[Strides]], bool]:
    """As `relaid.takes`, which compares with the graph as it was captured: here, when it is asked
    for the first time."""

    def form(t: Tensor) -> _Form:
        return _Form(tuple(t.shape), t.stride(), t.dtype, t.device, t.requires_grad)

    forms = tree_map_only(Tensor, form, (exported.args, exported.kwargs))
    light = replace(exported, args=(), kwargs={}, flat_args=(), trace_args=(), trace_kwargs={})
    known: list[Callable[[Sequence[Strides]], bool]] = []

    def takes(strides: Sequence[Strides]) -> bool:
        if not known:
            known.append(_captured_again(light, forms, tangents))
        return known[0](strides)

    return takes


def _captured_again(
    light: Exported, forms: Any, tangents: tuple[Strides, ...]
) -> Callable[[Sequence[Strides]], bool]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from ...frontends.torch_export import lower
    from ...frontends.torch_export.relaid import takes

    mode = FakeTensorMode()

    def fake(f: _Form) -> Tensor:
        with mode:
            made = torch.empty_strided(f.shape, f.stride, dtype=f.dtype, device=f.device)
        return made.requires_grad_(f.requires_grad)

    args, kwargs = tree_map_only(_Form, fake, forms)
    flat = tuple(tree_leaves((args, kwargs)))
    blueprint = replace(
        light, args=args, kwargs=kwargs, flat_args=flat, trace_args=args, trace_kwargs=kwargs
    )
    try:
        with ExitStack() as stack:
            program: Program = stack.enter_context(lower(blueprint, tangents)).program
    except Exception:  # the Python of a model may have gone on since it was captured
        return lambda _: False
    return takes(blueprint, program, lower)
