"""What one step of a model calls, seen on shadows, and which of the numbers that it reads matter.

`behaviour` runs a model on shadows, forward and backward. Two models of one digest call the same
operators on the same things.

`with_deciding` says of numbers that a forward reads of its arguments whether it goes on by them.
Many a forward reads some to warn, or to check them. Each is taken to be the other truth value in
turn, and so is what is read only then: where every such run calls what the sample's does, calls
need not agree with the sample in it.

Example: `if mask.all(): return plain(x)` decides. `if ids[:, -1].eq(0).any(): warn()` does not.
In `if a.any() and b.any(): return plain(x)`, where both are False, b is not read, and the run
with a.any() True reads it: both ways of that are run, one is another, and a.any() decides.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from ..ir.diagnostics import Diagnostic
from .attributes import attributes_of, changed_attributes, state_warnings
from .autocast import Autocast
from .hooks import Hook, hooks_of
from .host_reads import HostRead, ReadTracker
from .numberless import NoLooking
from .results import Results, asks_for_cache, read_results, what_to_know
from .shadows import ShadowMode, Shapes, Unseen
from .unlogged import unlogged
from .wanted import ALL_RESULTS, Wanted
from .whole import WholeModel, as_if_compiling, unchanged

__all__ = ["Behaviour", "behaviour", "with_deciding"]

MOST_RUNS = 16
"""Of one forward, to see which reads decide; all that is left does, where more are needed."""


@dataclass(frozen=True)
class Behaviour:
    """What one call of a model shows, `compiling` or not. `literals` are the contents of tensors
    that it makes from Python numbers, `shapes` what the operators gave, `reads` the numbers of the
    arguments that it read; the rest is that of
    `Exported`."""

    digest: str
    compiling: bool
    results: Results
    warnings: tuple[Diagnostic, ...]
    changing: frozenset[str]
    own_hooks: frozenset[Hook]
    literals: frozenset[str]
    shapes: Mapping[str, list[Any]]
    reads: tuple[HostRead, ...] = ()


def behaviour(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: torch.device,
    wanted: Wanted = ALL_RESULTS,
    known: Shapes | None = None,
    *,
    with_cache: bool = False,
) -> Behaviour:
    """Of one step at a sample, with the caches of text that eager makes or without; nothing of the
    model changes. Unseen where Python must see numbers that cannot be answered, draws from its own
    or NumPy's generators, or uses tensors or operators that are not told here, and where an
    operator's shapes are not among the `known` of an earlier run.

    A forward that asks for numbers unless it is compiled runs a second time, as if compiling; its
    first run belongs to what is known, up to where it asked.
    """
    shapes: dict[str, list[Any]] = {}
    for compiling in (False, True):
        with unchanged(model), as_if_compiling() if compiling else nullcontext():
            before, hooks_before = attributes_of(model), hooks_of(model)
            tracker = ReadTracker(tree_leaves((args, kwargs)), device, model)
            recorder = ShadowMode(device, known, shapes, tracker)
            drawn = _generators()
            try:
                with recorder, recorder.made, NoLooking(recorder.refuse), torch.enable_grad():
                    step = _run(recorder, model, args, kwargs, wanted, with_cache)
                    results, notes, reads = step
            except Unseen:
                raise
            except Exception as error:  # whatever the model's Python raises without numbers
                failed = error
                continue
            if recorder.refused is not None:  # and the model's Python went on from there
                raise Unseen(recorder.refused)
            if _generators() != drawn:
                raise Unseen("the forward draws from Python's or NumPy's generators")
            after = attributes_of(model)
            diagnostics = (*state_warnings(before, after), *notes)
            changing = frozenset(changed_attributes(before, after))
            own = hooks_of(model) - hooks_before
            if reads:
                shapes |= known or {}
                autocast = Autocast.now(device.type)
                reads = with_deciding(
                    reads,
                    model,
                    args,
                    kwargs,
                    device,
                    autocast,
                    with_cache=with_cache,
                    shapes=shapes,
                )
            return Behaviour(
                recorder.digest(compiling),
                compiling,
                results,
                diagnostics,
                changing,
                own,
                frozenset(recorder.literals),
                shapes,
                reads,
            )
    raise Unseen(f"the forward does not run without numbers ({type(failed).__name__})")


def _run(
    recorder: ShadowMode,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    wanted: Wanted,
    with_cache: bool,
) -> tuple[Results, tuple[Diagnostic, ...], tuple[HostRead, ...]]:
    called = WholeModel(model, with_cache=with_cache)
    state, given, named = _shadows(recorder, model, args, kwargs)
    recorder.reads.begin(tree_leaves((given, named)))
    returned = torch.func.functional_call(called, state, given, named)
    reads = tuple(recorder.reads.reads)
    plain = returned
    if with_cache:  # which the step does not return
        plain = torch.func.functional_call(WholeModel(model), state, given, named)
    results = read_results(plain, wanted)
    trained = [t for t in results.tensors(returned) if t.requires_grad]
    leaves = {id(t): t for t in tree_leaves((state, given, named)) if isinstance(t, Tensor)}
    sources = [t for t in leaves.values() if t.requires_grad]
    # Of scalars: for others PyTorch imports SymPy.
    ends = [t.sum() if t.dim() else t for t in trained]
    gradients = torch.autograd.grad(ends, sources, allow_unused=True)
    recorder.note("results", [*results.tensors(returned)], results.trained, results.detached)
    recorder.note("gradients", list(gradients))
    notes = what_to_know(results, plain)
    if asks_for_cache(model):
        called = WholeModel(model, with_cache=True)
        notes = what_to_know(results, torch.func.functional_call(called, state, given, named))
    return results, notes, reads


def _shadows(
    recorder: ShadowMode, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Tensor], tuple[Any, ...], dict[str, Any]]:
    """For what the model holds, by name, and for its arguments; one tensor has one shadow."""
    made: dict[int, Tensor] = {}

    def shadow(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = recorder.made.like(tensor)
        return made[id(tensor)]

    state = {name: shadow(tensor) for name, tensor in _state(model)}
    given, named = tree_map_only(Tensor, shadow, (args, kwargs))
    return state, given, named


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)


def _generators() -> tuple[Any, ...]:
    """The states of Python's and NumPy's generators, comparable."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return (random.getstate(),)
    name, words, *rest = numpy.random.get_state()
    return (random.getstate(), name, words.tobytes(), *rest)


# -- which reads decide ----------------------------------------------------------------

_Way = tuple[tuple[HostRead, ...], str | None]
"""What a forward reads on its way, and the digest of what it calls; None where it raises."""


def with_deciding(
    reads: Sequence[HostRead],
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: torch.device,
    autocast: Autocast,
    *,
    with_cache: bool = False,
    shapes: dict[str, list[Any]] | None = None,
) -> tuple[HostRead, ...]:
    """What a forward read at a sample, each with whether it goes on by it. All do where that
    cannot be seen on shadows. Nothing of the model changes; `shapes` are known, and added to."""
    sample, shapes = tree_leaves((args, kwargs)), {} if shapes is None else shapes
    ways: dict[tuple[bool | int, ...], _Way] = {}

    def way(numbers: tuple[bool | int, ...]) -> _Way:
        """Of a forward that first reads these numbers, and then the sample's."""
        if numbers not in ways:
            if len(ways) == MOST_RUNS:
                raise Unseen("too many ways")
            tracker = ReadTracker(sample, device, model, supposed=numbers)
            recorder = ShadowMode(device, None, shapes, tracker)
            called = WholeModel(model, with_cache=with_cache, autocast=autocast)
            digest = _forward(recorder, called, model, args, kwargs)
            ways[numbers] = (tuple(tracker.reads), digest)
        return ways[numbers]

    try:
        own, digest = way(())
        if _at(own) != _at(reads) or digest is None:
            raise Unseen("on shadows the forward reads other numbers")
    except Unseen:
        return tuple(reads)
    numbers = tuple(read.number for read in own)
    return tuple(
        replace(read, decides=not _is_same_way(way, digest, numbers[:at], read.number))
        for at, read in enumerate(reads)
    )


def _is_same_way(
    way: Callable[[tuple[bool | int, ...]], _Way],
    digest: str,
    before: tuple[bool | int, ...],
    number: bool | int,
) -> bool:
    """Whether every forward that reads what is `before`, and then not `number`, is the same."""
    if not isinstance(number, bool):  # of numbers there are too many
        return False
    other = (*before, not number)
    try:
        reads, then = way(other)
    except Unseen:
        return False
    numbers = tuple(read.number for read in reads)
    return then == digest and all(
        _is_same_way(way, digest, numbers[:at], numbers[at])
        for at in range(len(other), len(numbers))
    )


def _forward(
    recorder: ShadowMode,
    called: WholeModel,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> str | None:
    """The digest of a forward; None where it raises, as it may where numbers are not the sample's.
    Unseen where it cannot be seen."""
    try:
        with (
            unlogged(),
            warnings.catch_warnings(),
            unchanged(model),
            _disable_current_modes(),  # a capture may be open
            torch._C._DisablePythonDispatcher(),
            torch.enable_grad(),
            recorder,
            recorder.made,
            NoLooking(recorder.refuse),
        ):
            warnings.simplefilter("ignore")
            state, given, named = _shadows(recorder, model, args, kwargs)
            recorder.reads.begin(tree_leaves((given, named)))
            made = torch.func.functional_call(called, state, given, named)
            recorder.note("results", [*read_results(made).tensors(made)])
    except Unseen:
        raise
    except Exception as error:  # of the model's Python
        if recorder.refused is not None:
            raise Unseen(recorder.refused) from error
        return None
    if recorder.refused is not None:
        raise Unseen(recorder.refused)
    return recorder.digest(compiling=False)


def _at(reads: Sequence[HostRead]) -> list[tuple[str, bool | int]]:
    return [(str(read.place), read.number) for read in reads]
