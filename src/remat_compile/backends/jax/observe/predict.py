"""A plan's prediction of the bytes that XLA calls temporary.

Those that `buffers.py` finds for no result; and, for comparison, all that is alive at once.
"""

from __future__ import annotations

from collections.abc import Mapping

from ....ir.graph import CALLER_KINDS
from ....ir.program import Program
from ....ir.schedule import Compute, Free, HostFree, Offload, Prefetch, Schedule, Wait
from ....ir.semantics.simulate import Sizes
from .buffers import XlaFigures, buffers_of, temporary_bytes

_NOT_TEMPORARY = CALLER_KINDS | {"output", "param_grad", "pending", "tangent", "rng"}
"""Arguments and results of the compiled step, and random states, which JAX keeps as keys."""


def predicted_temp_bytes(
    program: Program,
    schedule: Schedule,
    env: Mapping[str, int] | None = None,
    figures: XlaFigures | None = None,
) -> int:
    """The largest number of bytes of activations and gradients that lie in temporary memory at
    once: those that find no room in the buffers of results.

    At `env` (the sample by default). `figures` say what XLA takes for each computation
    (`kernels.XlaPrice.figures`); left out, regions alone take any, as they were measured.
    """
    return temporary_bytes(buffers_of(program, schedule, env, figures))


def live_bytes(program: Program, schedule: Schedule, env: Mapping[str, int] | None = None) -> int:
    """The largest number of bytes of activations and gradients alive at once, wherever they lie.

    As `predicted_temp_bytes` without the buffers of results.
    """
    graph, sizes = program.graph, Sizes.of(program, env).anode
    counted = {a.name: 0 if a.kind in _NOT_TEMPORARY else sizes[a.name] for a in graph.anodes}
    counted.update({name: 0 for _, name in program.binding.input_grads if name in counted})
    live: set[str] = set()
    runs: dict[str, int] = {}
    now = peak = 0

    def take(name: str) -> None:
        nonlocal now
        if name not in live:
            live.add(name)
            now += counted[name]

    def give(name: str) -> None:
        nonlocal now
        if name in live:
            live.discard(name)
            now -= counted[name]

    for step in schedule.steps:
        match step:
            case Compute(name, nosave):
                c = graph.cnode[name]
                n = runs[name] = runs.get(name, 0) + 1
                if c.is_accumulate:
                    give(graph.reads(c)[0])
                for result in c.results_at(n):
                    take(result)
                peak = max(peak, now)
                for result in c.results_at(n) if nosave else ():
                    if graph.anode[result].kind == "phantom":
                        give(result)
            case Prefetch(name):
                take(name)
                peak = max(peak, now)
            case Free(name):
                give(name)
            case Offload() | Wait() | HostFree():
                pass
    return peak
