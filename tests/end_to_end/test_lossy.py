"""Lossy codecs, from the option to the step: the forward keeps every bit, and what is told to be
approximate is what differs."""

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
from remat_compile import FBError, Plan
from remat_compile.backends.torch import build, measure_step
from remat_compile.capture.torch import export, lower
from remat_compile.cli import main
from remat_compile.costs import measured
from remat_compile.ir.codecs import CODECS, pairs
from remat_compile.ir.graph import CNode
from remat_compile.ir.program import Program
from remat_compile.ir.rewrites.packs import erased, has_lossy
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.ir.text.parser import parse_program
from remat_compile.ir.text.printer import format_program
from remat_compile.operators.codecs import lossy as kernels
from remat_compile.plans import make
from remat_compile.plans.options import Errors
from remat_compile.plans.packed import packed
from remat_compile.plans.request import PlanRequest, read_request
from remat_compile.report.subject import store_all
from remat_compile.verifier import ProvenPlan, Refuted, verify
from remat_compile.verifier.read.lossy import Error, read_lossy

LOSSY = [name for name, codec in CODECS.items() if codec.is_lossy]
OPTIONS: dict[str, Any] = {"costs": "roofline", "device": "cpu", "planner": "dtr"}
Sample = tuple[nn.Module, tuple[Tensor, ...]]


class Net(nn.Module):
    """Convolution, batch norm, GELU and softmax before layers; log_softmax in its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.first, self.last = nn.Linear(16 * 36, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = nn.functional.gelu(self.norm(self.conv(x))).flatten(1)
        h = nn.functional.dropout(torch.tanh(self.first(h)), 0.1, self.training)
        return nn.functional.cross_entropy(self.last(h), y)


def net() -> Sample:
    return Net(), (torch.randn(256, 3, 6, 6), torch.randint(0, 10, (256,)))


def gpt() -> Sample:
    net = GPT(layers=1, width=64, heads=4, attn_drop=0.1, drop=0.1)
    return net, (torch.randint(0, 61, (8, 16)),)


def mlp() -> Sample:
    parts: list[nn.Module] = [nn.Linear(48, 256)]
    for _ in range(3):
        parts += [nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 256)]
    return nn.Sequential(*parts), (torch.randn(1024, 48),)


MODELS: dict[str, Callable[[], Sample]] = {"net": net, "gpt": gpt, "mlp": mlp}


def made(name: str, dtype: torch.dtype = torch.float32) -> Sample:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module, args = MODELS[name]()
    return module.to(dtype), tuple(a.to(dtype) if a.is_floating_point() else a for a in args)


def request(codecs: str, lossy: str | None) -> PlanRequest:
    errors = Errors()
    asked = read_request(errors, codecs=codecs, lossy=lossy)  # type: ignore[typeddict-item]
    errors.raise_if_any()
    assert asked is not None
    return asked


def step(module: nn.Module, args: tuple[Tensor, ...], of: nn.Module) -> tuple[list[Tensor], ...]:
    """Outputs, buffers and gradients of one step."""
    of.zero_grad()
    torch.manual_seed(5)
    out = module(*args)
    out = out[0] if isinstance(out, tuple) else out
    (out if out.dim() == 0 else out.square().mean()).backward()
    grads = [torch.zeros(()) if p.grad is None else p.grad for p in of.parameters()]
    return [out.detach()], [b.clone() for b in of.buffers()], [g.clone() for g in grads]


@pytest.mark.parametrize(
    ("family", "codec", "dtype"),
    [
        *(("linear", name, torch.float32) for name in ("int4", "int8_random")),
        *(("all", name, torch.float32) for name in LOSSY),
        *(("all", "int4", dtype) for dtype in (torch.float64, torch.bfloat16)),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["net", "gpt"])
def test_what_differs_is_what_is_told(
    name: str, family: str, codec: str, dtype: torch.dtype
) -> None:
    """The forward keeps every bit, with NaN in the batch too; bytes are as declared."""
    module, args = made(name, dtype)
    with lower(export(module, args)) as lowered:
        small = packed(lowered, request(family, codec))
        program, schedule = small.program, store_all(small.program)
        assert parse_program(format_program(program)) == program
        assert erased(program) == lowered.program
        assert isinstance(verify(program, schedule), Refuted)
        assert isinstance(verify(program, schedule, allow_lossy=True), ProvenPlan)
        ours, whole = build(small, schedule), build(lowered, store_all(lowered.program))
    told = read_lossy(program)
    assert told.codecs
    assert family == "all" or {*told.gradients.values()} == {Error.SUM}
    sources = {source for source, _ in told.codecs.values()}
    readers = (c for c in lowered.program.graph.cnodes if "_log_softmax_backward" in c.call.op)
    assert not any(sources & {*lowered.program.graph.reads(c)} for c in readers)
    state = copy.deepcopy(module.state_dict())
    total = torch.stack([g.norm() for g in step(whole, args, module)[2]]).norm()
    for special in (False, True):
        given = tuple(a.clone() for a in args)
        if special and given[0].is_floating_point():
            given[0].view(-1)[5] = float("nan")
        module.load_state_dict(copy.deepcopy(state))
        outputs, buffers, grads = step(ours, given, module)
        module.load_state_dict(copy.deepcopy(state))
        exact = step(whole, given, module)
        for a, b in zip((*outputs, *buffers), (*exact[0], *exact[1]), strict=True):
            assert torch.equal(a.nan_to_num(7), b.nan_to_num(7))
        for (parameter, _), a, b in zip(module.named_parameters(), grads, exact[2], strict=True):
            if f'"{parameter}"' not in told.gradients:
                assert torch.equal(a.nan_to_num(7), b.nan_to_num(7)), parameter
            elif not special:
                assert (a - b).norm() < 0.3 * b.norm() + 1e-3 * total, parameter


@pytest.mark.parametrize("codec", ["int4", "int4_outliers", "fp8"])
def test_measured_bytes_are_those_proven(codec: str) -> None:
    module, args = made("gpt")
    with lower(export(module, args)) as lowered:
        small = packed(lowered, request("all", codec))
        small = small.with_program(measured(small.program, small.values(), time_limit_s=0.0))
        schedule = store_all(small.program)
        drop_in = build(small, schedule)
        whole = simulate(lowered.program, store_all(lowered.program))
    measure_step(drop_in, args)
    for p in drop_in.parameters():
        p.grad = None
    use = measure_step(drop_in, args)
    assert use.forward_measured_bytes == use.forward_predicted_bytes
    assert use.backward_measured_bytes == use.backward_predicted_bytes
    trace = simulate(small.program, schedule)
    kept = trace.during_activation[trace.loss_step]
    assert kept < 0.6 * whole.during_activation[whole.loss_step]


@pytest.fixture
def cheap_codecs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times that are the same on every machine: all takes longer than codecs."""

    def costed(program: Program, *_: object) -> Program:
        cnodes = tuple(replace(c, time_ns=ns(c)) for c in program.graph.cnodes)
        return replace(program, graph=replace(program.graph, cnodes=cnodes))

    def ns(c: CNode) -> int:
        return 10 if c.call.op.startswith("remat_compile.") else 10**5

    monkeypatch.setattr(make, "_roofline", costed)


def planned(**options: Any) -> tuple[nn.Module, tuple[Tensor, ...], Plan]:
    module, args = made("mlp")
    asked = {"codecs": "linear", "lossy": "int4{seed=3}", "activation_budget": "60%"}
    plan = remat_compile.plan(module, args, **{**OPTIONS, **asked, **options})
    return module, args, plan


@pytest.mark.usefixtures("cheap_codecs")
def test_a_plan_that_nobody_allowed_goes_nowhere(tmp_path: Path) -> None:
    """It is written by who asked for it; read, it is neither proven, run nor written unasked."""
    module, args, plan = planned()
    assert has_lossy(plan.graph)
    assert any(c.call.args[1:] == (3,) for c in plan.graph.cnodes if "pack_int4" in c.call.op)
    assert isinstance(plan.verify(), ProvenPlan)
    path = tmp_path / "plan.fbir"
    plan.save(path)
    read = remat_compile.load(path)
    verdict = read.verify()
    assert isinstance(verdict, Refuted)
    assert [d.code for d in verdict.diagnostics] == ["FB0878"]
    assert isinstance(read.verify(allow_lossy=True), ProvenPlan)
    for use in (lambda: read.bind(module, args), read.emit, lambda: read.save(tmp_path / "b.fbir")):
        with pytest.raises(FBError, match="FB0878"):
            use()
    with pytest.raises(FBError, match="FB0561"):
        remat_compile.plan(path, planner="dtr")
    assert has_lossy(remat_compile.plan(path, planner="dtr", lossy="int4").graph)
    allowed = remat_compile.load(path, allow_lossy=True)
    drop_in = allowed.bind(module, args)
    state = copy.deepcopy(module.state_dict())
    outputs, buffers, grads = step(drop_in, args, module)
    module.load_state_dict(state)
    exact = step(module, args, module)
    assert all(map(torch.equal, (*outputs, *buffers), (*exact[0], *exact[1])))
    told = read_lossy(allowed.program).gradients
    names = [name for name, _ in module.named_parameters()]
    differ = {n for n, a, b in zip(names, grads, exact[2], strict=True) if not torch.equal(a, b)}
    assert differ == {name.strip('"') for name in told}
    assert {a.key for a in allowed.assuming} >= {"lossy", "lossy-gradients"}


FACTORY = """
import torch
from torch import nn

def make():
    torch.manual_seed(0)
    parts = [nn.Linear(48, 256)]
    for _ in range(3):
        parts += [nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 256)]
    return nn.Sequential(*parts), (torch.randn(1024, 48),)
"""


@pytest.mark.usefixtures("cheap_codecs")
def test_the_command_line_runs_what_it_was_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Approximate gradients are measured by themselves, and the others compared in every bit."""
    (tmp_path / "net.py").write_text(FACTORY)
    asked: dict[str, Any] = {"codecs": "linear", "lossy": "int4{seed=3}", **OPTIONS}
    plan = remat_compile.plan(f"{tmp_path}/net.py:make", activation_budget="60%", **asked)
    told = read_lossy(plan.program).gradients
    assert told
    path = tmp_path / "plan.fbir"
    plan.save(path)
    words = ["run", str(path), "--model", f"{tmp_path}/net.py:make", "--repeats", "1", "--quiet"]
    assert main(words) == 1
    refused = capsys.readouterr().err
    assert "FB0878" in refused
    assert "run take it with --allow-lossy" in refused
    assert main([*words, "--allow-lossy"]) == 0
    said = capsys.readouterr().out
    exact = len(plan.program.binding.params) + 1 - len(told)
    assert f"bit-equal to ordinary autograd ({exact} tensors compared)" in said
    assert f"{len(told)} gradients are approximate, by lossy codecs: here by 0.0" in said


@pytest.mark.usefixtures("cheap_codecs")
def test_a_lossy_plan_is_kept_for_the_same_request_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMAT_COMPILE_CACHE", str(tmp_path))
    _, _, first = planned()
    _, _, again = planned()
    assert "plan" not in again.phase_s
    assert again.program == first.program
    _, _, other = planned(lossy="int4{seed=4}")
    assert "plan" in other.phase_s
    _, _, exact = planned(codecs="none", lossy=None)
    assert not has_lossy(exact.graph)


@pytest.mark.usefixtures("cheap_codecs")
def test_dynamic_sizes() -> None:
    module, _ = made("mlp")
    batch = torch.export.Dim("batch", min=32, max=4096)
    plan = remat_compile.plan(
        *(module, (torch.randn(2048, 48),)),
        dynamic_shapes=({0: batch},),
        activation_budget="75%",
        codecs="all",
        lossy="int8",
        **OPTIONS,
    )
    assert has_lossy(plan.graph)
    program = replace(plan.program, proven=())
    assert isinstance(verify(program, plan.schedule, scope="range", allow_lossy=True), ProvenPlan)
    drop_in = plan.bind()
    for size in (32, 77, 2048):
        given = (torch.randn(size, 48),)
        ours, exact = step(drop_in, given, module), step(module, given, module)
        assert torch.equal(ours[0][0], exact[0][0])
        for a, b in zip(ours[2], exact[2], strict=True):
            assert torch.allclose(a, b, atol=0.05 * float(b.abs().max()))


@pytest.mark.parametrize(
    "options",
    [
        {"codecs": "linear"},
        {"codecs": "all"},
        {"lossy": "int8", "activation_budget": "95%"},
        {"codecs": "lossless", "lossy": "int8"},
        {"codecs": "linear", "lossy": "int8"},  # biased
        {"codecs": "all", "lossy": "int9"},
        {"codecs": "all", "lossy": "bits"},
        {"codecs": "all", "lossy": "int8{seed=3}"},
        {"codecs": "all", "lossy": "int4{seed=-1}"},
        {"codecs": "all", "lossy": "int4{group=32}"},
    ],
    ids=str,
)
def test_bad_requests(options: dict[str, Any]) -> None:
    module, args = made("net")
    with pytest.raises(FBError) as refused:
        remat_compile.plan(module, args, **{**OPTIONS, **options})
    assert [d.code for d in refused.value.diagnostics] == ["FB0561"]
    assert all(d.hint for d in refused.value.diagnostics)


def test_the_mean_over_seeds_is_the_exact_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of 256 seeds is within 4 standard errors for each element of each unbiased weight.

    Of some 10 000 normal numbers, one is expected farther away.
    """
    module = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.Linear(64, 8))
    args = (torch.randn(64, 32),)
    plain = kernels.generator
    with lower(export(module, args)) as lowered:
        small = packed(lowered, request("linear", "int4"))
        ours, whole = (build(each, store_all(each.program)) for each in (small, lowered))
    told = read_lossy(small.program)
    assert told.gradients == {'"2.weight"': Error.SUM, '"3.weight"': Error.SUM}
    assert told.is_unbiased
    assert {pair.codec.name for pair in pairs(small.program.graph)} == {"int4"}
    exact = step(whole, args, module)[2]
    found: list[list[Tensor]] = []
    for seed in range(256):
        monkeypatch.setattr(kernels, "generator", lambda x, _, seed=seed: plain(x, seed))
        found.append(step(ours, args, module)[2])
    far = number = 0
    for own, b in zip(zip(*found, strict=True), exact, strict=True):
        values = torch.stack(own).double()
        error = values.std(0) / 16
        off = (values.mean(0) - b.double()).abs() - 1e-6 * b.abs().max()
        far += int((off > 4 * error).sum())
        number += int((error > 0).sum())
    assert number == 64 * 64 + 8 * 64
    assert far <= 3
