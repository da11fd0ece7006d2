"""A model that changed after its step was built is refused before anything runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_full_backward_hook,
)

import remat_compile
from helpers.emitted.tiny import schedule
from remat_compile.backends.torch import GuardFailure, PlannedModule, RunPlannedAgain, build
from remat_compile.frontends.torch_export import export, lower
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
    "a probability": (lambda m, _: setattr(m.inner.drop, "p", 0.1), "inner.drop.p is 0.1, not 0.5"),
    "a tuple": (lambda m, _: setattr(m.inner, "kernel", (1, 3)), r"inner.kernel is \(1, 3\)"),
    "of the model": (lambda m, _: setattr(m, "scale", 3.0), "scale is 3.0, not 2.0"),
    "of the drop-in": (lambda _, c: setattr(c, "scale", 3.0), "scale is 3.0, not 2.0"),
    "removed": (lambda m, _: delattr(m.inner, "kernel"), "inner.kernel is gone"),
    "dtype": (
        lambda _, c: c.inner.double(),
        r"inner.lin.weight is float64\[4, 4\] on cpu.* 5 more",
    ),
    "a buffer": (
        lambda m, _: m.inner.norm.running_mean.resize_(5),
        r"running_mean is float32\[5\]",
    ),
    "device": (lambda m, _: m.head.to("meta"), "head.weight is .* on meta, not .* on cpu"),
    "a view of itself": (
        lambda m, _: setattr(m.head.weight, "data", m.head.weight.data[:2]),
        r"head.weight is float32\[2, 4\]",
    ),
    "another table": (
        lambda m, _: setattr(m, "head", nn.Linear(4, 8)),
        "submodule head .*replaced",
    ),
    "one more": (lambda m, _: m.inner.add_module("more", nn.ReLU()), "submodule inner.more"),
    "forward": (lambda m, _: setattr(m.head, "forward", do_nothing), "forward of module head"),
    "forward hook": (lambda m, _: m.head.register_forward_hook(do_nothing), "hooks of head"),
    "pre-hook": (lambda m, _: m.inner.register_forward_pre_hook(do_nothing), "hooks of inner"),
    "backward hook": (
        lambda m, _: m.inner.drop.register_full_backward_hook(do_nothing),
        "hooks of inner.drop",
    ),
    "backward pre-hook": (
        lambda m, _: m.head.register_full_backward_pre_hook(do_nothing),
        "hooks of head",
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
        with pytest.raises(GuardFailure, match="hooks of all modules"):
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
    with pytest.raises(GuardFailure, match="hooks of head"):
        drop_in(x)


def test_an_attribute_that_the_forward_changes_itself_is_no_reason() -> None:
    model, x = Outer(), torch.randn(3, 4)
    drop_in = planned(model, x)
    with torch.no_grad():
        drop_in(x)
    assert model.inner.calls == 1
    drop_in(x)


@pytest.mark.parametrize("before", [True, False])
def test_hooks_of_the_model_itself_fire_once_in_every_step(before: bool) -> None:
    torch.manual_seed(0)
    model, x = Outer(), torch.randn(3, 4, requires_grad=True)
    fired: list[str] = []

    def tripled(_: nn.Module, __: object, made: Tensor) -> Tensor:
        fired.append("forward")
        return made * 3

    def add_hooks() -> None:
        model.register_forward_pre_hook(lambda _, args: (args[0] * 2,))
        model.register_forward_hook(tripled)
        model.register_full_backward_hook(lambda *_: fired.append("backward"))

    if before:
        add_hooks()
    drop_in = planned(model, x)
    if not before:
        add_hooks()
    fired.clear()
    made = []
    for module in (model, drop_in):
        torch.manual_seed(1)
        module.zero_grad()
        out = module(x)
        out.sum().backward()
        made.append([out.detach(), *(p.grad.clone() for p in model.parameters())])
    assert fired == ["forward", "backward"] * 2
    assert all(torch.equal(a, b) for a, b in zip(*made, strict=True))


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
    drop_in = remat_compile.compile(model, (x,), on_new_shape=way, **options)
    expected = steps(model, (3, 2, 5, 2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        actual = steps(drop_in, (3, 2, 5, 2))
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
    assert sum("FB0913" in str(w.message) for w in caught) == (1 if way == "eager" else 0)
    for other in (x.double(), x.clone().requires_grad_()):
        with pytest.raises(GuardFailure):
            drop_in(other)
    model.lin.register_forward_hook(do_nothing)
    with pytest.raises(GuardFailure, match="hooks of lin"):
        drop_in(torch.full((2, 4), 0.5))


def test_a_shape_is_planned_once() -> None:
    model, x = Shaped(), torch.ones(3, 4)
    drop_in, other = planned(model, x), torch.ones(2, 4)
    asked = []

    def plan_again(_: nn.Module, args: tuple[Any, ...], __: dict[str, Any]) -> nn.Module:
        asked.append(args[0].shape)
        return planned(model, *args)

    drop_in.planned_step.on_new_shape = RunPlannedAgain(plan_again)
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
    module.lin.register_forward_hook(do_nothing)
    with pytest.raises(GuardFailure, match="hooks of lin were added or removed"):
        module(x)


@dataclass
class Scaled:
    """A hook that is not hashable."""

    by: float

    def __call__(self, _: nn.Module, __: object, made: Tensor) -> Tensor:
        return made * self.by


def test_a_hook_need_not_be_hashable() -> None:
    model, x = Outer(), torch.randn(3, 4)
    model.head.register_forward_hook(Scaled(2.0))
    drop_in = planned(model, x)
    drop_in(x)
    model.head.register_forward_hook(Scaled(2.0))
    with pytest.raises(GuardFailure, match="hooks of head"):
        drop_in(x)


def scale(module: nn.Module, by: float) -> None:
    module.register_forward_hook(lambda _, __, made: made * by)


class HooksItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if not self.lin._forward_hooks:
            scale(self.lin, 2.0)
        made: Tensor = self.lin(x)
        return made


def test_a_hook_by_the_same_line_with_another_number_is_refused() -> None:
    model, x = HooksItself(), torch.randn(3, 4)
    drop_in = planned(model, x)
    assert torch.equal(drop_in(x), model(x))
    assert torch.equal(drop_in(x), model(x))  # has the hook of its own now
    scale(model.lin, 3.0)
    with pytest.raises(GuardFailure, match="hooks of lin"):
        drop_in(x)


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


HELD: dict[str, tuple[Callable[[Typed], object], str]] = {
    "a type": (lambda m: setattr(m, "factor", 1.0), "factor is 1.0, not 1,"),
    "in a list": (lambda m: m.weights.__setitem__(1, 3.0), r"weights is \[1.0, 3.0\], not"),
    "a longer list": (lambda m: m.weights.append(3.0), r"weights is \[1.0, 2.0, 3.0\], not"),
    "another list": (lambda m: setattr(m, "weights", [1.0, 3.0]), "weights is"),
    "in a dictionary": (lambda m: m.options.update(scale=2.0), r"options is \{'scale': 2.0\}, not"),
}


@pytest.mark.parametrize("change", HELD)
def test_what_a_container_of_a_module_holds_is_refused(change: str) -> None:
    edit, says = HELD[change]
    model = Typed()
    with lower(export(model, (IDS, 1))) as lowered:
        made = build(lowered, schedule(lowered.program, ()))
    made(IDS, 1)
    edit(model)
    with pytest.raises(GuardFailure, match=says):
        made(IDS, 1)


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
    with pytest.raises(GuardFailure, match=r"scales is \[2.0, 1.0\], not \[2.0\]"):
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
