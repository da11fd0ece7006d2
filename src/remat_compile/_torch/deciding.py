"""Which of the numbers that a forward reads of its arguments matter.

`with_deciding` says of each whether the step goes on by it. Many a forward reads some to warn, or
to check them. Each is taken to be the other truth value in turn, and so is what is read only then:
where every such run, forward and backward, does what the sample's does, calls need not agree with
the sample in it.

A run does the same where it calls the same operators on the same things, in its backward too (a
hook on a tensor, another `autograd.Function`), returns the same in the same containers, and leaves
the same on the modules and in the generators (of a flag that it sets, the next call may think).

Example: `if mask.all(): return plain(x)` decides. `if ids[:, -1].eq(0).any(): warn()` does not.
In `if a.any() and b.any(): return plain(x)`, where both are False, b is not read, and the run
with a.any() True reads it: both ways of that are run, one is another, and a.any() decides.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from ..ir.diagnostics import Diagnostic
from .attributes import attributes_of, changed_attributes
from .autocast import Autocast
from .hooks import Hook, SameObject, hooks_of
from .host_reads import HostRead, ReadTracker
from .numberless import NoLooking, number_of
from .results import described
from .shadows import ShadowMode, Unseen
from .unlogged import unlogged
from .whole import WholeModel, unchanged

__all__ = ["generators", "shadows_of", "warnings_of_way", "with_deciding"]

MOST_RUNS = 16
"""Of one step, to see which reads decide; all that is left does, where more are needed."""


_Done = tuple[str, frozenset[Hook], tuple[SameObject, ...]]
"""The digest of what a step calls, returns and leaves, the hooks that are there behind it, and the
objects that it keeps on modules. (One that each run makes anew is another in each.)"""

_Way = tuple[tuple[HostRead, ...], _Done | None]
"""What a forward reads on its way, and what the step does; None where it raises."""


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
            done = _step(recorder, called, model, args, kwargs)
            ways[numbers] = (tuple(tracker.reads), done)
        return ways[numbers]

    try:
        own, done = way(())
        if _at(own) != _at(reads) or done is None:
            raise Unseen("on shadows the forward reads other numbers")
    except Unseen:
        return tuple(reads)
    numbers = tuple(read.number for read in own)
    return tuple(
        replace(read, decides=not _is_same_way(way, done, numbers[:at], read.number))
        for at, read in enumerate(reads)
    )


def _is_same_way(
    way: Callable[[tuple[bool | int, ...]], _Way],
    done: _Done,
    before: tuple[bool | int, ...],
    number: bool | int,
) -> bool:
    """Whether every step that reads what is `before`, and then not `number`, is the same."""
    if not isinstance(number, bool):  # of numbers there are too many
        return False
    other = (*before, not number)
    try:
        reads, then = way(other)
    except Unseen:
        return False
    numbers = tuple(read.number for read in reads)
    return then == done and all(
        _is_same_way(way, done, numbers[:at], numbers[at]) for at in range(len(other), len(numbers))
    )


def _step(
    recorder: ShadowMode,
    called: WholeModel,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> _Done | None:
    """None where it raises, as it may where numbers are not the sample's, or ends the process.
    Unseen where it cannot be seen."""
    try:
        with (
            unlogged(),
            warnings.catch_warnings(),
            unchanged(model),
            _disable_current_modes(),  # a capture may be open
            torch._C._DisablePythonDispatcher(),
            torch.enable_grad(),
        ):
            warnings.simplefilter("ignore")
            attributes = attributes_of(model)
            plain = _without_saved_hooks(recorder)
            with recorder, recorder.made, NoLooking(recorder.refuse), plain:
                _run(recorder, called, model, args, kwargs)
                left = list(_left(model, attributes))
                recorder.note(*(x for x in left if not isinstance(x, SameObject)))
            recorder.note(*map(str, generators()), str(torch.get_rng_state().tolist()))
            objects = tuple(x for x in left if isinstance(x, SameObject))
            hooks = hooks_of(model)
    except Unseen:
        raise
    except (Exception, SystemExit) as error:  # of the model's Python
        if recorder.refused is not None:
            raise Unseen(recorder.refused) from error
        return None
    if recorder.refused is not None:
        raise Unseen(recorder.refused)
    return recorder.digest(compiling=False), hooks, objects


def _run(
    recorder: ShadowMode,
    called: WholeModel,
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Notes a forward, all that it returns, and the backward of it. Unseen where that fails."""
    state, given, named = shadows_of(recorder, model, args, kwargs)
    recorder.reads.begin(tree_leaves((given, named)))
    made = torch.func.functional_call(called, state, given, named)
    form, returned = described(made)
    recorder.note("results", *form, returned)
    leaves = {id(t): t for t in tree_leaves((state, given, named)) if isinstance(t, Tensor)}
    sources = [t for t in leaves.values() if t.requires_grad]
    ends = [t.sum() if t.dim() else t for t in returned if t.requires_grad]
    try:
        gradients = torch.autograd.grad(ends, sources, allow_unused=True)
    except Exception as error:  # whatever its Python raises without numbers
        raise Unseen("the backward does not run without numbers") from error
    recorder.note("gradients", list(gradients))


@contextmanager
def _without_saved_hooks(recorder: ShadowMode) -> Iterator[None]:
    """Refuses functions that are called on what is saved: they show in no operator."""

    def refused(*_: object) -> None:
        raise recorder.refuse("the forward has hooks on saved tensors")

    name = "_push_saved_tensors_default_hooks"
    with mock.patch.object(torch._C._autograd, name, refused):
        yield


def _left(model: nn.Module, before: Mapping[str, Any]) -> Iterator[Any]:
    """What a step left on modules: what is not as `before`, and which of them train."""
    after = attributes_of(model)
    for name in changed_attributes(before, after):
        yield name
        for leaf in tree_leaves(after[name]):
            is_seen = number_of(leaf) or isinstance(leaf, bool | int | float | str | None)
            yield leaf if is_seen else SameObject(leaf)
    yield from sorted(before.keys() - after.keys())
    yield from (module.training for module in model.modules())


def _at(reads: Sequence[HostRead]) -> list[tuple[str, bool | int]]:
    return [(str(read.place), read.number) for read in reads]


def warnings_of_way(*, compiling: bool) -> tuple[Diagnostic, ...]:
    """FB0525 where a step is traced as if it were compiled: what eager reads is not guarded."""
    if not compiling:
        return ()
    message = (
        "the forward cannot be traced as eager runs it (it reads numbers that a plan cannot know), "
        "and is planned as if it were compiled: it is as eager at the sample, and may differ where "
        "other numbers send eager another way"
    )
    hint = "branch on truth values or whole numbers of arguments, or leave the branch out"
    return (Diagnostic("FB0525", message, hint=hint),)


# -- shadows and generators -----------------------------------------------------------


def shadows_of(
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


def generators() -> tuple[Any, ...]:
    """The states of Python's and NumPy's generators, comparable."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return (random.getstate(),)
    name, words, *rest = numpy.random.get_state()
    return (random.getstate(), name, words.tobytes(), *rest)
