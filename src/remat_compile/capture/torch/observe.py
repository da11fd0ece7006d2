"""Python state that capture would freeze: Python state that the forward of a model reads or
changes.

Capture runs the Python of a model once; a planned step repeats its operators and none of its
Python. So a forward that draws from Python's or NumPy's random numbers, counts its calls, or
computes otherwise on its second call, is another one than its plan. `observe` runs
the forward on fake tensors (no memory, no kernels), and where that leaves an effect a second time,
with other seeds and with what the first left behind, and compares what operators were called.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from types import FrameType
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

from ...device.fake_tensors import FakeTensor, FakeTensorMode
from ...ir.diagnostics import Diagnostic, FBError, listed
from ..guards.effects import PythonState
from ..output_spec import ALL_RESULTS, Wanted
from ..trace.joint import NEEDS_NUMBERS
from ..trace.kernel_strides import laid_out_by_kernels
from ..trace.lock import unlogged
from ..trace.module import WholeModel, as_if_compiling, has_values, unchanged
from ..trace.outputs import Results, asks_for_cache, read_results, what_to_know
from ..trace.places import Place, first_place, paths_of, place_of_caller
from .places import BY_REGIONS

Way = Literal["plain", "answered", "compiling"]
"""Ways to run a forward on fake tensors: as it is, with answers for the numbers that it reads, or
as if it were compiled; a model is traced by the first of them that can be, too."""

CALL_ONCE = "call the model once before it is planned"

SEEDS = (1, 2)
"""Seeds of Python's and NumPy's generators, one for each call after the first."""


@dataclass(frozen=True)
class _Called:
    """An operator with what was given to it beside computed tensors."""

    what: str
    place: Place


@dataclass(frozen=True)
class _Ran:
    """One call of the forward; `drew` names the generators that it advanced, `effects` what it
    changed, by name."""

    calls: tuple[_Called, ...]
    drew: tuple[str, ...]
    effects: Mapping[str, str]
    results: Results | None = None
    notes: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True)
class Observed:
    """Observations of a few calls of a forward: what the user should know of its Python state and
    of what it returns, the state that it changes (by path), and its results."""

    warnings: tuple[Diagnostic, ...] = ()
    changing: frozenset[str] = frozenset()
    results: Results | None = None


def observe(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    wanted: Wanted = ALL_RESULTS,
) -> Observed:
    """Warnings (FB0514) for Python state that changes and is not seen to matter, and the results.

    Raises FBError FB0513 where the forward computes otherwise under other seeds, or on a later
    call, with the line from which it does. A forward that leaves no effect runs once. A model whose
    forward does not run on fake tensors is not looked at: capture will say why. Nothing of the
    model or of a generator changes.
    """
    for way in get_args(Way):
        with unchanged(model) as before, unlogged():
            first = _run(model, args, kwargs, way, before, wanted)
            if first is None:
                continue
            replaces = before.replaces_tensors()
            later: list[_Ran | None] = []
            has_effects = bool(first.effects or first.drew)
            while has_effects and len(later) < len(SEEDS):
                seed = SEEDS[len(later)]
                random.seed(seed)
                _seed_numpy(seed)
                later.append(_run(model, args, kwargs, way, before))
                is_other = _first_difference(first, later[0]) is not None
                has_effects = bool(first.drew) or is_other
            drawn_at = _where_it_draws(model, args, kwargs, way) if first.drew else None
        break
    else:
        return Observed((_not_looked_at(),))
    places = [_first_difference(a, b) for a, b in pairwise([first, *later])]
    differing = [place for place in places if place is not None]
    if differing:
        only_first = places[1:] == [None] * len(places[1:]) and not replaces
        raise FBError(_refusal(differing[0], first.drew, only_first))
    warnings = (*_effects_told(first, drawn_at), *first.notes)
    return Observed(warnings, frozenset(first.effects), first.results)


def _effects_told(ran: _Ran, drawn_at: Place | None) -> Iterator[Diagnostic]:
    """FB0514 for generators that a forward drew from, and for state that it changes."""
    if ran.drew:
        at = f" ({drawn_at})" if drawn_at else ""
        message = f"the forward draws from {' and '.join(ran.drew)}{at}; a planned step does not"
        hint = "draw with torch if it can change what is computed"
        yield Diagnostic("FB0514", message, hint=hint)
    yield from _changes_told("forward", [text for text in ran.effects.values() if text])


def what_backward_changes(state: PythonState, by_forward: frozenset[str]) -> Iterator[Diagnostic]:
    """FB0514 for state that a trace of the joint step changed, and the forward alone did not."""
    effects = state.effects().items()
    return _changes_told(
        "backward", [text for name, text in effects if text and name not in by_forward]
    )


def _changes_told(phase: str, names: list[str]) -> Iterator[Diagnostic]:
    if names:
        message = f"the {phase} changes {listed(names)}; a planned step does not"
        hint = f"return it, or change it outside of the {phase}, if something reads it"
        yield Diagnostic("FB0514", message, hint=hint)


def _not_looked_at() -> Diagnostic:
    message = (
        "the forward does not run on fake tensors: Python state that it reads was not looked at"
    )
    hint = "see that it draws no random numbers in Python, and computes the same on every call"
    return Diagnostic("FB0514", message, hint=hint)


def _refusal(place: Place, drew: Sequence[str], only_first: bool) -> Diagnostic:
    if drew:
        why = f"draws from {' and '.join(drew)}, which capture would freeze"
        hint = "draw with torch (torch.rand), or do it outside of the forward"
    elif only_first:
        why = "computes otherwise on its first call than on later ones"
        hint = CALL_ONCE
    else:
        why = "computes otherwise from call to call, by Python state that capture would freeze"
        hint = "make that state a buffer or an argument; leave out torch.jit.script"
    return Diagnostic("FB0513", f"the forward {why} ({place})", hint=hint)


# -- running ---------------------------------------------------------------------------


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, model: nn.Module):
        super().__init__()  # type: ignore[no-untyped-call]
        self.paths = paths_of(model)
        self.calls: list[_Called] = []
        self.checks: dict[Place, None] = {}
        self.scripted: dict[Place, None] = {}
        self.unanswered: list[Place] = []
        self._script = torch._C._last_executed_optimized_graph()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        leaves, _ = tree_flatten((args, kwargs))
        what = f"{func} {[_as_text(leaf) for leaf in leaves]}"
        self._look_for_script()
        self.calls.append(_Called(what, place_of_caller(self.paths)))
        if not func._schema.returns and not func._schema.is_mutable:
            self.checks[self.calls[-1].place] = None
        try:
            return func(*args, **(kwargs or {}))
        except NEEDS_NUMBERS:
            self.unanswered.append(self.calls[-1].place)
            raise

    def _look_for_script(self) -> None:
        """Notes the last call where TorchScript has run since."""
        script = torch._C._last_executed_optimized_graph()
        if script is not self._script and self.calls:
            self.scripted[self.calls[-1].place] = None
        self._script = script

    def notes(self) -> Iterator[Diagnostic]:
        """Yield notes on what a planned step does otherwise than the forward."""
        self._look_for_script()
        if self.checks:
            message = (
                f"the forward checks values ({', '.join(map(str, self.checks))}); a planned step "
                "does not, and goes on where eager raises an error"
            )
            hint = "check the loss of the step for values that are not finite"
            yield Diagnostic("FB0527", message, hint=hint)
        if self.scripted:
            message = (
                f"the forward calls TorchScript ({', '.join(map(str, self.scripted))}), which has "
                "kernels and derivatives of its own after its first calls; the step has those of "
                "its capture, and may round otherwise"
            )
            hint = "leave out torch.jit.script there if bits matter"
            yield Diagnostic("FB0532", message, hint=hint)


def _as_text(leaf: Any) -> str:
    """An argument as text; of real tensors, which hold what Python computed, the bits."""
    if isinstance(leaf, FakeTensor):
        return f"{leaf.dtype}{list(leaf.shape)}"
    if isinstance(leaf, Tensor):
        if leaf.device.type == "meta":
            return f"{leaf.dtype}{list(leaf.shape)}"
        with no_dispatch():
            bits = leaf.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return f"{leaf.dtype}{list(leaf.shape)} {hashlib.sha256(bits).hexdigest()}"
    return repr(leaf)


def _run(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    way: Way,
    before: PythonState,
    wanted: Wanted | None = None,
) -> _Ran | None:
    """The forward on fake tensors; None if it needs data that are not there on this `way`.

    The results are read where it is said what is `wanted` of them.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    laid_out = laid_out_by_kernels(mode, has_values=has_values(model))
    with mode, laid_out, torch.enable_grad():
        fakes = {name: mode.from_tensor(t) for name, t in _state(model)}
        given, named = tree_map_only(Tensor, mode.from_tensor, (args, kwargs))
        recorder = _Recorder(model)
        python, numpy = random.getstate(), _numpy_state()
        try:
            with recorder:
                made = _called(model, (args, kwargs), (given, named), fakes, way)
        except FBError:
            raise
        except Exception:  # whatever the model's Python raises on data that it needs
            return None
        if recorder.unanswered:  # and the forward went on: another way than that of eager
            at = recorder.unanswered[0]
            message = f"the forward catches the error of a trace that reads a number ({at})"
            hint = f"read no number inside try, or {BY_REGIONS}"
            raise FBError(Diagnostic("FB0501", message, hint=hint))
        drew = [
            name
            for name, changed in (
                ("Python's random", random.getstate() != python),
                ("numpy.random", _numpy_state() != numpy),
            )
            if changed
        ]
        ran = _Ran(tuple(recorder.calls), tuple(drew), before.effects())
        if wanted is None:
            return ran
        results, notes = read_results(made, wanted), [*recorder.notes()]
        if asks_for_cache(model):
            made = _called(model, (args, kwargs), (given, named), fakes, way, with_cache=True)
        return replace(ran, results=results, notes=(*what_to_know(results, made), *notes))


Given = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a call, by position and by name."""


def _called(
    model: nn.Module,
    sample: Given,
    given: Given,
    state: dict[str, Tensor],
    way: Way,
    *,
    with_cache: bool = False,
) -> Any:
    """Return the results of the forward for fake arguments, which stand for those of the sample."""
    called = WholeModel(model, with_cache=with_cache)
    with ExitStack() as stack:
        if way == "answered":
            stack.enter_context(called.answered(called.tracker_of(tree_leaves(sample))))
        elif way == "compiling":
            stack.enter_context(as_if_compiling())
        return torch.func.functional_call(called, state, *given, tie_weights=False)


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by path. A module under two names has those of the first."""
    for path, module in model.named_modules():
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                yield f"{path}.{key}" if path else key, tensor


def _first_difference(one: _Ran | None, other: _Ran | None) -> Place | None:
    """Where the second call does something that the first did not do there."""
    if one is None or other is None:  # a later call fails where the first did not
        calls = (one or other or _Ran((), (), {})).calls
        return None if one is other else calls[-1].place if calls else Place("", 0, "")
    for a, b in zip(one.calls, other.calls, strict=False):
        if a.what != b.what:
            return b.place
    if len(one.calls) != len(other.calls):
        longer = max(one.calls, other.calls, key=len)
        return longer[min(len(one.calls), len(other.calls))].place
    return None


# -- generators ------------------------------------------------------------------------


def _seed_numpy(seed: int) -> None:
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def _numpy_state() -> Any:
    """Comparable: the generator's words as bytes, and its position."""
    if "numpy" not in sys.modules:
        return None
    name, words, *rest = sys.modules["numpy"].random.get_state()
    return (name, words.tobytes(), *rest)


def _where_it_draws(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], way: Way
) -> Place | None:
    """The line of the model that first calls a method of one of Python's or NumPy's generators."""

    def draws(_: FrameType, event: str, function: Any) -> bool:
        owner = getattr(function, "__self__", None) if event == "c_call" else None
        is_asked = getattr(function, "__name__", "") in ("getstate", "get_state")
        return not is_asked and type(owner).__module__ in ("random", "numpy.random.mtrand")

    run = partial(_run, model, args, kwargs, way, PythonState(model))
    return first_place(run, paths_of(model), draws)
