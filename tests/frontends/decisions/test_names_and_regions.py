"""Names and regions as plans: torch-free, on a graph with modules."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from remat_compile.capture.decisions import (
    Decision,
    Region,
    decide_names,
    decide_regions,
    schedule_of,
)
from remat_compile.capture.torch import export, lower
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Compute
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program
from remat_compile.verifier import ProvenPlan, verify

PLANS = Path(__file__).parents[2] / "verifier" / "mutants" / "plans"


@pytest.fixture(scope="module")
def gpt() -> Program:
    text = (PLANS / "gpt.fbir").read_text(encoding="utf-8")
    return replace(parse_program(text, "gpt.fbir"), schedules=())


def proven(program: Program, decision: Decision) -> ProvenPlan:
    answer = verify(program, schedule_of(program.graph, decision))
    assert isinstance(answer, ProvenPlan), answer
    return answer


def again(decision: Decision) -> list[str]:
    """The forward cNodes that run in the backward."""
    return [name for name in decision.backward if name in decision.forward]


def test_fewer_names_save_less_and_recompute_more(gpt: Program) -> None:
    peaks, runs, claims = [], [], []
    for names in (["blocks.*.attn", "blocks.*.up", "blocks.*.down"], ["blocks.*.attn"], []):
        decision = decide_names(gpt, names, ["blocks.*"])
        peaks.append(proven(gpt, decision).proven.activation_bytes)
        runs.append(len(again(decision)))
        claims.append(decision.claimed_bytes or 0)
    assert runs == sorted(runs)
    assert runs[0] < runs[2]
    assert claims == sorted(claims, reverse=True)
    store_all = Decision("", frozenset(a.name for a in gpt.graph.anodes),
                         tuple(c.name for c in gpt.graph.in_phase("fwd")),
                         tuple(c.name for c in gpt.graph.in_phase("bwd")))  # fmt: skip
    assert max(peaks) < proven(gpt, store_all).proven.activation_bytes


def test_nothing_that_is_saved_runs_again(gpt: Program) -> None:
    decision = decide_names(gpt, ["attn_out=blocks.*.attn"], ["blocks.*"])
    outputs = {gpt.graph.cnode[n].loc.module for n in again(decision)}  # type: ignore[union-attr]
    written = {name for c in again(decision) for name in gpt.graph.cnode[c].results}
    assert not written & decision.saved
    assert "blocks.0.norm1" in outputs
    assert not any(part in outputs for part in ("tok", "pos", "norm", "head"))
    assert "blocks.0.attn.proj" not in outputs, "the result of attn is saved"
    assert "attn_out=blocks.*.attn" in decision.by


def test_a_segment_runs_again_when_the_backward_first_needs_it(gpt: Program) -> None:
    decision = decide_names(gpt, [], ["blocks.*"])
    order = [gpt.graph.cnode[n] for n in decision.backward]
    blocks = [c.loc.module.split(".")[1] for c in order
              if c.phase == "fwd" and c.loc is not None]  # fmt: skip
    assert blocks == sorted(blocks, reverse=True), "the last block first, each in one go"
    assert set(blocks) == {"0", "1", "2"}


def test_one_segment_around_the_whole_forward_saves_inputs_only(gpt: Program) -> None:
    decision = decide_names(gpt, [], [])
    assert not decision.saved - {r.name for r in gpt.binding.results}
    proven(gpt, decision)


def test_a_value_may_be_named_itself(gpt: Program) -> None:
    decision = decide_names(gpt, ["gelu"], ["blocks.0"])
    assert "gelu" in decision.saved
    assert "gelu_1" in decision.saved, "outside of the segment everything is saved"


def test_random_operators_in_a_region_keep_their_state(gpt: Program) -> None:
    decision = decide_names(gpt, [], ["blocks.*"])
    plan = schedule_of(gpt.graph, decision)
    runs = simulate(gpt, plan).executions
    assert any(runs[c.name] == 2 for c in gpt.graph.cnodes if c.token is not None)


@pytest.mark.parametrize(
    ("names", "segments", "code", "words"),
    [
        (["blocks.*.atn"], [], "FB0481", "blocks.*.atn is no value and no module"),
        (["gelo"], [], "FB0481", 'Did you mean "gelu"?'),
        ([], ["block.*"], "FB0481", "segment block.*"),
        ([], ["blocks.*", "blocks.*.attn"], "FB0482", "blocks.* and blocks.*.attn"),
    ],
)
def test_refusals(
    gpt: Program, names: list[str], segments: list[str], code: str, words: str
) -> None:
    with pytest.raises(FBError) as refused:
        decide_names(gpt, names, segments)
    assert {d.code for d in refused.value.diagnostics} == {code}
    assert words in str(refused.value)


def test_a_saved_set_that_does_not_suffice(gpt: Program) -> None:
    whole = decide_names(gpt, [], ["blocks.*"])
    dropped = again(whole)[0]
    backward = list(whole.backward)
    backward.remove(dropped)
    short = replace(whole, backward=tuple(backward), by="hand")
    with pytest.raises(FBError) as refused:
        schedule_of(gpt.graph, short)
    diagnostics = refused.value.diagnostics
    assert {d.code for d in diagnostics} == {"FB0480"}
    missing = gpt.graph.cnode[dropped].results
    assert any(f"needs %{name}, made by {dropped}" in d.message
               for d in diagnostics for name in missing)  # fmt: skip
    assert any(d.hint == f"save %{missing[0]}, or recompute {dropped}" for d in diagnostics)
    # Saving what is missing makes it a plan.
    named = {d.message.split("needs %")[1].split(",")[0] for d in diagnostics}
    proven(gpt, replace(short, saved=short.saved | named))


def test_a_decision_that_keeps_no_random_state_is_refuted(gpt: Program) -> None:
    whole = decide_names(gpt, [], ["blocks.*"])
    plan = schedule_of(gpt.graph, replace(whole, keeps_random_state=False))
    answer = verify(gpt, plan)
    codes = {d.code for d in getattr(answer, "diagnostics", ())}
    assert codes == {"FB0806"}


def test_a_region_of_batch_norm_runs_its_replay_form() -> None:
    text = (PLANS / "resnet.fbir").read_text(encoding="utf-8")
    program = replace(parse_program(text, "resnet.fbir"), schedules=())
    decision = decide_names(program, [], ["stages.*"])
    assert any(program.graph.cnode[c].replay is not None for c in again(decision))
    proven(program, decision)


def test_regions_need_not_be_contiguous(gpt: Program) -> None:
    forward = [c.name for c in gpt.graph.in_phase("fwd")]
    odd = [Region("odd", frozenset(forward[::2])), Region("even", frozenset(forward[1::2]))]
    proven(gpt, decide_regions(gpt, odd, "every other"))
    assert Compute(forward[0]) in schedule_of(gpt.graph, decide_regions(gpt, odd, "")).steps


# -- What `jax-names` says is saved is what JAX saves ----------------------------------------------


jax = pytest.importorskip("jax")

BATCH, WIDTH, INNER, DEPTH = 8, 4, 16, 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = (
            nn.Linear(WIDTH, INNER, bias=False),
            nn.Linear(INNER, WIDTH, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(torch.tanh(self.up(x)))
        return out


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def bytes_saved_by_jax(names: list[str], capsys: pytest.CaptureFixture[str]) -> int:
    """Bytes of the residuals that are no arguments, as `print_saved_residuals` tells them."""
    from jax.ad_checkpoint import checkpoint_name, print_saved_residuals

    def block(x: Any, up: Any, down: Any) -> Any:
        hidden = checkpoint_name(x @ up, "up")
        return x + checkpoint_name(jax.numpy.tanh(hidden), "act") @ down

    policy = jax.checkpoint_policies.save_only_these_names(*names)
    wrapped = jax.checkpoint(block, policy=policy)

    def net(x: Any, weights: list[tuple[Any, Any]]) -> Any:
        for up, down in weights:
            x = wrapped(x, up, down)
        return x

    weights = [(jax.numpy.ones((WIDTH, INNER)), jax.numpy.ones((INNER, WIDTH)))] * DEPTH
    print_saved_residuals(net, jax.numpy.ones((BATCH, WIDTH)), weights)
    total = 0
    for line in capsys.readouterr().out.splitlines():
        shape = re.match(r"f32\[([0-9,]*)\]", line)
        assert shape is not None, line
        if "from the argument" not in line:
            total += 4 * prod(int(n) for n in shape[1].split(","))
    return total


def bytes_saved_here(names: list[str]) -> int:
    with lower(export(Net(), (torch.randn(BATCH, WIDTH),))) as lowered:
        chosen = ["up=blocks.*.up"] if "up" in names else []
        if "act" in names:
            cnodes = lowered.program.graph.cnodes
            tanhs = [c.results[0] for c in cnodes if c.call.op == "aten.tanh.default"]
            assert len(tanhs) == DEPTH
            chosen += [f"act={name}" for name in tanhs]
        claimed = decide_names(lowered.program, chosen, ["blocks.*"]).claimed_bytes
        assert claimed is not None
        return claimed


@pytest.mark.parametrize("names", [[], ["up"], ["act"]], ids=str)
def test_saved_bytes_are_those_of_jax(names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert bytes_saved_here(names) == bytes_saved_by_jax(names, capsys)


def test_what_nothing_needs_is_not_saved(capsys: pytest.CaptureFixture[str]) -> None:
    """The backward of tanh needs its result alone. JAX saves both, since both are named."""
    both = ["up", "act"]
    assert bytes_saved_here(both) == bytes_saved_here(["act"])
    assert bytes_saved_by_jax(both, capsys) == bytes_saved_here(both) + 4 * BATCH * INNER * DEPTH
