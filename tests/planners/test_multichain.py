"""`multichain`: Lemma 2, Theorem 3, the toy example, and programs that are joins of towers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import product

import numpy as np
import pytest

from helpers.planners.exhaustive_chains import least_multi_time
from helpers.planners.graphs import Builder, chain, residual, stochastic, unet
from remat_compile.ir.graph import ANodeKind
from remat_compile.ir.program import Budget, Program
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.planners import (
    Feasible,
    Infeasible,
    NotApplicable,
    Optimal,
    TimedOut,
    parse_planner,
)
from remat_compile.planners.chains.recurrences import homogeneous as multi
from remat_compile.planners.chains.recurrences.homogeneous import (
    Adjoint,
    MultiChain,
    MultiMove,
    least_slots,
)
from remat_compile.planners.chains.towers import Towers, towers_of
from remat_compile.planners.instance import Instance


@pytest.mark.parametrize("lengths", [(2, 3), (1, 4), (3, 3), (2, 2, 2), (4, 3)])
def test_theorem_3_equals_exhaustive_search(lengths: tuple[int, ...]) -> None:
    table = MultiChain(lengths)
    least = least_slots(lengths, [False] * len(lengths))
    assert least_multi_time(lengths, least - 1) == float("inf")
    for slots in range(least, sum(lengths) + len(lengths) + 1):
        assert table.time(slots) == least_multi_time(lengths, slots)


def peak_slots(lengths: Sequence[int], moves: Sequence[MultiMove], kept: Sequence[bool]) -> int:
    """The most values alive after a step, by a walk from the end."""
    wanted = {("d", k, 0) for k, b in enumerate(kept) if b}
    most = 0
    for kind, k, i in reversed(moves):
        if kind == "loss":
            made = {("d", j, length) for j, length in enumerate(lengths)}
            read = {("a", j, length) for j, length in enumerate(lengths)}
        elif kind == "back":
            made, read = {("d", k, i)}, {("a", k, i), ("d", k, i + 1)}
        else:
            made, read = {("a", k, i + 1)}, {("a", k, i)}
        most = max(most, len(wanted | made))
        wanted = (wanted - made) | read
    assert wanted <= {("a", k, 0) for k in range(len(lengths))}
    return most


@pytest.mark.parametrize("lengths", [(4, 10, 12), (2, 3), (5, 4), (1, 4), (3, 3, 3)])
def test_schedules_keep_to_their_slots_and_times(lengths: tuple[int, ...]) -> None:
    for kept in product((False, True), repeat=len(lengths)):
        table = MultiChain(lengths, kept)
        for slots in range(least_slots(lengths, kept), sum(lengths) + len(lengths) + 2):
            moves = list(table.moves(slots))
            assert len(moves) == table.time(slots)
            assert peak_slots(lengths, moves, kept) <= slots


def test_the_toy_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 1.2.1: L = (4, 10, 12), m = 9. The thesis checkpoints 9 on branch 3, then 7 on
    branch 2, which is what equation (1.4) gives where Revolve may use a slot more; as
    printed, 8 on branch 3 takes 74 with 9 slots, and 9 takes 75."""
    lengths = (4, 10, 12)
    printed = MultiChain(lengths)
    assert printed.first_choice(lengths, 9) == (8, 2)
    assert printed.time(9) == 74
    assert printed._choices(lengths, 2, 0)[8, 9] == 75
    assert peak_slots(lengths, list(printed.moves(9)), [False] * 3) == 9

    class Roomy(Adjoint):
        @cached_property
        def table(self) -> np.ndarray:  # type: ignore[override]
            table = Adjoint(self.length, self.slots + 1).table
            return np.vstack([table[1:], table[-1:]])

    monkeypatch.setattr(multi, "Adjoint", Roomy)
    thesis = MultiChain(lengths)
    assert thesis.first_choice(lengths, 9) == (9, 2)
    second = [thesis._choices((4, 10, 3), k, others)[:, 8] for k, others in ((1, 1), (2, 0))]
    assert second[0][6] == min(min(times) for times in second)


@pytest.mark.parametrize("length", [5, 10])
def test_the_memory_of_the_least_makespan(length: int) -> None:
    """Section 1.4: 6L + 2, 6L + 3 and 6L + 1 slots for CM, SNN and RNN; 12L + 1 steps."""
    for lengths in ((length, 5 * length), (2 * length,) * 3, (6 * length,)):
        table = MultiChain(lengths)
        enough = 6 * length + len(lengths)
        assert table.time(enough) == 12 * length + 1 < table.time(enough - 1)
        # Half of it costs about a quarter.
        assert 1.2 < table.time(enough // 2) / (12 * length + 1) < 1.3


def join(
    lengths: Sequence[int], *, shared: bool = False, head: bool = True, size: int = 64
) -> Program:
    """Towers of blocks with a skip; `shared` weights have one gradient for all of them."""
    b = Builder("join")
    if shared:
        b.param("w", 16, "dw")
    for k, length in enumerate(lengths):
        b.input(f"x{k}_0", size)
        for i in range(length):
            if not shared:
                b.param(f"w{k}_{i}", 16, f"dw{k}_{i}")
            weight = "w" if shared else f"w{k}_{i}"
            inner: ANodeKind = "act"
            b.op(
                [f"x{k}_{i}", weight], [(f"h{k}_{i}", inner, 2 * size)], time=10, token=f"r{k}_{i}"
            )
            kind: ANodeKind = "output" if i == length - 1 and not head else "act"
            b.op([f"x{k}_{i}", f"h{k}_{i}"], [(f"x{k}_{i + 1}", kind, size)], time=3)
    ends = [f"x{k}_{length}" for k, length in enumerate(lengths)]
    tangents: list[tuple[str, int]] = [(f"d{k}_{n}", size) for k, n in enumerate(lengths)]
    if head:
        b.op(ends, [("y", "output", 8)], time=5)
        b.loss(["y"], [("dy", 8)])
        b.op(["dy", *ends], [(name, "grad", n) for name, n in tangents], phase="bwd", time=5)
    else:
        b.loss(ends, tangents)
    _backward(b, lengths, shared, size)
    return b.program()


def _backward(b: Builder, lengths: Sequence[int], shared: bool, size: int) -> None:
    total = ""
    for k in reversed(range(len(lengths))):
        for i in reversed(range(lengths[k])):
            weight: tuple[str, ANodeKind, int] = (f"dw{k}_{i}", "param_grad", 16)
            if shared:
                weight = (f"c{k}_{i}", "grad", 16)
            grads = [weight, (f"d{k}_{i}", "grad", size)] if i else [weight]
            b.op([f"d{k}_{i + 1}", f"x{k}_{i}", f"h{k}_{i}"], grads, phase="bwd", time=20)
            if shared and total:
                last = k == 0 and i == 0
                kind: ANodeKind = "param_grad" if last else "grad"
                b.accumulate(total, weight[0], "dw" if last else f"t{k}_{i}", kind, 16)
            total = ("dw" if k == i == 0 else f"t{k}_{i}") if shared and total else weight[0]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("lengths", [(3, 5), (4, 4, 4), (2, 9)])
def test_joins_of_towers_are_planned(lengths: tuple[int, ...], head: bool, shared: bool) -> None:
    program = join(lengths, shared=shared, head=head)
    instance = Instance.of(program, "activation")
    towers = towers_of(instance)
    assert isinstance(towers, Towers)
    # The first layer of a tower reads only what the caller holds: its inside separates too.
    assert towers.lengths == [length + 1 for length in lengths]
    previous = 0
    for share in (1.0, 0.8, 0.6, 0.5):
        budget = Budget(int(share * instance.peak(instance.capture)), "activation")
        result = parse_planner("multichain").plan(program, budget)
        assert isinstance(result, Feasible | Optimal)
        trace = simulate(program, result.schedule)
        assert trace.activation_peak_bytes <= budget.bytes
        assert trace.time_ns == result.time_ns >= previous
        previous = result.time_ns


def test_the_least_budget_is_reachable() -> None:
    program = join((4, 6))
    refused = parse_planner("multichain").plan(program, Budget(1, "activation"))
    assert isinstance(refused, Infeasible)
    assert refused.min_budget is not None
    assert isinstance(
        parse_planner("multichain").plan(program, refused.min_budget), Feasible | Optimal
    )


@pytest.mark.parametrize("make", [chain, residual, unet, stochastic])
def test_one_piece_is_refused(make: type) -> None:
    result = parse_planner("multichain").plan(make(), Budget(1, "activation"))
    assert isinstance(result, NotApplicable)
    assert result.why.code == "FB0409"
    assert "no two independent towers" in result.why.message


def test_towers_that_the_backward_ties_are_refused() -> None:
    b = Builder("tied")
    for k in range(2):
        b.input(f"x{k}_0", 8)
        b.param(f"w{k}", 8, f"dw{k}")
        for i in range(4):
            b.op([f"x{k}_{i}", f"w{k}"], [(f"x{k}_{i + 1}", "act", 8)])
    b.op(["x0_4", "x1_4"], [("y", "output", 8)])
    b.loss(["y"], [("dy", 8)])
    reads = ["dy", *(f"x{k}_{i}" for k in range(2) for i in range(1, 4))]
    b.op(reads, [("dw0", "param_grad", 8), ("dw1", "param_grad", 8)], phase="bwd")
    result = parse_planner("multichain").plan(b.program(), Budget(1, "activation"))
    assert isinstance(result, NotApplicable)
    assert "backward ties" in result.why.message


def test_too_large_a_table_is_refused_and_no_time_is_said() -> None:
    program = join((100, 100, 100), size=8)
    large = parse_planner("multichain").plan(program, Budget(1, "activation"))
    assert isinstance(large, NotApplicable)
    assert "too large a table" in large.why.message
    late = parse_planner("multichain").plan(join((3, 5)), Budget(1, "activation"), time_limit_s=-1)
    assert isinstance(late, TimedOut)
