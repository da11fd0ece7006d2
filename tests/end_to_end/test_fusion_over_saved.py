"""Steps whose backward writes over what the forward saved, where nobody else can see it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import remat_compile
from helpers.fused_plans import bound, check_step, needs_compiler
from remat_compile import FBError, Plan
from remat_compile.backends.torch import PlannedModule, measure_step
from remat_compile.backends.torch.private import are_private
from remat_compile.driver.plan_cache import VARIABLE

pytestmark = needs_compiler
BUILD = import_module("remat_compile.backends.torch.build")


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(128, 512, bias=False), nn.Linear(128, 512, bias=False)
        self.down = nn.Linear(512, 128, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gate = self.gate(x)
        return x + self.down(nn.functional.silu(gate) * self.up(x)), gate


class Stack(nn.Module):
    """Gated layers whose values inside take a MiB each. The caller gets a view of one that is saved
    for the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gates = []
        for layer in self.layers:
            x, gate = layer(x)
            gates.append(gate)
        return x, gates[1].view(8, 64, 512)


def sample(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Stack().to(dtype), torch.randn(512, 128, dtype=dtype, requires_grad=True)


def planned(dtype: torch.dtype = torch.float32) -> Plan:
    model, x = sample(dtype)
    return remat_compile.plan(
        model,
        (x,),
        fuse="inductor",
        loss=lambda outputs: outputs[0].square().sum() + outputs[1].sum(),
        planner="store-all",
    )


@pytest.fixture(scope="module")
def plan() -> Plan:
    return planned()


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What each backward since was told of the values that it would write over."""
    seen: list[bool] = []

    def asked(args: list[Any], places: list[int]) -> bool:
        assert places
        seen.append(are_private(args, places))
        return seen[-1]

    monkeypatch.setattr(BUILD, "are_private", asked)
    return seen


def wanted(step: nn.Module, x: Tensor) -> list[Tensor]:
    return [x, *step.parameters()]


def gradients(step: nn.Module, x: Tensor, **options: Any) -> list[Tensor]:
    y, gate = step(x)
    return [*torch.autograd.grad(y.square().sum() + gate.sum(), wanted(step, x), **options)]


def close(mine: list[Tensor], other: list[Tensor], limit: float = 1e-5) -> None:
    """Equal up to so much of the largest value."""
    for one, two in zip(mine, other, strict=True):
        assert float((one - two).abs().max()) <= limit * float(two.abs().max())


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_gradients_are_those_of_the_model(
    dtype: torch.dtype, limit: float, answers: list[bool]
) -> None:
    plan = planned(dtype)
    check_step(plan, limit)
    answers.clear()
    model, x = sample(dtype)
    step, eager = bound(plan), gradients(model, x)
    for _ in range(3):
        close(gradients(step, x), eager, limit)
    assert answers == [True] * 3


def test_a_kept_graph_is_left_as_it_is(plan: Plan, answers: list[bool]) -> None:
    step, (_, x) = bound(plan), sample()
    y, gate = step(x)
    loss = y.square().sum() + gate.sum()
    first, again = (torch.autograd.grad(loss, wanted(step, x), retain_graph=True) for _ in range(2))
    last = torch.autograd.grad(loss, wanted(step, x))
    assert answers == [False, False, True]
    assert all(map(torch.equal, first, again))
    close([*last], [*first])
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(loss, wanted(step, x))


def test_what_the_caller_has_is_as_it_was(plan: Plan, answers: list[bool]) -> None:
    """Arguments, parameters, results with their views, tangents: whoever else lies there."""
    step, (_, x) = bound(plan), sample()
    y, gate = step(x)
    tangents = [torch.randn_like(y), torch.randn_like(gate)]
    held = [x, *step.parameters(), y, gate, gate.detach().view(-1), *tangents]
    before = [t.detach().clone() for t in held]
    torch.autograd.grad([y, gate], wanted(step, x), tangents)
    assert answers == [True]
    assert all(map(torch.equal, held, before))


HOLDERS: dict[str, Callable[[Tensor], Any]] = {
    "the tensor": lambda t: t,
    "a view": lambda t: t[:1],
    "its data": lambda t: t.data,
    "its storage": lambda t: t.untyped_storage(),
    "an array": lambda t: t.numpy(),
    "a capsule": lambda t: t.__dlpack__(),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_somebody_holds_is_as_it_was(plan: Plan, holder: str, answers: list[bool]) -> None:
    """Of each saved value alone, one after the other."""
    step, (_, x) = bound(plan), sample()
    plain = gradients(step, x, retain_graph=True)
    for place in range(len(saved_by(step, x))):
        y, gate = step(x)
        loss = y.square().sum() + gate.sum()
        saved = step_node(y).saved_tensors
        value = saved[place]
        before, other = value.detach().clone(), value.untyped_storage().data_ptr()
        held = HOLDERS[holder](value.detach() if value.requires_grad else value)
        del saved, value
        close([*torch.autograd.grad(loss, wanted(step, x))], plain)
        if isinstance(held, Tensor):
            assert torch.equal(held, before[:1] if holder == "a view" else before)
        elif isinstance(held, torch.UntypedStorage):
            assert bytes(held[: before.nbytes]) == bytes(before.untyped_storage())
        assert other != 0
        del held
    assert answers[0] is False
    assert 0 < answers.count(False) - 1 < len(answers) - 1


def step_node(y: Tensor) -> Any:
    """The node that has saved the values of the step."""
    node: Any = y.grad_fn
    while not hasattr(node, "saved_tensors"):
        node = node.next_functions[0][0]
    return node


def saved_by(step: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    y, _ = step(x)
    saved: tuple[Tensor, ...] = step_node(y).saved_tensors
    return saved


@contextmanager
def keeping(kept: list[Tensor], unpack: Callable[[Any], Tensor]) -> Iterator[None]:
    """Hooks that remember each saved tensor in their own way."""

    def pack(value: Tensor) -> int:
        kept.append(value)
        return len(kept) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


@pytest.mark.parametrize("how", ["itself", "an array of NumPy"])
def test_what_hooks_keep_is_as_it_was(plan: Plan, how: str, answers: list[bool]) -> None:
    step, (_, x) = bound(plan), sample()
    plain = gradients(step, x, retain_graph=True)
    kept: list[Tensor] = []
    arrays: list[Any] = []

    def unpack(place: int) -> Tensor:
        value = kept[place]
        if how == "itself":
            return value
        arrays.append(value.detach().numpy().copy())
        return torch.from_numpy(arrays[-1])  # the array lies where the tensor does

    with keeping(kept, unpack):
        y, gate = step(x)
    before = [t.detach().clone() for t in kept]
    close([*torch.autograd.grad(y.square().sum() + gate.sum(), wanted(step, x))], plain)
    assert answers == [False, False]
    assert all(map(torch.equal, kept, before))
    changed = [a for a in arrays if not any(torch.equal(torch.from_numpy(a), b) for b in before)]
    assert not changed


def test_saved_on_the_host_and_made_again_by_checkpoint(plan: Plan) -> None:
    step, (_, x) = bound(plan), sample()
    plain = gradients(step, x)
    with torch.autograd.graph.save_on_cpu():
        close(gradients(step, x), plain)
    for reentrant in (False, True):
        y, gate = checkpoint(step, x, use_reentrant=reentrant)
        loss = y.square().sum() + gate.sum()
        if reentrant:  # which gives no gradients but by `backward`
            step.zero_grad()
            x.grad = None
            loss.backward()
            close([t.grad for t in wanted(step, x) if t.grad is not None], plain)
        else:
            close([*torch.autograd.grad(loss, wanted(step, x))], plain)


def test_parts_of_the_gradients(plan: Plan, answers: list[bool]) -> None:
    step, (model, x) = bound(plan), sample()
    for which in range(2):
        loss, other = step(x)[which].square().sum(), model(x)[which].square().sum()
        (mine,) = torch.autograd.grad(loss, [x])
        (theirs,) = torch.autograd.grad(other, [x])
        close([mine], [theirs])
    assert answers == [True, True]


def test_microbatches_in_flight(plan: Plan, answers: list[bool]) -> None:
    """Each has values of its own; in the order of the forwards and against it."""
    step, (_, x) = bound(plan), sample()
    given = [torch.randn_like(x).requires_grad_() for _ in range(3)]
    alone = [gradients(step, one) for one in given]
    for order in ((0, 1, 2), (2, 0, 1)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the bound covers one in flight
            made = [step(one) for one in given]
        for at in order:
            y, gate = made[at]
            loss = y.square().sum() + gate.sum()
            got = torch.autograd.grad(loss, wanted(step, given[at]))
            assert all(map(torch.equal, got, alone[at]))
    assert answers == [True] * 9


def test_one_graph_of_two_calls(plan: Plan) -> None:
    """The second reads what the first gave."""
    step, (model, x) = bound(plan), sample()

    def twice(module: nn.Module) -> list[Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y, gate = module(x)
            z, other = module(y)
        return [
            *torch.autograd.grad(z.sum() + gate.sum() + other.square().sum(), wanted(module, x))
        ]

    close(twice(step), twice(model))


def test_after_an_error_in_the_middle_nothing_is_read_again(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PyTorch has it: the values of a graph that is not kept are gone when a backward began."""
    step, (_, x) = bound(plan), sample()
    plain = gradients(step, x)
    y, gate = step(x)
    loss = y.square().sum() + gate.sum()
    run = step.planned_step.flight.unused
    with monkeypatch.context() as patched:

        def fail(_: object) -> None:
            raise OSError("stopped")

        patched.setattr(run, "leave_out", fail)
        with pytest.raises(OSError, match="stopped"):
            torch.autograd.grad(loss, wanted(step, x))
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(loss, wanted(step, x))
    assert all(map(torch.equal, gradients(step, x), plain))


class Separate(Stack):
    """Its results are tensors of their own, so that it needs nothing of AOTAutograd's wrappers."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            x, _ = layer(x)
        return x, x.square().mean()


@pytest.fixture(scope="module", params=["AOTAutograd's", "its own"])
def separate(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> PlannedModule:
    """A step in each kind of node."""
    with pytest.MonkeyPatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patched.setenv(VARIABLE, str(tmp_path_factory.mktemp("plans")))
        if request.param == "AOTAutograd's":
            patched.setattr("remat_compile._torch.joint.Joint.wrappers", lambda joint, _: joint)
        elif not import_module("remat_compile._torch.joint").HANDS_GRADIENTS_OVER:
            pytest.skip("this PyTorch holds gradients until a backward ends")
        model, x = Separate(), sample()[1]
        model.load_state_dict(sample()[0].state_dict())
        step = remat_compile.compile(
            model,
            (x,),
            fuse="inductor",
            loss=lambda outputs: outputs[0].sum() + outputs[1],
            planner="store-all",
        )
    assert isinstance(step, PlannedModule)
    assert step.planned_step.flight.is_begun_by_node == (request.param != "AOTAutograd's")
    return step


def test_each_kind_of_node_writes_over_what_nobody_else_holds(
    separate: PlannedModule, answers: list[bool]
) -> None:
    step, (stack, x) = separate, sample()
    model = Separate()
    model.load_state_dict(stack.state_dict())
    eager = torch.autograd.grad(sum(part.sum() for part in model(x)), wanted(model, x))
    for _ in range(2):
        close(gradients_of(step, x), [*eager])
    use = measure_step(step, (x,))
    assert use.measured_bytes == use.predicted_bytes
    assert answers == [True] * 3


def gradients_of(step: nn.Module, x: Tensor, **options: Any) -> list[Tensor]:
    return [*torch.autograd.grad(sum(part.sum() for part in step(x)), wanted(step, x), **options)]


def test_each_kind_of_node_leaves_as_it_is_what_somebody_holds(
    separate: PlannedModule, answers: list[bool]
) -> None:
    step, (_, x) = separate, sample()
    plain = gradients_of(step, x)
    y, mean = step(x)
    first, again = (
        torch.autograd.grad(y.sum() + mean, wanted(step, x), retain_graph=keeps)
        for keeps in (True, False)
    )
    close([*first], plain)
    close([*again], plain)
    kept: list[Tensor] = []
    with keeping(kept, lambda place: kept[place]):
        y, mean = step(x)
    before = [t.detach().clone() for t in kept]
    close([*torch.autograd.grad(y.sum() + mean, wanted(step, x))], plain)
    assert all(map(torch.equal, kept, before))
    assert answers == [True, False, True, False]


@pytest.mark.parametrize("how", ["is_grads_batched", "vmap"])
def test_a_batch_of_gradients_is_refused(separate: PlannedModule, how: str) -> None:
    """No kernel reads one; AOTAutograd has an error of its own for `vmap`."""
    step, (_, x) = separate, sample()
    y, _ = step(x)
    several = torch.ones(2, *y.shape)

    def asked() -> object:
        if how == "vmap":
            return torch.func.vmap(lambda one: torch.autograd.grad(y, [x], one)[0])(several)
        return torch.autograd.grad(y, [x], several, is_grads_batched=True)

    with pytest.raises(
        (FBError, RuntimeError), match=r"FB0910.*in a batch|compiled backward function within vmap"
    ):
        asked()
    assert len(gradients_of(step, x)) == len(wanted(step, x))


def test_where_that_cannot_be_asked_nothing_saved_is_written_over(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, answers: list[bool]
) -> None:
    step, (model, x) = bound(plan), sample()
    monkeypatch.setattr("remat_compile.backends.torch.private._is_graph_kept", None)
    close(gradients(step, x), gradients(model, x))
    assert answers == [False]
