"""Joint graph -> FB-Graph: storages become aNodes, allocating operations cNodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from torch.utils._pytree import tree_leaves
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from ...device.fake_tensors import FakeTensor
from ...ir.diagnostics import fail
from ..lowered import Exported, Lowered
from ..trace.autocast import Autocast
from ..trace.joint import Joint, trace_joint
from ..trace.lock import exchanging, tracing
from ..trace.module import WholeModel, restored_generators, unchanged
from ..trace.places import recorded_places
from .assemble import assemble
from .graph.build import ProgramBuilder
from .graph.prepare import prepare
from .observe import what_backward_changes
from .places import refused


@contextlib.contextmanager
def lower(exported: Exported) -> Iterator[Lowered]:
    """Traces and lowers `exported`; the result is valid inside the `with` block.

    Deterministic: the same model gives the same text. Raises FBError FB0501 (not
    traceable) and FB0506 to FB0508 for constructs outside the language, all at once.
    """
    asked_before = len(_guards(exported))
    records = exported.is_live and not exported.has_places
    with (
        tracing(),
        restored_generators(),
        Autocast(exported.device.type).around(),  # `traced` enters that of the capture
        contextlib.ExitStack() as traced,
    ):
        model = type(exported.original).__name__
        sample = exported.original, exported.args, exported.kwargs
        forward = f"PyTorch cannot capture the forward of {model}"
        with (
            refused("FB0511", f"PyTorch cannot trace the backward of {model}", *sample),
            refused("FB0501", forward, *sample, inside=WholeModel.forward),
            exchanging(),
            recorded_places(exported.original) if records else nullcontext(),
            unchanged(exported.original) as state,  # hooks and attributes are read behind it
        ):
            joint = traced.enter_context(
                trace_joint(exported.traced, exported.trace_args, exported.trace_kwargs)
            )
            told = tuple(what_backward_changes(state, exported.changing))
        _check_sizes(exported, _guards(exported)[asked_before:])
        lowered = _lower(exported, joint)
        lowered = replace(lowered, warnings=(*lowered.warnings, *told))
        yield replace(lowered, exported=exported.home or exported)


def _guards(exported: Exported) -> list[Any]:
    """Return the guards that tracing made on dynamic sizes; the graph is right only where it
    holds."""
    fakes = [leaf for leaf in tree_leaves(exported.trace_args) if isinstance(leaf, FakeTensor)]
    fakes += [leaf for leaf in tree_leaves(exported.trace_kwargs) if isinstance(leaf, FakeTensor)]
    env = fakes[0].fake_mode.shape_env if fakes else None
    return [] if env is None else env.guards


def _check_sizes(exported: Exported, guards: Sequence[Any]) -> None:
    """FB0519 where the backward, which `torch.export` does not see, is another for other sizes."""
    ranges = {
        symbol: ValueRanges(low, high)
        for guard in guards
        for symbol in guard.expr.free_symbols
        for low, high in [exported.symbol_ranges.get(str(symbol), (2, 2**31))]
    }
    for guard in guards:
        holds = bound_sympy(guard.expr, ranges)
        if not (holds.is_singleton() and holds.lower):
            asked = str(guard.expr)
            for symbol, name in exported.symbol_names.items():
                asked = asked.replace(symbol, name)
            fail(
                "FB0519",
                f"the backward is made for sizes with {asked}, which not all in the range have",
                hint="narrow the range of that dynamic dimension, or leave it static",
            )


def _lower(exported: Exported, joint: Joint) -> Lowered:
    prepare(joint.graph_module)
    builder = ProgramBuilder(exported, joint)
    builder.read()
    return assemble(builder)
