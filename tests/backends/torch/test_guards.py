"""A model that changed after its step was built is refused before anything runs."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_full_backward_hook

import remat_compile
from helpers.emitted.tiny import schedule
from remat_compile.backends.torch import GuardFailure, PlannedModule, RunPlannedAgain, build
from remat_compile.capture.torch import export, lower
from remat_compile.ir.diagnostics import FBError


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.drop = nn.Linear(4, 4), nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(4)
        self.kernel, self.calls = (1, 2), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        made: Tensor = self.norm(self.drop(self.lin(x)))
        return made


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = Inner(), nn.Linear(4, 4)
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.inner(x)) * self.scale
        return made


def planned(model: nn.Module, x: Tensor) -> PlannedModule:
    with lower(export(model, (x,))) as lowered:
        return build(lowered, schedule(lowered.program, ()))


def do_nothing(*_: Any) -> None:
    """A hook."""


CHANGES: dict[str, tuple[Callable[[Outer, nn.Module], object], str]] = {
    "a probability": (
        lambda m, _: setattr(m.inner.drop, "p", 0.1),
        r"inner\.drop\.p == 0\.5 no longer holds",
    ),
    "of the model": (
        lambda m, _: setattr(m, "scale", 3.0),
        r"scale == 2\.0 no longer holds \(test_guards\.py:\d+\)",
    ),
    "of the drop-in": (lambda _, c: setattr(c, "scale", 3.0), r"scale == 2\.0 no longer holds"),
    "dtype": (lambda _, c: c.inner.double(), r"tensor inner\.\S+ dtype mismatch"),
    "device": (lambda m, _: m.head.to("meta"), r"tensor head\.\S+ dispatch key set mismatch"),
    "a hook": (
        lambda m, _: m.head.register_forward_hook(do_nothing),
        r"not head\._forward_hooks no longer holds",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_refused_with_its_path_and_in_one_diagnostic(change: str) -> None:
    model, x = Outer(), torch.randn(3, 4)
    drop_in = planned(model, x)
    drop_in(x)
    apply, message = CHANGES[change]
    apply(model, drop_in)
    means = [t.clone() for t in model.buffers()]
    with pytest.raises(GuardFailure, match=message) as error:
        drop_in(x)
    assert [d.code for d in error.value.diagnostics] == ["FB0910"]
    assert all(torch.equal(a, b) for a, b in zip(means, model.buffers(), strict=True))


def test_what_is_put_back_runs_again() -> None:
    model, x = Outer(), torch.randn(3, 4)
    drop_in = planned(model, x)
    model.inner.drop.p = 0.0
    with pytest.raises(GuardFailure):
        drop_in(x)
    model.inner.drop.p = 0.5
    model.double().float()
    drop_in(x).sum().backward()
    assert model.head.weight.grad is not None


@pytest.mark.parametrize(
    "register", [register_module_forward_hook, register_module_full_backward_hook]
)
def test_a_hook_of_all_modules_is_refused(register: Callable[..., Any]) -> None:
    model, x = Outer(), torch.randn(3, 4)
    drop_in = planned(model, x)
    handle = register(do_nothing)
    try:
        with pytest.raises(GuardFailure, match="hooks of all modules were added"):
            drop_in(x)
    finally:
        handle.remove()
    drop_in(x)


def test_a_hook_that_takes_the_place_of_another_is_refused() -> None:
    model, x = Outer(), torch.randn(3, 4)
    handle = model.head.register_forward_hook(lambda _, __, made: made * 2)
    drop_in = planned(model, x)
    drop_in(x)
    handle.remove()
    model.head.register_forward_hook(lambda _, __, made: made * 3)
    with pytest.raises(GuardFailure, match=r"head\._forward_hooks"):
        drop_in(x)


def test_an_attribute_that_the_forward_changes_itself_is_no_reason() -> None:
    model, x = Outer(), torch.randn(3, 4)
    drop_in = planned(model, x)
    with torch.no_grad():
        drop_in(x)
    assert model.inner.calls == 1
    drop_in(x)


class Shaped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.lin(x).square().mean()
        return made


def steps(module: nn.Module, sizes: tuple[int, ...]) -> list[Tensor]:
    gradients = []
    for size in sizes:
        module.zero_grad()
        module(torch.full((size, 4), 0.5)).backward()
        gradients += [p.grad.clone() for p in module.parameters() if p.grad is not None]
    return gradients


@pytest.mark.parametrize("way", ["eager", "replan"])
def test_other_shapes_run_as_asked(way: Any) -> None:
    torch.manual_seed(0)
    model, x = Shaped(), torch.full((3, 4), 0.5)
    options: dict[str, Any] = {"activation_budget": "100%", "planner": "store-all"}
    drop_in = remat_compile.compile(model, (x,), on_change=way, **options)
    expected = steps(model, (3, 2, 5, 2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        actual = steps(drop_in, (3, 2, 5, 2))
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    assert sum("FB0913" in str(w.message) for w in caught) == (1 if way == "eager" else 0)
    model.lin.register_forward_hook(tripled)
    expected = steps(model, (3, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        actual = steps(drop_in, (3, 2))
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


def tripled(_: nn.Module, __: object, made: Tensor) -> Tensor:
    return made * 3


def test_on_new_shape_is_the_old_name() -> None:
    model, x = Shaped(), torch.full((3, 4), 0.5)
    drop_in = remat_compile.compile(
        model, (x,), on_new_shape="eager", activation_budget="100%", planner="store-all"
    )
    with pytest.warns(UserWarning, match="FB0913"):
        drop_in(x[:2])


def test_so_many_kinds_of_calls_are_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remat_compile.backends.torch.calls.on_change.MOST_PLANS", 2)
    model, x = Shaped(), torch.ones(3, 4)
    drop_in = planned(model, x)
    drop_in.planned_step.on_change = RunPlannedAgain(lambda m, args, _: planned(m, *args))
    drop_in(torch.ones(2, 4)).backward()
    with pytest.warns(UserWarning, match=r"FB0913.*float32\[5, 4\](.|\n)*at most 2 kinds"):
        drop_in(torch.ones(5, 4))
    drop_in(torch.ones(2, 4)).backward()


def test_a_shape_is_planned_once() -> None:
    model, x = Shaped(), torch.ones(3, 4)
    drop_in, other = planned(model, x), torch.ones(2, 4)
    asked = []

    def plan_again(_: nn.Module, args: tuple[Any, ...], __: dict[str, Any]) -> nn.Module:
        asked.append(args[0].shape)
        return planned(model, *args)

    drop_in.planned_step.on_change = RunPlannedAgain(plan_again)
    for _ in range(3):
        drop_in(other).backward()
    assert asked == [(2, 4)]


def test_a_way_with_shapes_that_does_not_exist_is_refused() -> None:
    with pytest.raises(FBError, match="replan") as error:
        remat_compile.compile(Shaped(), (torch.ones(3, 4),), on_new_shape="replam")  # type: ignore[arg-type]
    assert [d.code for d in error.value.diagnostics] == ["FB0707"]


class Watched(nn.Module):
    """Its forward registers a hook at its first call, as models of `transformers` do that return
    their hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.is_watched = nn.Linear(4, 4), False
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_watched:
            self.lin.register_forward_hook(lambda _m, _x, made: self.seen.append(made))
            self.is_watched = True
        self.seen.clear()
        self.lin(x)
        return self.seen[-1] * 2


def test_hooks_that_the_forward_registers_are_its_own() -> None:
    model, x = Watched(), torch.randn(3, 4)
    module = planned(model, x)
    assert not model.lin._forward_hooks, "capture leaves the model as it was"
    module(x).sum().backward()
    with torch.no_grad():
        module(x)  # the forward of the model itself
    assert module.lin._forward_hooks
    module(x).sum().backward()
    module(x).sum().backward()


# -- what Python can tell apart ------------------------------------------------------------


class Typed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.factor: float = 1
        self.weights, self.options = [1.0, 2.0], {"scale": 1.0}
        self.kept: list[Tensor] = []

    def forward(self, ids: Tensor, by: float) -> tuple[Tensor, Tensor]:
        by = by * self.weights[0] if self.weights[1] == 3.0 else by
        return self.embed(ids) * self.options["scale"], ids * by * self.factor


IDS = torch.arange(6)


@pytest.mark.parametrize(("sample", "then"), [(1, 1.0), (1, True), (2.0, 2), (0.0, -0.0)])
def test_a_number_of_another_type_or_sign_is_another(sample: float, then: float) -> None:
    with lower(export(Typed(), (IDS, sample))) as lowered:
        made = build(lowered, schedule(lowered.program, ()))
    made(IDS, sample)
    with pytest.raises(GuardFailure, match=f"argument 1 is {then!r}; the plan is for {sample!r}"):
        made(IDS, then)


def test_no_number_is_the_same_as_no_number() -> None:
    with lower(export(Typed(), (IDS, float("nan")))) as lowered:
        made = build(lowered, schedule(lowered.program, ()))
    made(IDS, float("nan"))


def test_what_is_added_later_is_no_change() -> None:
    model = Typed()
    with lower(export(model, (IDS, 1))) as lowered:
        made = build(lowered, schedule(lowered.program, ()))
    model.options["new"] = 2.0
    model.kept.append(IDS)
    model.weights = [1.0, 2.0]
    for _ in range(2):
        made(IDS, 1)


class Grows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin, self.losses, self.scales = nn.Linear(4, 4), [0.5], [2.0]

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.lin(x) * self.scales[0]
        return made


def test_a_list_that_no_forward_reads_may_grow() -> None:
    model, x = Grows(), torch.ones(2, 4)
    drop_in: Any = planned(model, x)
    for _ in range(3):
        drop_in.losses.append(drop_in(x).sum().item())
    assert len(model.losses) == 4
    model.scales.append(1.0)
    with pytest.raises(GuardFailure, match=r"len\(scales\) == 1 no longer holds"):
        drop_in(x)


def test_two_ways_in_flight_are_told_once() -> None:
    options: dict[str, Any] = {"activation_budget": "100%", "planner": "store-all"}
    sizes = [torch.ones(size, 4) for size in (3, 2, 5)]
    drop_in = remat_compile.compile(Shaped(), (sizes[0],), on_new_shape="replan", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in sizes:
            drop_in(x).backward()
        first = drop_in(sizes[0])
    with pytest.warns(UserWarning, match="second forward") as caught:
        losses = [first, *map(drop_in, sizes[1:])]
    assert len(caught) == 1
    sum(losses).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in sizes:
            drop_in(x).backward()


class Odd:
    """Raises where it is compared."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("not to be compared")

    __hash__ = None  # type: ignore[assignment]


def test_a_guard_that_raises_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Outer(), torch.randn(3, 4)
    drop_in = planned(model, x)
    model.inner.drop.p = Odd()  # type: ignore[assignment]
    with pytest.raises(GuardFailure, match="FB0910"):
        drop_in(x)


def test_another_interface_of_pytorch_leaves_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    guards = sys.modules["remat_compile.capture.guards.dynamo"]
    monkeypatch.setitem(guards.CANARY, "fullgraph_capture", ("frame",))
    model, x = Outer(), torch.randn(3, 4)
    with pytest.warns(UserWarning, match=r"FB0531.*another fullgraph_capture"):
        drop_in = remat_compile.compile(model, (x,), activation_budget="100%")
    drop_in(x).sum().backward()
    model.scale = 3.0  # other Python is fixed at the capture
    drop_in(x)
    for change in (model.inner.eval, lambda: model.head.weight.requires_grad_(False)):
        change()
        with pytest.raises(GuardFailure, match="FB0910"):
            drop_in(x)
        model.train().requires_grad_(True)
        drop_in(x)
    model.head.register_forward_hook(do_nothing)
    with pytest.raises(GuardFailure, match=r"head\._forward_hooks is 1 hooks"):
        drop_in(x)


def test_the_guards_leave_nothing_in_torchdynamo() -> None:
    from torch._dynamo import config, pgo

    model, x = Outer(), torch.randn(3, 4)
    before = config.skip_nnmodule_hook_guards, pgo._CODE_STATE
    export(model, (x,), guarded=True)
    assert (config.skip_nnmodule_hook_guards, pgo._CODE_STATE) == before
    assert model.inner.calls == 0
