"""Chains for planners of pipelines: random, and of the theorems of Shilova 2021, chapter 5."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

from remat_compile.planners.pipeline.layers import Layers, Range


def layers_of(
    forward: Sequence[int],
    backward: Sequence[int] | None = None,
    *,
    activations: Sequence[int] | None = None,
    weights: Sequence[int] | None = None,
    ranks: int,
    memory: int | None = None,
    copies: int = 1,
    link: int | None = None,
    microbatches: int | None = None,
) -> Layers:
    """As in the thesis: `activations` a_0 .. a_L, of which a stage keeps its inputs; `link` in
    bytes per nanosecond."""
    n = len(forward)
    a = list(activations or [0] * (n + 1))
    sizes = (0, *a[1:n], 0)
    return Layers(
        forward_ns_L=tuple(forward),
        backward_ns_L=tuple(backward or [0] * n),
        kept_bytes_L=tuple(a[:n]),
        held_bytes_L=tuple(copies * w for w in weights or [0] * n),
        activation_bytes_B=sizes,
        gradient_bytes_B=sizes,
        ranks=ranks,
        memory_bytes=memory,
        link_bytes_per_s=None if link is None else link * 10**9,
        microbatches=microbatches,
    )


def random_layers(
    rng: random.Random, *, most: int = 7, ranks: int | None = None, **more: int
) -> Layers:
    """Small enough for brute force; memory from too little to plenty."""
    n = rng.randint(1, most)
    forward = [rng.randint(1, 9) for _ in range(n)]
    return layers_of(
        forward,
        [2 * x for x in forward] if rng.random() < 0.5 else [rng.randint(1, 9) for _ in forward],
        activations=[rng.randint(1, 8) for _ in range(n + 1)],
        weights=[rng.randint(0, 4) for _ in range(n)],
        ranks=ranks or rng.randint(1, 4),
        memory=rng.randint(20, 70),
        copies=3,
        link=rng.choice([None, 2, 5]),
        **more,
    )


def with_recompute(rng: random.Random, layers: Layers) -> Layers:
    """Layers that keep more, which they can make again."""
    inner = tuple(rng.randint(0, 12) for _ in layers.forward_ns_L)
    kept = tuple(k + x for k, x in zip(layers.kept_bytes_L, inner, strict=True))
    return replace(layers, kept_bytes_L=kept, inner_bytes_L=inner)


def theorem_17(k: int) -> list[int]:
    """Costs, times 2 k + 1, on 2 k + 1 ranks: contiguous stages need nearly twice the time."""
    q = 2 * k + 1
    parts = [k * q, 1, (k - 1) * q, 1] * k
    return [*parts, k * q, *[1] * ((k - 2) * q + 1), q]


def partitions(layers: Layers) -> Iterator[tuple[Range, ...]]:
    """All partitions into at most as many stages as there are ranks."""
    inner = layers.cuts[1:-1]
    for n in range(min(layers.ranks, len(inner) + 1)):
        for cut in combinations(inner, n):
            yield tuple(pairwise((0, *cut, len(layers))))
