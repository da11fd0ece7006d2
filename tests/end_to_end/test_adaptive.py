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
LOG = "remat_compile.adaptive"
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


Ladder = tuple[Net, AdaptiveStep]


@pytest.fixture(scope="module")
def made() -> tuple[Net, AdaptiveStep, dict[str, Any]]:
    model = net()
    return model, ladder(model, ladder=BOTH), copy.deepcopy(model.state_dict())


@pytest.fixture
def fresh(made: tuple[Net, AdaptiveStep, dict[str, Any]]) -> Ladder:
    """The ladder at its beginning, with an int8 that is good enough and an int4 that is not."""
    model, step, state = made
    model.load_state_dict(state)
    model.zero_grad()
    step.state, step._rules = State(), Rules(3, 0.1, 32)
    return model, step


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


def twin(model: Net) -> Net:
    plain = net()
    plain.load_state_dict(copy.deepcopy(model.state_dict()))
    return plain


def saved(model: nn.Module, *others: Tensor) -> list[Tensor]:
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    held = *model.state_dict().values(), *grads, *others, torch.get_rng_state()
    return [t.nan_to_num(7) for t in held]


def equal(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return len(ours) == len(theirs) and all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("is_audited", [True, False])
def test_exact_plans_are_switched_freely(is_audited: bool) -> None:
    """Dropout, batch norm and the generator of the user: every bit is eager's."""
    model, plain = net(), net()
    asked = ({"activation_budget": "55%"}, {"planner": "store-all"}, {"codecs": "lossless"})
    plans: list[Any] = [remat_compile.compile(model, batch(), **(OPTIONS | each)) for each in asked]
    assert plans[0].planned_source != plans[1].planned_source
    step = AdaptiveStep([Rung(f"exact {n}", p) for n, p in enumerate(plans)], Rules(3, 0.1, 1))
    ours, theirs = trained(model, step, range(9)), trained(plain, eagerly(plain), range(9))
    ran = set()
    for at in range(9):
        if not is_audited:
            step.state = State(step=at, rung=at % 3, next_audit=99)
        ran.add(step.rung)
        mine = saved(model, next(ours))
        assert equal(mine, saved(plain, next(theirs))), at
    assert len(ran) == 3


@pytest.mark.parametrize(("tolerance", "usual"), [(0.1, "all int8"), (0.9, "all int4")])
@pytest.mark.parametrize("is_norm_seen", [True, False])
def test_outliers_are_met_and_left_again(
    tolerance: float,
    usual: str,
    is_norm_seen: bool,
    fresh: Ladder,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A channel grows fifty-fold at step 100, and shrinks at 200."""
    model, step = fresh
    if not is_norm_seen:  # then audits alone
        monkeypatch.setattr(rule, "LARGE_NORM", float("inf"))
    step._rules = Rules(3, tolerance, 32)
    rungs, intervals = [], []
    with caplog.at_level(logging.INFO, LOG):
        for _ in trained(model, step, range(260), lambda at: 150.0 if 100 <= at < 200 else 3.0):
            rungs.append(step.rung)
            intervals.append(step.state.interval)
    assert {*rungs[60:100]} == {usual}
    met = next(at for at in range(100, 260) if rungs[at] != usual)
    assert met == 100 if is_norm_seen else met <= 100 + intervals[99]
    assert usual not in rungs[met:200]
    again = next(at for at in range(200, 260) if rungs[at] == usual)
    assert again <= 200 + intervals[199] + 4  # two audits for each rung
    assert {*rungs[again:]} == {usual}
    told = [r.getMessage() for r in caplog.records if r.name == LOG]
    pairs = zip(["exact", *rungs], rungs, strict=False)
    switches = [
        f"step {n + 1} runs {b} in place of {a}" for n, (a, b) in enumerate(pairs) if a != b
    ]
    assert [line.split(":")[0] for line in told] == switches
    cause = next(line for line in told if line.startswith(f"step {met + 1} "))
    assert ("norm" if is_norm_seen else "error") in cause


def test_a_resumed_run_has_the_same_bits(fresh: Ladder) -> None:
    """60 steps are 30, a file, and 30 by a ladder that is made again."""
    model, step = fresh

    def outlier(at: int) -> float:
        return 150.0 if 15 <= at < 22 or 40 <= at < 45 else 3.0

    optimizer, rungs, losses = torch.optim.AdamW(model.parameters(), 1e-3), [], []
    file = io.BytesIO()
    for loss in trained(model, step, range(60), outlier, optimizer):
        losses.append(loss)
        rungs.append(step.rung)
        if len(losses) == 30:
            torch.save([step.state_dict(), model.state_dict(), optimizer.state_dict()], file)
    # Both rungs in both halves, and the lossy one between them.
    assert ({*rungs[:30]}, {*rungs[30:]}, rungs[29]) == (({"exact", "all int8"},) * 2) + (
        "all int8",
    )
    file.seek(0)
    ladder_state, model_state, optimizer_state = torch.load(file, weights_only=True)
    other = net()
    resumed = ladder(other, ladder=BOTH, most_steps=32)
    other.load_state_dict(model_state)
    optimizer = torch.optim.AdamW(other.parameters(), 1e-3)
    optimizer.load_state_dict(optimizer_state)
    resumed.load_state_dict(ladder_state)
    again = list(trained(other, resumed, range(30, 60), outlier, optimizer))
    assert equal(again, losses[30:])
    assert equal(saved(other), saved(model))
    assert resumed.state_dict() == step.state_dict()


def test_every_step_holds_the_budget() -> None:
    """Each one measured: steps of every rung, audits, switches, and steps that are repeated."""
    model, bad, seen = net(), (21, 22), {}
    budget = remat_compile.plan(model, batch(), **OPTIONS).baseline.peak_bytes * 9 // 10
    asked = {"activation_budget": None, "tolerance": 0.9, "most_steps": 4}
    step = ladder(model, ladder=BOTH, budget=budget, **asked)
    given = step.module.planned_step
    held = bytes_at_entries(given.program, given.schedule)[0]
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for at in range(40):
        optimizer.zero_grad()
        args = batch(at, float("inf") if at in bad else 3.0)
        kind = step.rung, step.state.is_audited
        _, use = measure_peak(lambda args=args: step(*args))  # type: ignore[misc]
        key = (*kind, step.rung != kind[0])
        seen[key] = max(seen.get(key, 0), held + use.peak_bytes_over_entry)
        if at not in bad:
            optimizer.step()
    assert 0.9 * budget < max(seen.values()) <= budget, seen
    assert {key[0] for key in seen} == {"exact", "all int8", "all int4"}
    assert {key[1:] for key in seen} == {(a, b) for a in (True, False) for b in (True, False)}


def test_a_step_that_is_not_finite_is_repeated_exactly(
    fresh: Ladder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The optimizer gets what eager gets; buffers and the generator go on as after one step."""
    model, step = fresh
    plain = twin(model)
    step.state = State(rung=1, next_audit=99)
    scaled = kernels._step
    monkeypatch.setattr(kernels, "_step", lambda x: torch.full_like(scaled(x), torch.nan))
    ours, theirs = trained(model, step, range(6)), trained(plain, eagerly(plain), range(6))
    for _ in range(6):  # the codec stays broken, and the exact plan stays
        mine = saved(model, next(ours))
        assert equal(mine, saved(plain, next(theirs)))
        assert step.rung == "exact"


@pytest.mark.parametrize(("rung", "next_audit"), [(0, 0), (1, 0), (1, 99)])
def test_a_batch_that_is_not_finite_gives_what_eager_gives(
    rung: int, next_audit: int, fresh: Ladder
) -> None:
    model, step = fresh
    plain = twin(model)
    x, *others = batch()
    x[3, 4], x[5, 6] = float("nan"), float("inf")
    step.state = State(rung=rung, next_audit=next_audit)
    results = []
    for run, of in ((step, model), (eagerly(plain), plain)):
        torch.manual_seed(4)
        results.append(saved(of, run(x, *others).nan_to_num(7)) + saved(of))
    assert equal(*results)
    assert step.rung == "exact"


def code(run: Callable[[], object]) -> str:
    with pytest.raises(FBError) as refused:
        run()
    assert all(d.hint for d in refused.value.diagnostics)
    return ", ".join(d.code for d in refused.value.diagnostics)


def test_a_step_is_whole(fresh: Ladder) -> None:
    """Neither switched nor begun again between its forward and the end of its backward."""
    model, step = fresh
    held, codes = step.state_dict(), []
    for run in (lambda: step.load_state_dict(held), step.state_dict, lambda: step(*batch())):
        handle = model.first.weight.register_hook(lambda _, run=run: codes.append(code(run)))
        step(*batch())
        handle.remove()
        model.zero_grad()
    assert {*codes} == {"FB0564"}
    assert len(codes) >= 3


def test_gradients_that_somebody_has_or_takes(fresh: Ladder) -> None:
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


def test_states_of_other_ladders(fresh: Ladder) -> None:
    _, step = fresh
    held = step.state_dict()
    states: list[Any] = [None, {}, {**held, "ladder": "?"}, {**held, "state": {"at": 3}}]
    states.append({**held, "state": {**held["state"], "rung": 3}})
    for each in states:
        assert code(lambda each=each: step.load_state_dict(each)) == "FB0566"  # type: ignore[misc]
    other = AdaptiveStep(step.rungs[:2], Rules(2, 0.1, 1))
    assert code(lambda: other.load_state_dict(held)) == "FB0566"
    step.load_state_dict(held)


@pytest.mark.parametrize(
    ("options", "codes"),
    [
        ({"activation_budget": "1KiB"}, "FB0562"),
        ({"activation_budget": None}, "FB0567"),
        ({"activation_budget": "least"}, "FB0567"),
        ({"budget": "1GiB", "tolerance": 0}, "FB0567, FB0567"),
        ({"tolerance": float("nan"), "ladder": ("int8",)}, "FB0567, FB0567"),
        ({"ladder": 7}, "FB0567"),
        ({"ladder": (("all", "int9"),)}, "FB0561"),
        ({"ladder": (("lossless", "int8"),)}, "FB0561"),
        ({"codecs": "all"}, "FB0723"),
        ({"outputs": ("y",)}, "FB0517"),
    ],
    ids=str,
)
def test_bad_requests(options: dict[str, Any], codes: str) -> None:
    assert code(lambda: ladder(net(), **options)) == codes


def test_a_model_that_does_not_give_its_loss() -> None:
    args = (nn.Linear(4, 4), (torch.randn(8, 4),))
    assert code(lambda: remat_compile.adaptive(*args, budget="1GiB", **OPTIONS)) == "FB0545"


def test_a_ladder_without_lossy_rungs_says_so() -> None:
    model = net()
    with pytest.warns(UserWarning, match="FB0563"):
        step = ladder(model, activation_budget="100%")
    list(trained(model, step, range(3)))
    assert step.rung == "exact"


def test_ranks_have_the_same_rungs(fresh: Ladder) -> None:
    """Two gloo processes; one alone has outliers, and one alone a gradient that is not finite."""
    model, step = fresh

    def run(rank: int) -> dict[str, Any]:
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        outliers = dict.fromkeys(range(10, 14), 150.0) | {24: float("inf")} if rank else {}
        told: list[Any] = []
        for at in range(30):
            torch.manual_seed(2 * at + rank)
            optimizer.zero_grad()
            step(*batch(2 * at + rank, outliers.get(at, 3.0)))
            for p in model.parameters():
                dist.all_reduce(p.grad)
            if at != 24:
                optimizer.step()
            told.append((step.rung, repr(step.state)))
        rungs = step.rungs[: 3 - rank]
        other = code(lambda: AdaptiveStep(rungs, Rules(len(rungs), 0.1, 8)))
        return {"told": told, "weight": model.last.weight.sum().item(), "other": other}

    with forked([0, 1], run) as (processes, answer):  # type: ignore[list-item, arg-type]
        for process in processes:
            process.join()
        first, second = answer(0), answer(1)
    assert first == second
    assert first["other"] == "FB0566"
    rungs = [rung for rung, _ in first["told"]]
    assert (rungs[9], rungs[23], rungs[24]) == ("all int8", "all int8", "exact")
    assert "exact" in rungs[10:14]
