"""Measured costs of hand-built programs: sizes known by hand, peaks equal to real runs."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from helpers.clock import HANGS_S, skips
from helpers.paths import fbir
from helpers.programs.hand_built import (
    batch_norm_program,
    batch_norm_values,
    dropout_program,
    dropout_values,
    dynamic_dropout_program,
)
from remat_compile.backends.torch import emit, measure_peak
from remat_compile.capture.torch import export, lower
from remat_compile.costs import measured
from remat_compile.costs._symbolic import bound
from remat_compile.costs.meter import Meter
from remat_compile.ir.analysis.order import capture_order, frees_after_last_use
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.expr import Const, Sym, add, evaluate, mul
from remat_compile.ir.graph import CALLER_KINDS, Call, Ref
from remat_compile.ir.program import Program, Symbol
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.semantics.simulate import Sizes, simulate
from remat_compile.ir.text.parser import parse_program
from remat_compile.operators.executor import execute
from remat_compile.verifier import cost_assumptions

REPLAYED = ["F1", "F2", "F3", "F4", "L", "B4", "F3", "B4w", "B3", "F1", "F2", "B3w"]
REPLAYED += ["F1", "F2", "B2", "B1w", "A1"]


def peaks(
    program: Program,
    values: Mapping[str, Tensor],
    order: list[str] | None = None,
    env: Mapping[str, int] | None = None,
) -> tuple[int, int]:
    """Predicted and measured peak over what the caller holds."""
    graph = program.graph
    steps = frees_after_last_use(graph, order or capture_order(graph))
    sizes = Sizes.of(program, env).anode
    held = sum(sizes[a.name] for a in graph.anodes if a.kind in CALLER_KINDS)
    _, use = measure_peak(lambda: execute(program, steps, values, env=env, write_back=False))
    trace = simulate(program, Schedule("s", "", steps), env)
    return trace.peak_bytes - held, use.peak_bytes_over_entry


LOSS = fbir("costs/texts/loss")
"""The result keeps the storage of all squared differences."""


@pytest.mark.parametrize("hold", [True, False], ids=["whole", "alone"])
@pytest.mark.parametrize("order", [None, REPLAYED], ids=["captured", "replayed"])
def test_predicted_peak_is_the_measured_one(hold: bool, order: list[str] | None) -> None:
    values = dropout_values()
    costed = measured(dropout_program(), values, hold_tensors=hold)
    predicted, real = peaks(costed, values, order)
    assert predicted == real


@pytest.mark.parametrize("hold", [True, False], ids=["whole", "alone"])
def test_batch_norm_and_its_replay_form(hold: bool) -> None:
    values = batch_norm_values()
    costed = measured(batch_norm_program(), values, hold_tensors=hold)
    assert all(
        c.time_ns is not None and c.time_ns > 0 for c in costed.graph.cnodes if not c.is_loss
    )
    replay = costed.graph.cnode["F2"].replay
    assert replay is not None
    assert replay.time_ns is not None
    for order in (None, ["F1", "F2", "L", "F1", "F2", "B2", "B1"]):
        predicted, real = peaks(costed, values, order)
        assert predicted == real


def test_nothing_of_the_callers_changes() -> None:
    for program, values in (
        (dropout_program(), dropout_values()),
        (batch_norm_program(), batch_norm_values()),
    ):
        before = {name: value.clone() for name, value in values.items()}
        versions = {name: value._version for name, value in values.items()}
        state = torch.get_rng_state()
        measured(program, values)
        assert torch.equal(state, torch.get_rng_state())
        assert all(torch.equal(before[name], values[name]) for name in values)
        assert versions == {name: value._version for name, value in values.items()}


def test_header_says_what_was_measured_where() -> None:
    costed = measured(dropout_program(), dropout_values())
    assert costed.header.costs == "measured"
    assert costed.header.threads == torch.get_num_threads()
    assert costed.header.torch_version == torch.__version__
    assert "measured on cpu" in cost_assumptions(costed)[0].text


def test_kept_storage_of_a_loss_is_found() -> None:
    values = {"x": torch.ones(6, 10), "y": torch.zeros(6, 10)}
    costed = measured(parse_program(LOSS), values)
    assert costed.graph.anode["l"].size == Const(6 * 10 * 4)
    predicted, real = peaks(costed, values)
    assert predicted == real


def test_kept_storage_under_a_symbol_is_found_for_the_whole_range() -> None:
    program = parse_program(LOSS)
    batch = Sym("b")
    anodes = tuple(
        replace(a, shape=(batch, Const(10)), size=mul(Const(40), batch)) if a.shape else a
        for a in program.graph.anodes
    )
    program = replace(
        program,
        graph=replace(program.graph, anodes=anodes),
        symbols=(Symbol("b", 1, 50, 6, 0, 0),),
    )
    costed = measured(program, {"x": torch.ones(6, 10), "y": torch.zeros(6, 10)})
    assert costed.graph.anode["l"].size == mul(Const(40), batch)
    values = {"x": torch.ones(33, 10), "y": torch.zeros(33, 10)}
    predicted, real = peaks(costed, values, env={"b": 33})
    assert predicted == real


def test_replaying_a_random_operator_costs_the_saved_state() -> None:
    costed = measured(dropout_program(), dropout_values())
    dropout = costed.graph.cnode["F2"]
    assert dropout.replay is not None
    assert dropout.replay.call == dropout.call
    more = evaluate(dropout.replay.workspace, {}) - evaluate(dropout.workspace, {})
    assert more == torch.get_rng_state().nbytes


def test_workspace_follows_the_batch() -> None:
    costed = measured(dynamic_dropout_program(2, 40), dropout_values())
    for batch in (2, 3, 17, 40):
        values = {**dropout_values(), "x": torch.ones(batch, 8)}
        predicted, real = peaks(costed, values, env={"b": batch})
        assert predicted == real
    assert "over the range of b" in cost_assumptions(costed)[0].text


@pytest.mark.parametrize("low", [1, 4])
def test_workspace_of_a_convolution_is_bounded_over_the_range(low: int) -> None:
    """oneDNN and the native kernel take turns as the batch grows."""
    program = parse_program(f"""fbir 1
sym b in [{low}, 40] = 4 of arg 0 dim 0
graph @conv {{
  %x : input f32[b, 8, 16, 16] bytes 8192*b
  %w : input f32[2, 8, 1, 1] bytes 64
  %o : output f32[b, 2, 16, 16] bytes 2048*b
  F1: fwd %o = aten.convolution.default(%x, %w, none, [1, 1], [0, 0], [1, 1], false, [0, 0], 1)
  L: loss loss(%o)
}}
bind {{
  arg "x" = %x
  arg "w" = %w
  result %o
}}
""")
    weight = torch.ones(2, 8, 1, 1)
    costed = measured(program, {"x": torch.ones(4, 8, 16, 16), "w": weight})
    for n in range(low, 41):
        predicted, real = peaks(costed, {"x": torch.ones(n, 8, 16, 16), "w": weight}, env={"b": n})
        assert predicted >= real


def test_a_range_too_wide_to_measure_is_refused() -> None:
    with pytest.raises(FBError, match="b = ") as caught:
        measured(dynamic_dropout_program(2, 2**50), dropout_values())
    assert caught.value.diagnostics[0].code == "FB0908"


def test_a_failing_operator_is_named() -> None:
    program = dropout_program()
    broken = replace(program.graph.cnodes[0], call=Call("aten.mm.default", (Ref("x"), Ref("w2"))))
    cnodes = (broken, *program.graph.cnodes[1:])
    program = replace(program, graph=replace(program.graph, cnodes=cnodes))
    with pytest.raises(FBError, match=r"F1: aten\.mm\.default failed") as caught:
        measured(program, dropout_values())
    assert caught.value.diagnostics[0].code == "FB0909"


def test_values_that_do_not_fit_are_refused() -> None:
    with pytest.raises(FBError) as caught:
        measured(dropout_program(), {})
    assert {d.code for d in caught.value.diagnostics} == {"FB0905"}


def test_bound_prefers_what_fits_exactly() -> None:
    b = Sym("b")
    assert bound([({"b": 4}, 8), ({"b": 9}, 8)], []) == Const(8)
    size = mul(Const(2), b, b)
    assert bound([({"b": 4}, 32), ({"b": 9}, 162)], [size]) == size
    line = add(mul(Const(3), b), Const(-2))
    assert bound([({"b": 4}, 10), ({"b": 9}, 25), ({"b": 6}, 16)], []) == line


def test_bound_covers_what_does_not() -> None:
    points = [({"b": 8}, 0), ({"b": 9}, 900), ({"b": 64}, 6400), ({"b": 2}, 700)]
    expr = bound(points, [])
    assert all(evaluate(expr, env) >= value for env, value in points)
    both = [({"a": 1, "b": 2}, 5), ({"a": 2, "b": 3}, 9), ({"a": 1, "b": 1}, 3)]
    assert bound(both, []) == Const(9)


@pytest.mark.parametrize(
    ("threads", "resolution", "time_ns"), [(1, 1e-9, 7_000), (2, 1e-9, 11_000), (1, 1 / 64, 11_000)]
)
def test_the_clock_is_not_stretched_by_other_programs(
    threads: int, resolution: float, time_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the thread's own, where an operator runs on that thread alone and it is fine enough."""
    own, passed = count(0, 7_000), count(0, 11_000)
    monkeypatch.setattr(time, "thread_time_ns", lambda: next(own))
    monkeypatch.setattr(time, "perf_counter_ns", lambda: next(passed))
    info = SimpleNamespace(resolution=resolution)
    monkeypatch.setattr(time, "get_clock_info", lambda _: info)
    program = parse_program(LOSS)
    values = {"x": torch.randn(6, 10), "y": torch.randn(6, 10)}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        costed = measured(program, values)
    finally:
        torch.set_num_threads(before)
    assert {c.time_ns for c in costed.graph.cnodes} == {0, time_ns}


def test_views_count_where_the_code_derives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there are in the generated code, each with the first that reads it there."""
    second_ns = 10**9
    monkeypatch.setattr(Meter, "deriving_ns", lambda *_: second_ns)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            turned = self.layer.weight.t()
            left, right = torch.tanh(x @ turned + x @ turned).split(2, dim=1)
            return (left * right).sum()

    with lower(export(Model(), (torch.randn(2, 4),))) as lowered:
        costed = measured(lowered.program, lowered.values())
    times = {c.name: c.time_ns or 0 for c in costed.graph.cnodes}
    counts = {name: time // second_ns for name, time in times.items() if time >= second_ns}
    assert {"F1", "F5", "B1"} <= set(counts)
    steps = frees_after_last_use(costed.graph, capture_order(costed.graph))
    source = emit(costed, Schedule("s", "", steps))
    derived = re.findall(r" = \w+\.t\(\)| = _aten_split_Tensor\(| = _aten_expand\w*\(", source)
    handed_back = 1  # the gradient is a view, which no computation reads
    assert len(derived) == sum(counts.values()) + handed_back


# -- Timing operators ends at its limit -----------------------------------------------------------


def test_what_comes_past_the_limit_is_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run takes 10 of 100 units, and none gets more than a quarter of what is left: three of 100,
    two of 70 and of 50, and then one each time, as there must be a time for each."""
    unit_s, skip = 10 * HANGS_S, skips(monkeypatch)
    monkeypatch.setattr("remat_compile.costs.meter._ENOUGH_S", 1000 * unit_s)
    meter, counts = Meter(torch.device("cpu"), 1, 100 * unit_s), list[int]()

    def run() -> None:
        counts[-1] += 1
        skip(10 * unit_s)

    for _ in range(9):
        counts.append(0)
        meter._time_ns(run)
    assert counts == [3, 2, 2, 1, 1, 1, 1, 1, 1]
