"""What one step of a model calls, seen on shadows.

`behaviour` runs a model on shadows, forward and backward. Two models of one digest call the same
operators on the same things.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..ir.diagnostics import Diagnostic
from .attributes import attributes_of, changed_attributes, state_warnings
from .autocast import Autocast
from .deciding import generators, shadows_of, with_deciding
from .hooks import hooks_of
from .host_reads import HostRead, ReadTracker
from .numberless import NoLooking
from .results import Results, asks_for_cache, read_results, what_to_know
from .shadows import ShadowMode, Shapes, Unseen
from .wanted import ALL_RESULTS, Wanted
from .whole import WholeModel, as_if_compiling, unchanged

__all__ = ["Behaviour", "behaviour"]


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
            drawn = generators()
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
            if generators() != drawn:
                raise Unseen("the forward draws from Python's or NumPy's generators")
            after = attributes_of(model)
            diagnostics = (*state_warnings(before, after), *notes)
            changing = frozenset(changed_attributes(before, after))
            own = {f"{path}.{kind}" for path, kind, _ in hooks_of(model) - hooks_before}
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
                changing | own,
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
    state, given, named = shadows_of(recorder, model, args, kwargs)
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
