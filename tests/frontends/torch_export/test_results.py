"""What a model returns: any container, one loss, and what is left out; against the original."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import remat_compile
from helpers.emitted.tiny import schedule
from helpers.slow import default_only
from remat_compile.backends.torch import PlannedModule, build, measure_step
from remat_compile.capture.torch import Wanted, check_against_eager, export, lower
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.semantics.simulate import simulate
from remat_compile.plans.compare.step import compare_step


class KVCache:
    """No tensor, no container: kept for generation, as `DynamicCache` is."""

    def __init__(self) -> None:
        self.keys: list[Tensor] = []


@dataclass
class Out:
    loss: Tensor | None = None
    logits: Tensor | None = None
    states: tuple[Tensor, ...] = ()
    past: KVCache | None = None


@dataclass(frozen=True)
class Frozen:
    logits: Tensor
    loss: Tensor
    kind: str = "frozen"


class ModelOutput(OrderedDict[str, Any]):
    """As `transformers` has it: keys are attributes as well, and PyTorch does not know it."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Registered(ModelOutput):
    pass


pytree.register_pytree_node(
    Registered,
    lambda out: (list(out.values()), list(out)),
    lambda parts, keys: Registered(zip(keys, parts, strict=True)),
    flatten_with_keys_fn=lambda out: (
        [(pytree.MappingKey(k), v) for k, v in out.items()],
        list(out),
    ),
    serialized_type_name="tests.Registered",
)


class Pair(NamedTuple):
    loss: Tensor
    logits: Tensor


class Net(nn.Module):
    """Gives what `wrap` makes of its loss, its logits and an inner state."""

    def __init__(self, wrap: Callable[[Tensor, Tensor, Tensor], Any], use_cache: bool = False):
        super().__init__()
        self.config = SimpleNamespace(use_cache=use_cache)
        self.wrap = wrap
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 64)

    def forward(self, x: Tensor) -> Any:
        state = self.first(x).tanh()
        logits = self.second(state)
        made = self.wrap(logits.square().mean(), logits, state)
        if self.config.use_cache:
            made["past_key_values"] = KVCache()
        return made


def cached(loss: Tensor, logits: Tensor, state: Tensor) -> Out:
    past = KVCache()
    past.keys.append(state * 2)
    return Out(loss, logits, (state,), past)


WITH_LOSS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    "dataclass with a cache": cached,
    "frozen dataclass": lambda loss, logits, _: Frozen(logits, loss),
    "dict": lambda loss, logits, state: {"logits": logits, "loss": loss, "all": [state, None]},
    "ModelOutput": lambda loss, logits, _: ModelOutput(loss=loss, logits=logits),
    "registered": lambda loss, logits, _: Registered(logits=logits, loss=loss),
    "named tuple": lambda loss, logits, _: Pair(loss, logits),
}


FORMS: dict[str, Callable[[Tensor, Tensor, Tensor], Any]] = {
    **WITH_LOSS,
    "tensor": lambda loss, logits, state: logits,
    "scalar": lambda loss, logits, state: loss,
    "tuple": lambda loss, logits, state: (logits, state),
    "list": lambda loss, logits, state: [loss, logits],
    "nested": lambda loss, logits, state: {"loss": loss, "all": ({"x": [logits]}, (state, 3))},
    "one without a gradient": lambda loss, logits, state: (logits, state.detach(), state > 0),
    "loss among several": lambda loss, logits, state: Out(loss * 2, logits, (state, logits + 1)),
    "one result twice": lambda loss, logits, state: {"a": logits, "b": logits, "c": loss},
    "no loss of that name": lambda loss, logits, state: {"total_loss": loss, "logits": logits},
}

DEFAULT = ("tensor", "nested", "one without a gradient", "one result twice", "no loss of that name")


@pytest.mark.parametrize("case", default_only(FORMS, DEFAULT))
@pytest.mark.filterwarnings("ignore")
def test_a_run_differentiates_in_eager_what_the_plan_does(case: str) -> None:
    torch.manual_seed(0)
    plan = remat_compile.plan(Net(FORMS[case]), (torch.randn(4, 8),), planner="store-all")
    assert plan._exported is not None
    report = compare_step(plan, plan.bind(), plan._exported, repeats=1)
    assert (report.bit_equal, report.max_difference) == (True, 0.0)
    assert report.tensors > 4
    assert report.measured_bytes <= plan.peak_bytes


@pytest.mark.filterwarnings("ignore")
def test_a_wrong_gradient_is_still_told() -> None:
    torch.manual_seed(0)
    plan = remat_compile.plan(Net(FORMS["named tuple"]), (torch.randn(4, 8),), planner="store-all")
    step, exported = plan.bind(), plan._exported
    assert exported is not None
    other = Net(lambda loss, logits, state: Pair(2 * loss - loss.detach(), logits))
    other.load_state_dict(exported.original.state_dict())
    report = compare_step(plan, step, replace(exported, original=other), repeats=1)
    assert not report.bit_equal
    assert report.max_difference > 0.1


def built(model: nn.Module, x: Tensor, **wanted: Any) -> PlannedModule:
    """The drop-in that stores everything, checked against the original."""
    exported = export(model, (x,), wanted=Wanted(**wanted))
    with lower(exported) as lowered:
        made = build(lowered, schedule(lowered.program, ()))
    check_against_eager(exported, lowered.program, lowered.values())
    return made


def gradients(model: nn.Module, loss: Tensor) -> list[Tensor | None]:
    model.zero_grad()
    loss.backward()
    return [p.grad for p in model.parameters()]


def loss_of(made: Any) -> Tensor:
    loss = made["loss"] if isinstance(made, dict) else made.loss
    assert isinstance(loss, Tensor)
    return loss


@pytest.mark.parametrize("case", WITH_LOSS)
def test_the_loss_is_found_and_the_container_is_the_models_own(case: str) -> None:
    torch.manual_seed(0)
    model, x = Net(WITH_LOSS[case]), torch.randn(4, 8)
    expected = model(x)
    wanted = gradients(model, loss_of(expected))
    drop_in = built(model, x)
    made = drop_in(x)
    assert type(made) is type(expected)
    logits = made["logits"] if isinstance(made, dict) else made.logits
    assert not logits.requires_grad
    assert torch.equal(
        logits, expected["logits"] if isinstance(expected, dict) else expected.logits
    )
    actual = gradients(model, loss_of(made))
    assert all(torch.equal(a, b) for a, b in zip(actual, wanted, strict=True))
    with pytest.raises(RuntimeError, match="does not have a grad_fn"):
        logits.sum().backward()


def test_what_is_not_the_loss_gets_no_tangent_and_no_memory_for_one() -> None:
    x = torch.randn(4, 8)
    peaks = {}
    for name, wrap in (
        ("alone", lambda loss, logits, state: loss),
        ("beside logits", lambda loss, logits, state: {"loss": loss, "logits": logits}),
    ):
        with lower(export(Net(wrap), (x,))) as lowered:
            program = lowered.program
        assert len(program.graph.loss.results) == 1
        peaks[name] = simulate(program, schedule(program, ())).peak_bytes
    assert peaks["beside logits"] <= peaks["alone"] + 4 * 4 * 64  # the logits themselves


def test_it_measures_as_predicted() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    use = measure_step(built(Net(cached), x), (x,))
    assert use.measured_bytes == use.predicted_bytes


def test_one_warning_says_what_is_detached_and_left_out() -> None:
    (warning,) = export(Net(cached), (torch.randn(4, 8),)).warnings
    assert warning.code == "FB0518"
    assert warning.message == (
        "only loss is differentiated: logits, states.0 carry no gradient; "
        "left out of what the step returns: past (KVCache)"
    )


def test_a_cache_is_turned_off_and_the_configuration_is_as_before() -> None:
    model, x = Net(WITH_LOSS["ModelOutput"], use_cache=True), torch.randn(4, 8)
    exported = export(model, (x,))
    assert model.config.use_cache is True
    assert "past_key_values (KVCache)" in exported.warnings[0].message
    assert set(built(model, x)(x)) == {"loss", "logits"}


def test_without_a_loss_every_result_is_differentiated() -> None:
    torch.manual_seed(0)
    model, x = Net(lambda _, logits, state: Out(logits=logits, states=(state,))), torch.randn(4, 8)
    expected = model(x)
    wanted = gradients(model, expected.logits.sum() + expected.states[0].exp().sum())
    made = built(model, x)(x)
    assert made.loss is None
    actual = gradients(model, made.logits.sum() + made.states[0].exp().sum())
    assert all(torch.equal(a, b) for a, b in zip(actual, wanted, strict=True))


@pytest.mark.parametrize(
    ("loss", "kept"),
    [
        ("a.total", [True, False, False]),
        ("b", [False, False, True]),
        (lambda out: out["a"]["total"] + out["b"].sum(), [True, False, True]),
    ],
)
def test_the_loss_is_chosen(loss: Any, kept: list[bool]) -> None:
    def wrap(total: Tensor, logits: Tensor, state: Tensor) -> Any:
        return {"a": {"total": total, "logits": logits}, "b": state}

    model, x = Net(wrap), torch.randn(4, 8)
    made = built(model, x, loss=loss)(x)
    assert [t.requires_grad for t in (*made["a"].values(), made["b"])] == kept


def test_an_element_of_a_tuple_is_the_loss() -> None:
    model, x = Net(lambda loss, logits, _: (logits, loss)), torch.randn(4, 8)
    logits, loss = built(model, x, loss=1)(x)
    assert (logits.requires_grad, loss.requires_grad) == (False, True)


def test_results_that_are_not_asked_for_are_none() -> None:
    model, x = Net(WITH_LOSS["frozen dataclass"]), torch.randn(4, 8)
    made = built(model, x, outputs=["loss"])(x)
    assert made.logits is None
    assert made.kind == "frozen"
    assert made.loss.requires_grad


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"loss": "los"}, "loss='los'.*no such tensor.*loss"),
        ({"outputs": ["logitz"]}, "outputs='logitz'"),
        ({"loss": lambda out: out.missing}, "cannot be called.*AttributeError"),
        ({"loss": lambda out: torch.ones(())}, "does not give a scalar"),
    ],
)
def test_a_choice_that_is_not_there_is_refused(wanted: Any, message: str) -> None:
    model = Net(WITH_LOSS["frozen dataclass"])
    with pytest.raises(FBError, match=message) as error:
        export(model, (torch.randn(4, 8),), wanted=Wanted(**wanted))
    assert [d.code for d in error.value.diagnostics] == ["FB0517"]


def test_a_choice_for_a_file_is_refused() -> None:
    with pytest.raises(FBError, match="a file was given") as error:
        remat_compile.plan("net.onnx", loss="loss")
    assert "FB0517" in [d.code for d in error.value.diagnostics]


def test_a_model_that_returns_no_tensor_is_refused_once() -> None:
    model = Net(lambda *_: KVCache())
    with pytest.raises(FBError, match="returns no tensor, but a KVCache") as error:
        export(model, (torch.randn(4, 8),))
    assert [d.code for d in error.value.diagnostics] == ["FB0507"]


def test_compile_and_bind_take_the_choice() -> None:
    torch.manual_seed(0)
    model, x = Net(lambda loss, logits, _: (logits, loss)), torch.randn(4, 8)
    plan = remat_compile.plan(model, (x,), loss=1, planner="store-all", activation_budget="100%")
    assert plan.bind(model, (x,), loss=1)(x)[1].requires_grad
    with pytest.raises(FBError, match="another graph"):
        plan.bind(model, (x,))


@torch.library.custom_op("remat_tests::add_one_in_place", mutates_args=("x",))
def add_one_in_place(x: Tensor) -> None:
    x.add_(1)


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        other = x.detach().clone()
        add_one_in_place(other)
        return x + other


def test_an_operator_outside_the_language_is_named_once_with_its_places() -> None:
    parts = [part for _ in range(5) for part in (nn.Linear(8, 8), InPlace())]
    exported = export(nn.Sequential(*parts), (torch.ones(4, 8),))
    with pytest.raises(FBError) as error, lower(exported):
        pass
    (diagnostic,) = error.value.diagnostics
    assert diagnostic.code == "FB0507"
    line = InPlace.forward.__code__.co_firstlineno + 2
    assert f'(test_results.py:{line} "1", ' in diagnostic.message
    assert diagnostic.message.endswith(" and 2 more)")


def test_a_wrong_graph_is_one_diagnostic() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6))), torch.randn(4, 8)
    exported = export(model, (x,))
    with lower(exported) as lowered:
        pass
    values = {name: t.detach() + 1 for name, t in lowered.values().items()}
    with pytest.raises(FBError, match="and 7 more than eager") as error:
        check_against_eager(exported, lowered.program, values)
    assert [d.code for d in error.value.diagnostics] == ["FB0512"]
