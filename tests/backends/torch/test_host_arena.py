"""Addresses of host copies: as many bytes as the peak, and no two copies in the same ones."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from helpers.execution.copied_steps import copied_step
from remat_compile.backends.torch.runtime import ThreadEngine, host_layout
from remat_compile.backends.torch.runtime.arena import Tenancy, in_order_of_issue, place
from remat_compile.backends.torch.runtime.call import Arena
from remat_compile.ir.semantics.simulate import simulate


def check_placed(copies: list[Tenancy]) -> tuple[int, int]:
    """Bytes of the arena and how many copies lie in several pieces."""
    size, placed = place(copies)
    peak = max((sum(t.size_bytes for t in copies if t.begin <= now < t.end)) for now in range(100))
    assert size == peak
    for mine, pieces in zip(copies, placed, strict=True):
        assert sum(length for _, length in pieces) == mine.size_bytes
        assert all(address >= 0 and address + length <= size for address, length in pieces)
    for now in range(100):
        taken = sorted(
            piece
            for tenancy, pieces in zip(copies, placed, strict=True)
            if tenancy.begin <= now < tenancy.end
            for piece in pieces
        )
        assert all(a + n <= b for (a, n), (b, _) in pairwise(taken))
    return size, sum(len(pieces) > 1 for pieces in placed)


def random_tenancies(rng: Random) -> list[Tenancy]:
    copies = []
    for index in range(rng.randrange(1, 25)):
        begin = rng.randrange(0, 90)
        size = rng.choice((0, 1, 3, 8, 40, rng.randrange(100)))
        copies.append(Tenancy(f"a{index}", size, begin, rng.randrange(begin + 1, 100)))
    return sorted(copies, key=lambda tenancy: tenancy.begin)


def test_random_copies_fit_into_their_peak() -> None:
    split = [check_placed(random_tenancies(Random(seed)))[1] for seed in range(300)]
    assert 0 < sum(map(bool, split)) < 100  # some need several pieces, most do not


def test_the_example_of_the_documentation() -> None:
    copies = [
        Tenancy("a", 2, 0, 2),
        Tenancy("b", 2, 0, 4),
        Tenancy("c", 2, 0, 2),
        Tenancy("d", 4, 2, 4),
    ]
    assert in_order_of_issue(copies, 6)[3] == ((0, 2), (4, 2))
    assert check_placed(copies) == (6, 0)  # the largest first: %d at 0..4, %b behind it


def test_copies_that_come_and_go() -> None:
    copies = [
        Tenancy("a", 1, 0, 2),
        Tenancy("b", 1, 0, 5),
        Tenancy("c", 1, 1, 3),
        Tenancy("d", 1, 2, 6),
        Tenancy("e", 2, 5, 7),
        Tenancy("f", 2, 3, 5),
    ]
    check_placed(sorted(copies, key=lambda t: t.begin))


@pytest.mark.parametrize("seed", range(4))
def test_the_arena_of_a_plan_is_its_proven_host_peak(seed: int) -> None:
    step = copied_step("conv-bn-dropout-tied", seed)
    layout = host_layout(step.program, step.schedule)
    assert layout.size_bytes == simulate(step.program, step.schedule).host_peak_bytes
    arena = Arena(ThreadEngine(), layout.size_bytes)
    assert sum(block.numel() for block in arena.blocks) == layout.size_bytes


def test_pieces_go_over_the_borders_of_blocks() -> None:
    class Blocks(ThreadEngine):
        def host_memory(self, size_bytes: int) -> tuple[object, ...]:  # type: ignore[override]
            whole = super().host_memory(size_bytes)[0]
            return whole[:4], whole[4:6], whole[6:]

    arena = Arena(Blocks(), 12)
    for address in range(12):
        for block in arena.blocks:
            block.zero_()
        lengths = [part.numel() for part in arena.views(((7, 5), (address % 7, 3)))]
        assert sum(lengths) == 8
    first = arena.views(((5, 4), (0, 5)))
    assert [part.numel() for part in first] == [1, 3, 4, 1]
