"""A replay form with another call is run at capture, and its bits are compared."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from remat_compile.capture.torch import check_against_eager, export, lower
from remat_compile.capture.torch.graph import build
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.graph import CNode, Replay
from remat_compile.ir.program import Program
from remat_compile.plans.compare.graph import graph_differences


def _model() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh()).train(), torch.randn(5, 4)


def _captured() -> Program:
    model, x = _model()
    exported = export(model, (x,))
    with lower(exported) as lowered:
        pass
    check_against_eager(exported, lowered.program, lowered.values())
    return lowered.program


def test_the_header_says_that_replay_forms_were_compared() -> None:
    assert _captured().header.replays == "compared"
    with lower(export(nn.Linear(4, 4), (torch.zeros(2, 4),))) as plain:
        assert plain.program.header.replays == ""


def test_a_replay_form_that_gives_other_bits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    right = build.replay_without_effect

    def wrong(*args: Any) -> Replay | None:
        form = right(*args)
        if form is None:
            return None
        *rest, eps = form.call.args
        return replace(form, call=replace(form.call, args=(*rest, 2 * eps)))  # type: ignore[operator]

    monkeypatch.setattr(build, "replay_without_effect", wrong)
    with pytest.raises(FBError) as refused:
        _captured()
    assert {d.code for d in refused.value.diagnostics} == {"FB0512"}
    assert "in place of aten._native_batch_norm" in refused.value.diagnostics[0].message


def _with_replay(made: Program, **fields: object) -> Program:
    def edited(c: CNode) -> CNode:
        if c.replay is None:
            return c
        return replace(c, replay=replace(c.replay, **fields))  # type: ignore[arg-type]

    cnodes = tuple(map(edited, made.graph.cnodes))
    return replace(made, graph=replace(made.graph, cnodes=cnodes))


def test_a_plan_is_bound_to_the_results_of_its_replay_forms() -> None:
    made = _captured()
    assert graph_differences(made, _captured()) == []
    c = next(c for c in made.graph.cnodes if c.replay is not None)
    assert c.replay is not None
    first, second, third = c.replay.writes
    swapped = _with_replay(made, writes=(first, third, second))
    assert graph_differences(swapped, made) == [f"the replay form of {c.name} differs"]


def test_one_and_true_are_different_arguments() -> None:
    made = _captured()
    c = next(c for c in made.graph.cnodes if c.replay is not None)
    args = tuple(1 if arg is True else arg for arg in c.call.args)
    cnodes = tuple(
        replace(c, call=replace(c.call, args=args)) if x is c else x for x in made.graph.cnodes
    )
    edited = replace(made, graph=replace(made.graph, cnodes=cnodes))
    assert edited == made
    assert graph_differences(edited, made) == [f"{c.name}: arguments differ"]
