"""Packed values: gradients keep every bit, whatever the batch holds, and bytes are as proven."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compile
from helpers.networks.transformers import GPT
from helpers.training import assert_bit_equal, train_steps
from remat_compile import FBError
from remat_compile.backends.torch import build, measure_step
from remat_compile.capture.lowered import Lowered
from remat_compile.capture.torch import ensure_trusted, export, lower
from remat_compile.costs import measured
from remat_compile.ir.codecs import PACKS, UNPACKS, pairs
from remat_compile.ir.diagnostics import Diagnostic
from remat_compile.ir.graph import CNode
from remat_compile.ir.program import Program
from remat_compile.ir.rewrites.packs import erased, has_packs
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program
from remat_compile.ir.text.printer import format_program
from remat_compile.plans import make
from remat_compile.plans.compare.graph import GraphSeen
from remat_compile.plans.options import Errors
from remat_compile.plans.packed import packed
from remat_compile.plans.request import PlanRequest, read_request
from remat_compile.report.subject import store_all
from remat_compile.verifier import ProvenPlan, verify

Sample = tuple[nn.Module, tuple[Tensor, ...]]


def mlp() -> Sample:
    """Dropout after each ReLU."""
    parts: list[nn.Module] = [nn.Linear(48, 96)]
    for _ in range(3):
        parts += [nn.ReLU(), nn.Dropout(0.2), nn.Linear(96, 96)]
    return nn.Sequential(*parts), (torch.randn(192, 48),)


def vgg() -> Sample:
    """Convolutions, ReLU and pooling of each kind; a batch normalisation."""
    parts: list[nn.Module] = []
    pools = (nn.MaxPool2d(2), nn.AvgPool2d(2), nn.MaxPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(2))
    for width, (before, pool) in zip(
        (8, 16, 16, 32), zip((3, 8, 16, 16), pools, strict=True), strict=True
    ):
        parts += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU(), pool]
    parts[3:3] = [nn.BatchNorm2d(8)]
    parts += [nn.Flatten(), nn.Dropout(0.5), nn.Linear(128, 10)]
    return nn.Sequential(*parts), (torch.randn(8, 3, 32, 32),)


def gpt() -> Sample:
    net = GPT(layers=2, width=64, heads=4, attn_drop=0.1, drop=0.1)
    return net, (torch.randint(0, 61, (8, 16)),)


MODELS: dict[str, Callable[[], Sample]] = {"mlp": mlp, "vgg": vgg, "gpt": gpt}
CODECS = {
    "mlp": {"bits", "signs"},
    "vgg": {"shape", "signs", "narrow_i16"},
    "gpt": {"bits"},
}
NARROW = {"vgg": {"narrow_u8", "narrow_i16"}}


def made(name: str, dtype: torch.dtype = torch.float32) -> Sample:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module, args = MODELS[name]()
    cast = tuple(a.to(dtype) if a.is_floating_point() else a for a in args)
    return module.to(dtype).train(), cast


def request(**options: Any) -> PlanRequest:
    asked = read_request(Errors(), codecs="lossless", **options)
    assert asked is not None
    return asked


def spoil(name: str, module: nn.Module, args: tuple[Tensor, ...]) -> None:
    """NaN, infinite, negative zero and subnormal numbers where the forward reads them first."""
    bad = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-40])
    target = next(iter(module.parameters())).data if name == "gpt" else args[0]
    rows = target.view(-1)[7 :: max(1, target.numel() // 40)]
    rows.copy_(bad.repeat(rows.numel() // 5 + 1)[: rows.numel()].to(rows.dtype))


def with_all_packed(lowered: Lowered) -> Lowered:
    small = packed(lowered, request())
    assert erased(small.program) == lowered.program
    assert {pair.codec.name for pair in pairs(small.program.graph)}
    return small


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_bits_are_those_of_eager(name: str, dtype: torch.dtype) -> None:
    """Three steps of a packed plan, on ordinary batches and on ones with every special value."""
    module, args = made(name, dtype)
    with lower(export(module, args)) as lowered:
        small = with_all_packed(lowered)
        program = small.program
        assert parse_program(format_program(program)) == program
        schedule = store_all(program)
        assert isinstance(verify(program, schedule), ProvenPlan)
        drop_in = build(small, schedule)
        whole = build(lowered, store_all(lowered.program))
    ensure_trusted(small)
    used = {pair.codec.name for pair in pairs(program.graph)}
    assert used >= CODECS[name] - NARROW.get(name, set())
    for special in (False, True):
        eager, _ = made(name, dtype)
        given = tuple(a.clone() for a in args)
        if special:
            spoil(name, eager, given)
        # Of a sum of two NaN, eager has the bits of the other one in the tied embedding of `gpt`.
        others = [whole, *([] if special and name == "gpt" else [eager])]
        state = copy.deepcopy(eager.state_dict())
        for other in others:
            module.load_state_dict(copy.deepcopy(state))
            ours = train_steps(drop_in, given)
            other.load_state_dict(copy.deepcopy(state))
            assert_bit_equal(ours, train_steps(other, given))
        grads = ours.steps[0].grads.values()
        assert special == any(not g.isfinite().all() for g in grads if g is not None)


@pytest.mark.parametrize("name", MODELS)
def test_measured_bytes_are_those_proven(name: str) -> None:
    """Forward and backward each, to the byte; and less is kept between them than without."""
    module, args = made(name)
    with lower(export(module, args)) as lowered:
        small = with_all_packed(lowered)
        small = small.with_program(measured(small.program, small.values(), time_limit_s=0.0))
        schedule = store_all(small.program)
        drop_in = build(small, schedule)
    use = measure_step(drop_in, args)
    for p in drop_in.parameters():
        p.grad = None
    use = measure_step(drop_in, args)
    assert use.forward_measured_bytes == use.forward_predicted_bytes
    assert use.backward_measured_bytes == use.backward_predicted_bytes
    assert kept_bytes(small, schedule) < kept_bytes(lowered, store_all(lowered.program))


def kept_bytes(lowered: Lowered, schedule: Schedule) -> int:
    """Bytes of activations during the loss."""
    trace = simulate(lowered.program, schedule)
    return trace.during_activation[trace.loss_step]


@pytest.fixture
def dear_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times that are the same on every machine: dropout takes long, and codecs do not."""

    def costed(program: Program, *_: object) -> Program:
        cnodes = tuple(replace(c, time_ns=ns(c)) for c in program.graph.cnodes)
        return replace(program, graph=replace(program.graph, cnodes=cnodes))

    def ns(c: CNode) -> int:
        is_half = c.call.op in PACKS or c.call.op in UNPACKS
        return 10 if is_half else 10**6 if c.token else 10**3

    monkeypatch.setattr(make, "_roofline", costed)


OPTIONS: dict[str, Any] = {"costs": "roofline", "device": "cpu", "planner": "dtr"}


@pytest.mark.usefixtures("dear_dropout")
def test_a_plan_is_packed_where_that_is_faster(tmp_path: Path) -> None:
    """The plan is written, read, held against its model, bound and emitted."""
    module, args = made("mlp")
    options = {**OPTIONS, "activation_budget": "75%"}
    whole = remat_compile.plan(module, args, **options)
    plan = remat_compile.plan(module, args, codecs="lossless", **options)
    assert has_packs(plan.graph)
    assert plan.time_s < whole.time_s
    assert plan.baseline == whole.baseline
    assert plan.budget == whole.budget
    assert plan.budget is not None
    assert plan.activation_peak_bytes <= plan.budget.bytes
    assert "codecs" in {a.key for a in plan.assuming}
    path = tmp_path / "plan.fbir"
    plan.save(path)
    again = remat_compile.load(path)
    assert isinstance(again.verify(), ProvenPlan)
    assert again.check_model(module, args).seen is GraphSeen.PACKED
    drop_in = again.bind(module, args)
    assert_bit_equal(train_steps(drop_in, args), train_steps(made("mlp")[0], args))
    assert "import remat_compile.operators.codecs\n" in again.emit()
    other = nn.Sequential(*(nn.GELU() if isinstance(m, nn.ReLU) else m for m in module))
    with pytest.raises(FBError, match="FB0710"):
        plan.bind(other, args)


@pytest.mark.usefixtures("dear_dropout")
def test_values_that_need_not_be_packed_are_kept_whole() -> None:
    """The larger the budget, the fewer are packed; none where nothing need run again."""
    module, args = made("mlp")
    numbers = []
    for budget in ("70%", "85%", "100%"):
        plan = remat_compile.plan(
            module, args, activation_budget=budget, codecs="lossless", **OPTIONS
        )
        numbers.append(len([*pairs(plan.graph)]))
    assert numbers[0] > numbers[1] > numbers[2] == 0


@pytest.mark.usefixtures("dear_dropout")
def test_dynamic_sizes() -> None:
    """Packed bytes are expressions of the symbols, proven for all sizes; each size is run."""
    module, args = made("mlp")
    batch = torch.export.Dim("batch", min=32, max=512)
    plan = remat_compile.plan(
        *(module, args),
        dynamic_shapes=({0: batch},),
        activation_budget="75%",
        codecs="lossless",
        **OPTIONS,
    )
    assert has_packs(plan.graph)
    drop_in = plan.bind()
    for size in (32, 77, 512):
        given = (torch.randn(size, 48),)
        eager = made("mlp")[0]
        module.load_state_dict(copy.deepcopy(eager.state_dict()))
        assert_bit_equal(train_steps(drop_in, given), train_steps(eager, given))
    program = replace(plan.program, proven=())
    verdict = verify(program, plan.schedule, scope="range")
    assert isinstance(verdict, ProvenPlan)
    assert "memory for s0 in [32, 512]" in verdict.proven.obligations


@pytest.mark.parametrize(
    ("options", "code"),
    [({"codecs": "every"}, "FB0707"), ({"codecs": "lossless", "fuse": "auto"}, "FB0479")],
)
def test_bad_requests(options: dict[str, Any], code: str) -> None:
    module, args = made("mlp")
    with pytest.raises(FBError) as refused:
        remat_compile.plan(module, args, **options)
    assert codes(refused.value) == [code]
    assert all(d.hint for d in refused.value.diagnostics)


@pytest.mark.usefixtures("dear_dropout")
def test_a_text_is_not_packed(tmp_path: Path) -> None:
    """It keeps the packed values that it has, and none are added."""
    module, args = made("mlp")
    plan = remat_compile.plan(module, args, activation_budget="75%", codecs="lossless", **OPTIONS)
    path = tmp_path / "plan.fbir"
    plan.save(path)
    with pytest.raises(FBError) as refused:
        remat_compile.plan(path, codecs="lossless")
    assert codes(refused.value) == ["FB0479"]
    again = remat_compile.plan(path, activation_budget="75%", planner="dtr")
    assert again.graph == plan.graph
    assert has_packs(again.graph)


def test_codecs_are_for_devices_on_which_they_were_tested() -> None:
    module, args = made("mlp")
    with lower(export(module, args)) as lowered:
        header = replace(lowered.program.header, device="cuda:0")
        elsewhere = lowered.with_program(replace(lowered.program, header=header))
        with pytest.raises(FBError) as refused:
            packed(elsewhere, request())
    assert codes(refused.value) == ["FB0479"]
    x = torch.empty(8, dtype=torch.bool, device="meta")
    with pytest.raises(NotImplementedError, match="pack_bits"):
        torch.ops.remat_compile.pack_bits(x)


def codes(error: FBError) -> list[str]:
    found: list[Diagnostic] = [*error.diagnostics]
    return [d.code for d in found]


@pytest.mark.usefixtures("dear_dropout")
def test_a_packed_plan_is_kept_for_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found by the same request, proven again, and by no other."""
    monkeypatch.setenv("REMAT_COMPILE_CACHE", str(tmp_path))
    module, args = made("mlp")
    options = {**OPTIONS, "activation_budget": "75%"}
    first = remat_compile.plan(module, args, codecs="lossless", **options)
    assert "plan" in first.phase_s
    again = remat_compile.plan(module, args, codecs="lossless", **options)
    assert "plan" not in again.phase_s
    assert again.program == first.program
    whole = remat_compile.plan(module, args, **options)
    assert not has_packs(whole.graph)


@pytest.mark.usefixtures("dear_dropout")
def test_jax_has_no_codecs() -> None:
    pytest.importorskip("jax")
    module, args = made("mlp")
    plan = remat_compile.plan(module, args, activation_budget="75%", codecs="lossless", **OPTIONS)
    with pytest.raises(FBError) as refused:
        plan.emit("jax")
    assert {*codes(refused.value)} == {"FB0920"}
