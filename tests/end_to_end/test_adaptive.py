"""A ladder of plans: which one runs, and that nobody notices but by the gradients of lossy ones."""

from __future__ import annotations

import copy
import io
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import remat_compile
from helpers.distributed.forked import forked
from remat_compile import FBError
from remat_compile.backends.torch.adaptation import AdaptiveStep, Rules, Rung, rule
from remat_compile.backends.torch.adaptation.rule import State
from remat_compile.backends.torch.measure import bytes_at_entries
from remat_compile.device.memory import measure_peak
from remat_compile.ir.program import Program
from remat_compile.operators.codecs import lossy as kernels
from remat_compile.plans import make

OPTIONS: dict[str, Any] = {"costs": "roofline", "device": "cpu", "planner": "dtr", "cache": False}
INT8 = (("all", "int8"),)
BOTH = (("all", "int8"), ("all", "int4"))


class Net(nn.Module):
    """Batch norm, GELU and dropout; `scale` makes outliers of a channel before each GELU."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(32, width), nn.Linear(width, 8)
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(5))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(5))

    def forward(self, x: Tensor, y: Tensor, scale: Tensor) -> Tensor:
        h = self.first(x)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            h = nn.functional.gelu(norm(h) * scale)
            h = layer(nn.functional.dropout(h, 0.1, self.training))
        return nn.functional.mse_loss(self.last(h), y)


def batch(step: int = 0, outlier: float = 3.0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    scale = torch.ones(64)
    scale[5] = outlier
    x = torch.randn(256, 32, generator=generator)
    return x, x[:, :8].sin(), scale


def net() -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Net()


@pytest.fixture(scope="module", autouse=True)
def _cheap_codecs() -> Iterator[None]:
    """Times that are the same on every machine: all takes longer than codecs."""

    def ns(op: str) -> int:
        return 10 if op.startswith("remat_compile.") else 10**5

    def costed(program: Program, *_: object) -> Program:
        cnodes = tuple(replace(c, time_ns=ns(c.call.op)) for c in program.graph.cnodes)
        return replace(program, graph=replace(program.graph, cnodes=cnodes))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make, "_roofline", costed)
        yield


def ladder(model: nn.Module, **options: Any) -> AdaptiveStep:
    asked = {"ladder": INT8, "activation_budget": "65%", **OPTIONS, **options}
    made: AdaptiveStep = remat_compile.adaptive(model, batch(), **asked)
    return made


Made = tuple[Net, AdaptiveStep, dict[str, Any]]


@pytest.fixture(scope="module")
def made() -> Made:
    """A ladder of three, made once."""
    model = net()
    step = ladder(model, ladder=BOTH)
    return model, step, copy.deepcopy(model.state_dict())


def trained(
    model: nn.Module,
    step: Callable[..., Tensor],
    steps: range,
    outlier: Callable[[int], float] = lambda _: 3.0,
    optimizer: torch.optim.Optimizer | None = None,
) -> Iterator[Tensor]:
    """The loss of each step; its seed is its number."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 1e-3)
    for at in steps:
        torch.manual_seed(at)
        optimizer.zero_grad()
        loss = step(*batch(at, outlier(at)))
        optimizer.step()
        yield loss


def eagerly(model: nn.Module) -> Callable[..., Tensor]:
    def step(*args: Tensor) -> Tensor:
        loss: Tensor = model(*args)
        loss.backward()
        return loss.detach()

    return step


@pytest.fixture
def fresh(made: Made) -> Iterator[tuple[Net, AdaptiveStep]]:
    """The ladder at its beginning, with an int8 that is good enough and an int4 that is not."""
    model, step, state = made
    model.load_state_dict(state)
    model.zero_grad()
    step.state, step._rules = State(), Rules(len(step.rungs), 0.1, 32)
    yield model, step
    assert not step._is_running


def saved(model: nn.Module, *others: Any) -> list[Tensor]:
    tensors = [*model.state_dict().values(), *others, torch.get_rng_state()]
    return [t.clone() for t in tensors]


def equal(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(map(torch.equal, ours, theirs)) and len(ours) == len(theirs)


@pytest.mark.parametrize("is_audited", [True, False])
def test_exact_plans_are_switched_freely(is_audited: bool) -> None:
    """Dropout, batch norm and the generator of the user: every bit is eager's."""
    model, plain = net(), net()
    asked = ({"activation_budget": "55%"}, {"planner": "store-all"}, {"codecs": "lossless"})
    plans = [remat_compile.compile(model, batch(), **{**OPTIONS, **options}) for options in asked]
    sources = {plan.planned_source for plan in plans}  # type: ignore[union-attr]
    assert len(sources) >= 2
    rungs = [Rung(f"exact {at}", plan) for at, plan in enumerate(plans)]  # type: ignore[arg-type]
    step = AdaptiveStep(rungs, Rules(3, 0.1, 1))
    ran: list[str] = []
    ours, theirs = trained(model, step, range(9)), trained(plain, eagerly(plain), range(9))
    for at in range(9):
        if not is_audited:
            step.state = State(step=at, rung=at % 3, next_audit=99)
        ran.append(step.rung)
        mine = saved(model, next(ours))
        assert equal(mine, saved(plain, next(theirs))), at
    assert {*ran} == {rung.name for rung in rungs}


@pytest.mark.parametrize("tolerance", [0.1, 0.9])
@pytest.mark.parametrize("is_norm_seen", [True, False])
def test_outliers_are_met_and_left_again(
    tolerance: float,
    is_norm_seen: bool,
    fresh: tuple[Net, AdaptiveStep],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A channel grows fifty-fold at step 100, and shrinks at 200."""
    model, step = fresh
    if not is_norm_seen:  # then audits alone
        monkeypatch.setattr(rule, "LARGE_NORM", float("inf"))
    step._rules = Rules(3, tolerance, 32)
    usual = step.rungs[1 if tolerance == 0.1 else 2].name
    rungs, intervals, causes = [], [], []
    with caplog.at_level(logging.INFO, "remat_compile.adaptive"):
        for _ in trained(model, step, range(260), lambda at: 150.0 if 100 <= at < 200 else 3.0):
            rungs.append(step.rung)
            intervals.append(step.state.interval)
    causes = [r.message for r in caplog.records if r.name == "remat_compile.adaptive"]
    assert {*rungs[60:100]} == {usual}
    met = next(at for at in range(100, 260) if rungs[at] != usual)
    assert met == 100 if is_norm_seen else met <= 100 + intervals[99]
    assert usual not in rungs[met:200]
    again = next(at for at in range(200, 260) if rungs[at] == usual)
    assert again <= 200 + intervals[199] + 2 * 2
    assert {*rungs[again:]} == {usual}
    switches = [b for a, b in zip(["exact", *rungs], rungs, strict=False) if a != b]
    assert [c.split(" runs ")[1].split(" in place")[0] for c in causes] == switches
    met_by = next(c for c in causes if c.startswith(f"step {met + 1} "))
    assert ("norm" if is_norm_seen else "error") in met_by


def test_a_resumed_run_has_the_same_bits(fresh: tuple[Net, AdaptiveStep]) -> None:
    """60 steps are 30, a file, and 30 by a ladder that is made again."""
    model, step = fresh

    def outlier(at: int) -> float:
        return 150.0 if 15 <= at < 22 or 40 <= at < 45 else 3.0

    start = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    rungs, losses = [], []
    for loss in trained(model, step, range(60), outlier, optimizer):
        losses.append(loss)
        rungs.append(step.rung)
    whole, end = saved(model), step.state_dict()
    assert len({*rungs[:30]}) == len({*rungs[30:]}) == 2  # both rungs in both halves
    assert rungs[29] != "exact"

    model.load_state_dict(start)
    step.state = State()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    list(trained(model, step, range(30), outlier, optimizer))
    file = io.BytesIO()
    held = [step.state_dict(), model.state_dict(), optimizer.state_dict()]
    torch.save(held, file)
    file.seek(0)
    held = torch.load(file, weights_only=True)

    other = net()
    resumed = ladder(other, ladder=BOTH)
    other.load_state_dict(held[1])
    optimizer = torch.optim.AdamW(other.parameters(), 1e-3)
    optimizer.load_state_dict(held[2])
    resumed._rules = step._rules
    resumed.load_state_dict(held[0])
    again = list(trained(other, resumed, range(30, 60), outlier, optimizer))
    assert equal(again, losses[30:])
    assert equal(saved(other), whole)
    assert resumed.state_dict() == end


def test_every_step_holds_the_budget() -> None:
    """Each one measured: steps of every rung, audits, switches, and a step that is repeated."""
    model = net()
    exact = remat_compile.plan(model, batch(), **OPTIONS)
    budget = exact.baseline.peak_bytes * 9 // 10
    step = ladder(model, ladder=BOTH, activation_budget=None, budget=budget)
    step._rules = Rules(3, 0.9, 4)
    given = step.module.planned_step
    held = bytes_at_entries(given.program, given.schedule)[0]
    seen: dict[tuple[str, str], int] = {}
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for at in range(40):
        optimizer.zero_grad()
        args = batch(at, float("inf") if at in (21, 22) else 3.0)
        kind = "audit" if step.state.is_audited else "step"
        before = step.rung
        _, use = measure_peak(lambda args=args: step(*args))  # type: ignore[misc]
        kind = kind if step.rung == before else f"{kind} and switch"
        seen[before, kind] = max(seen.get((before, kind), 0), held + use.peak_bytes_over_entry)
        if at not in (21, 22):
            optimizer.step()
    assert max(seen.values()) <= budget, seen
    assert max(seen.values()) > 0.9 * budget
    # Two gradients and the beginning of the step are there, which no plan alone has.
    assert {rung for rung, _ in seen} == {"exact", "all int8", "all int4"}
    assert {kind for _, kind in seen} == {"step", "audit", "step and switch", "audit and switch"}


def test_a_step_that_is_not_finite_is_repeated_exactly(
    fresh: tuple[Net, AdaptiveStep], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The optimizer gets what eager gets; buffers and the generator go on as after one step."""
    model, step = fresh
    plain = net()
    step.state = State(rung=1, next_audit=99)
    plain.load_state_dict(copy.deepcopy(model.state_dict()))
    scaled = kernels._step
    monkeypatch.setattr(kernels, "_step", lambda x: torch.full_like(scaled(x), torch.nan))
    mine = next(trained(model, step, range(1)))
    assert equal(saved(model, mine), saved(plain, next(trained(plain, eagerly(plain), range(1)))))
    assert (step.rung, step.state.is_audited) == ("exact", True)
    # The codec is still broken: the exact plan stays.
    list(trained(model, step, range(1, 6)))
    list(trained(plain, eagerly(plain), range(1, 6)))
    assert step.rung == "exact"
    assert equal(saved(model), saved(plain))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_batch_that_is_not_finite_gives_what_eager_gives(
    value: float, fresh: tuple[Net, AdaptiveStep]
) -> None:
    model, step = fresh
    plain = net()
    plain.load_state_dict(copy.deepcopy(model.state_dict()))
    x, y, scale = batch()
    x[3, 4] = value
    for rung, audit in ((0, 0), (1, 0), (1, 99)):
        step.state = State(rung=rung, next_audit=audit)
        model.zero_grad()
        plain.zero_grad()
        for run in (step, eagerly(plain)):
            torch.manual_seed(4)
            run(x, y, scale)
        grads = [[p.grad.nan_to_num(7) for p in m.parameters() if p.grad is not None]
                 for m in (model, plain)]  # fmt: skip
        assert equal(*grads)
        assert step.rung == "exact"


def code(run: Callable[[], object]) -> str:
    with pytest.raises(FBError) as refused:
        run()
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.hint
    return diagnostic.code


def test_a_step_is_whole(fresh: tuple[Net, AdaptiveStep]) -> None:
    """Neither switched nor begun again between its forward and the end of its backward."""
    model, step = fresh
    held = step.state_dict()
    inner = (lambda: step.load_state_dict(held), step.state_dict, lambda: step(*batch()))
    for run in inner:
        codes: list[str] = []
        weight = model.first.weight
        handle = weight.register_hook(lambda g, run=run, codes=codes: codes.append(code(run)))
        step(*batch())
        handle.remove()
        model.zero_grad()
        assert {*codes} == {"FB0564"}


def test_gradients_that_are_there_are_refused(fresh: tuple[Net, AdaptiveStep]) -> None:
    model, step = fresh
    step(*batch())
    before, state = saved(model), step.state
    assert code(lambda: step(*batch())) == "FB0565"
    assert (equal(saved(model), before), step.state) == (True, state)
    model.zero_grad()
    handle = model.last.weight.register_post_accumulate_grad_hook(lambda _: None)
    assert code(lambda: step(*batch())) == "FB0565"
    handle.remove()
    x, *others = batch()
    assert code(lambda: step(x.requires_grad_(), *others)) == "FB0565"
    step(*batch())


def test_states_of_other_ladders(fresh: tuple[Net, AdaptiveStep]) -> None:
    _, step = fresh
    held = step.state_dict()
    wrong = [{}, {**held, "ladder": held["ladder"][:2]}, {**held, "state": {"step": 3}}, None]
    wrong.append({**held, "state": {**held["state"], "rung": 3}})
    for each in wrong:
        assert code(lambda each=each: step.load_state_dict(each)) == "FB0566"  # type: ignore[misc]
    exact = Rung("exact", step.module)
    assert code(lambda: AdaptiveStep([exact], Rules(1, 0.1, 1)).load_state_dict(held)) == "FB0566"
    step.load_state_dict(held)


@pytest.mark.parametrize(
    ("options", "codes"),
    [
        ({"activation_budget": "1KiB"}, ["FB0562"]),
        ({"activation_budget": None}, ["FB0567"]),
        ({"activation_budget": "least"}, ["FB0567"]),
        ({"tolerance": 0, "most_steps": 0}, ["FB0567", "FB0567"]),
        ({"tolerance": float("nan")}, ["FB0567"]),
        ({"ladder": (("all", "int9"),)}, ["FB0561"]),
        ({"ladder": (("lossless", "int8"),)}, ["FB0561"]),
        ({"ladder": ("int8",)}, ["FB0567"]),
        ({"budget": "1GiB"}, ["FB0452"]),
        ({"codecs": "all"}, ["FB0723"]),
        ({"outputs": ("y",)}, ["FB0517"]),
    ],
    ids=str,
)
def test_bad_requests(options: dict[str, Any], codes: list[str]) -> None:
    with pytest.raises(FBError) as refused:
        ladder(net(), **options)
    assert [d.code for d in refused.value.diagnostics] == codes
    assert all(d.hint for d in refused.value.diagnostics)


def test_a_model_that_does_not_give_its_loss() -> None:
    x = torch.randn(8, 4)
    with pytest.raises(FBError, match="FB0545"):
        remat_compile.adaptive(nn.Linear(4, 4), (x,), budget="1GiB", ladder=INT8, **OPTIONS)


def test_a_ladder_without_lossy_rungs_says_so() -> None:
    model = net()
    with pytest.warns(UserWarning, match="FB0563"):
        step = ladder(model, activation_budget="100%")
    list(trained(model, step, range(3)))
    assert step.rung == "exact"


def test_ranks_have_the_same_rungs(fresh: tuple[Net, AdaptiveStep]) -> None:
    """Two gloo processes; one alone has outliers, and one alone a gradient that is not finite."""
    model, step = fresh

    def run(rank: tuple[int]) -> dict[str, Any]:
        (mine,) = rank
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        rungs, states = [], []
        for at in range(30):
            torch.manual_seed(2 * at + mine)
            optimizer.zero_grad()
            outlier = (
                150.0 if mine and 10 <= at < 14 else float("inf") if mine and at == 24 else 3.0
            )
            step(*batch(2 * at + mine, outlier))
            for p in model.parameters():
                if p.grad is not None:
                    dist.all_reduce(p.grad, dist.ReduceOp.SUM)
            if at != 24:
                optimizer.step()
            rungs.append(step.rung)
            states.append(repr(step.state))
        total = sum(float(p.double().sum()) for p in model.parameters())
        others = [*step.rungs] if mine else [*step.rungs[:2]]
        other = code(lambda: AdaptiveStep(others, Rules(len(others), 0.1, 8)))
        return {"rungs": rungs, "states": states, "total": total, "other": other}

    with forked([(0,), (1,)], run) as (processes, answer):  # type: ignore[list-item,arg-type]
        for process in processes:
            process.join()
        first, second = answer(0), answer(1)
    assert first == second
    assert first["other"] == "FB0566"
    rungs = first["rungs"]
    assert rungs[9] == rungs[23] == "all int8"
    assert "exact" in rungs[10:14]
    assert rungs[24] == "exact"
