"""`compile(optimizer=)`: the bits of ordinary training, wherever parameters and states are."""

from __future__ import annotations

import copy
import io
import pickle
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, Optimizer, RMSprop
from torch.optim.optimizer import register_optimizer_step_pre_hook

import remat_compile
from helpers.networks.llama import Llama
from helpers.networks.transformers import GPT
from helpers.planners.homed_updates import HomedUpdates
from remat_compile import FBError
from remat_compile.backends.torch import TrainingStep, measure_step
from remat_compile.backends.torch.runtime import PlanCopies
from remat_compile.backends.torch.runtime.cpu import ThreadEngine
from remat_compile.capture.torch import export
from remat_compile.capture.torch.optimizer import OptimizerUpdates, updates_of
from remat_compile.ir.schedule import Compute
from remat_compile.plans.bind import bind
from remat_compile.verifier import ProvenPlan, verify

Make = Callable[[nn.Module], Optimizer]


class Net(nn.Module):
    """Tied weights, dropout, buffers that the forward updates; its result is the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        parts = nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 16), nn.BatchNorm1d(8)
        self.net = nn.Sequential(*parts)
        self.head = nn.Linear(16, 50)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(self.net(self.embed(x)))
        return nn.functional.cross_entropy(y.flatten(0, 1), x.flatten())


def batch(seed: int) -> Tensor:
    return torch.randint(0, 50, (4, 8), generator=torch.Generator().manual_seed(seed))


def of(kind: type[Optimizer], **numbers: Any) -> Make:
    """Two groups, of which one has half of the learning rate."""

    def make(model: nn.Module) -> Optimizer:
        parameters = list(model.parameters())
        slow = {"params": parameters[3:], "lr": numbers["lr"] / 2}
        return kind([{"params": parameters[:3]}, slow], **numbers)  # type: ignore[arg-type]

    return make


ADAMW = of(AdamW, lr=1e-2, weight_decay=0.1)


def compiled(make: Make, *sides: str, **more: Any) -> tuple[nn.Module, Optimizer, TrainingStep]:
    torch.manual_seed(0)
    model = Net()
    optimizer = make(model)
    options: dict[str, Any] = {"planner": HomedUpdates(sides), "link": "1GB/s"} if sides else {}
    step = remat_compile.compile(model, (batch(0),), optimizer=optimizer, **options, **more)
    assert isinstance(step, TrainingStep)
    return model, optimizer, step


def ordinary(
    model: nn.Module, optimizer: Optimizer, x: Tensor, norm: float | None = None
) -> Tensor:
    loss: Tensor = model(x)
    loss.backward()  # type: ignore[no-untyped-call]
    if norm is not None:
        before = nn.utils.clip_grad_norm_(model.parameters(), norm, foreach=False)
        assert (before > norm) == (norm < 1)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def assert_same(ours: Any, theirs: Any) -> None:
    """Equal to the bit: nested states."""
    if isinstance(theirs, Tensor):
        assert torch.equal(ours, theirs)
    elif isinstance(theirs, dict):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert_same(ours[key], value)
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    else:
        assert ours == theirs


Trained = tuple[nn.Module, Optimizer]


def twin_of(make: Make) -> Trained:
    """The model as `compiled` makes it, and its optimizer."""
    torch.manual_seed(0)
    other = Net()
    return other, make(other)


def train_alike(
    step: nn.Module,
    ours: Trained,
    theirs: Trained,
    seeds: Sequence[int],
    norm: float | None = None,
    given: Callable[[int], Tensor] = batch,
) -> None:
    """Losses, parameters, buffers and states equal those of ordinary training after each step."""
    for seed in seeds:
        torch.manual_seed(seed)
        loss = step(given(seed))
        torch.manual_seed(seed)
        assert torch.equal(loss, ordinary(*theirs, given(seed), norm))
        assert_same(dict(ours[0].state_dict()), dict(theirs[0].state_dict()))
        assert_same(ours[1].state_dict(), theirs[1].state_dict())
        assert all(p.grad is None for p in ours[0].parameters())


CASES: list[tuple[str, Make, tuple[str, ...]]] = [
    ("adamw", ADAMW, ()),
    ("adamw fused", of(AdamW, lr=1e-2, fused=True), ("home",)),
    ("adam amsgrad", of(Adam, lr=1e-3, amsgrad=True), ("host",)),
    ("sgd momentum", of(SGD, lr=0.1, momentum=0.9), ("device", "host", "home")),
    ("sgd", of(SGD, lr=0.1), ("host",)),
    ("rmsprop", of(RMSprop, lr=1e-3, momentum=0.5), ("home",)),
    ("adagrad", of(Adagrad, lr=1e-2, initial_accumulator_value=0.1), ("host", "home")),
]


@pytest.mark.parametrize(("make", "sides"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_the_bits_of_ordinary_training(make: Make, sides: tuple[str, ...]) -> None:
    """Losses, parameters, buffers and the optimizer's state, after each step."""
    model, optimizer, train = compiled(make, *sides)
    twin = twin_of(make)
    rates = [torch.optim.lr_scheduler.StepLR(o, 2, 0.5) for o in (optimizer, twin[1])]
    for index in range(5):
        train_alike(train, (model, optimizer), twin, [index])
        for rate in rates:
            rate.step()
    plan = train.module.planned_step
    runs = [step for step in plan.schedule.steps if isinstance(step, Compute)]
    cnode, anode = plan.program.graph.cnode, plan.program.graph.anode
    updates = [run for run in runs if cnode[run.cnode].is_update]
    ended = [old for run in updates for old, _ in cnode[run.cnode].takes_over]
    assert sum(anode[old].kind == "param" for old in ended) == len(list(model.parameters()))
    assert any(run.on_host for run in updates) == ("host" in sides)
    assert bool(plan.schedule.homes) == bool({*sides} - {"device"})


@pytest.mark.parametrize("sides", [("home",), ("host",), ("host", "home", "device")])
def test_late_copies_and_late_updates_change_nothing(
    monkeypatch: pytest.MonkeyPatch, sides: tuple[str, ...]
) -> None:
    """Gradients that arrive late on the host, and an optimizer that is slow there."""
    model, optimizer, train = compiled(ADAMW, *sides)
    copies = train.module.planned_step.copies
    assert copies is not None
    monkeypatch.setattr(copies.engine, "delay", lambda direction, _: 0.02 * (direction == "d2h"))
    run, main = OptimizerUpdates.run, threading.main_thread()

    def late(self: OptimizerUpdates, name: str, tensors: Sequence[Tensor]) -> None:
        if threading.current_thread() is not main:
            time.sleep(0.03)
        run(self, name, tensors)

    monkeypatch.setattr(OptimizerUpdates, "run", late)
    train_alike(train, (model, optimizer), twin_of(ADAMW), range(2))


@pytest.mark.parametrize(("norm", "sides"), [(0.05, ()), (1e6, ("host",))])
def test_gradients_are_clipped_as_by_pytorch(norm: float, sides: tuple[str, ...]) -> None:
    """Where the norm is above, and where it is below."""
    model, optimizer, train = compiled(ADAMW, *sides, max_grad_norm=norm)
    train_alike(train, (model, optimizer), twin_of(ADAMW), range(3), norm)


def test_a_plan_of_a_training_step_is_bound_to_its_optimizer(tmp_path: Path) -> None:
    """A plan that was written and read trains as well, and not without an optimizer."""
    torch.manual_seed(0)
    model = Net()
    optimizer = ADAMW(model)
    plan = remat_compile.plan(model, (batch(0),), optimizer=optimizer)
    plan.save(tmp_path / "step.fbir")
    read = remat_compile.load(tmp_path / "step.fbir")
    code, message = codes(lambda: read.bind(model, (batch(0),)))
    assert (code, message) == ("FB0547", "the plan updates parameters, and no optimizer is given")
    assert read.check_model(model, (batch(0),)).assumption == (
        "graph compared with model Net: same text; updates of the optimizer not compared"
    )
    assert not optimizer.state
    train = read.bind(model, (batch(0),), optimizer=optimizer)
    other = copy.deepcopy(model)
    stepper = ADAMW(other)
    train_alike(train, (model, optimizer), (other, stepper), range(2))


@pytest.mark.parametrize("blocks", [(100, 1000), (1,)], ids=["in pieces", "not aligned"])
def test_gradients_on_the_host_lie_anywhere(
    monkeypatch: pytest.MonkeyPatch, blocks: tuple[int, ...]
) -> None:
    """In several blocks, as pinned memory has them, and behind an odd number of bytes."""

    def memory(_: ThreadEngine, size: int) -> tuple[Tensor, ...]:
        first, *others = torch.empty(size + 1, dtype=torch.uint8).split(
            (*blocks, size + 1 - sum(blocks))
        )
        return (first, *others) if others[1:] else (*others,)

    monkeypatch.setattr(ThreadEngine, "host_memory", memory)
    model, optimizer, step = compiled(ADAMW, "host")
    train_alike(step, (model, optimizer), twin_of(ADAMW), range(2))


@pytest.mark.parametrize("sides", [(), ("home", "host")], ids=["device", "host"])
def test_a_checkpoint_goes_on_where_it_was(sides: tuple[str, ...]) -> None:
    """In a new process, and in the same one, which goes back to it."""
    model, optimizer, step = compiled(ADAMW, *sides)
    for index in range(2):
        step(batch(index))
    file = io.BytesIO()
    torch.save({"model": step.state_dict(), "optimizer": optimizer.state_dict()}, file)

    def losses(step: TrainingStep) -> list[Tensor]:
        torch.manual_seed(7)
        return [step(batch(index)) for index in range(2, 5)]

    wanted = losses(step)
    file.seek(0)
    saved = torch.load(file)
    for m, o, s in ((model, optimizer, step), compiled(ADAMW, *sides)):
        m.load_state_dict(saved["model"])
        o.load_state_dict(copy.deepcopy(saved["optimizer"]))
        assert_same(losses(s), wanted)


@pytest.mark.parametrize("sides", [(), ("home",), ("host", "device")])
def test_the_module_evaluates_with_what_was_trained(sides: tuple[str, ...]) -> None:
    model, _, step = compiled(ADAMW, *sides)
    before = copy.deepcopy(model)
    step(batch(0))
    with torch.no_grad():
        assert torch.equal(step.module.eval()(batch(1)), model.eval()(batch(1)))
        assert not torch.equal(model(batch(1)), before.eval()(batch(1)))


@pytest.mark.parametrize("sides", [(), ("home",), ("host",), ("device", "home", "host")])
def test_the_measured_peaks_are_the_proven_ones(sides: tuple[str, ...]) -> None:
    """Temporaries of the optimizer on the device among them."""
    _, _, train = compiled(of(Adam, lr=1e-3), *sides)
    plan = train.module.planned_step
    proven = verify(plan.program, plan.schedule)
    assert isinstance(proven, ProvenPlan)
    train(batch(0))
    use = measure_step(train.module, (batch(1),))
    assert use.measured_bytes == use.predicted_bytes == proven.proven.device_bytes
    assert use.forward_measured_bytes == use.forward_predicted_bytes
    assert use.host_measured_bytes == proven.proven.host_bytes
    assert (use.host_measured_bytes > 0) == bool(sides)


def codes(run: Callable[[], object]) -> tuple[str, str]:
    """Code and message of the one diagnostic, which has a way out."""
    with pytest.raises(FBError) as refused:
        run()
    (diagnostic,) = refused.value.diagnostics
    assert diagnostic.hint
    return diagnostic.code, diagnostic.message


def small(**options: Any) -> Callable[[], object]:
    model = options.pop("model", None) or Net()
    make = options.pop("make", ADAMW)
    return lambda: remat_compile.compile(model, (batch(0),), optimizer=make(model), **options)


def test_optimizers_that_are_not_planned() -> None:
    nadam = small(make=lambda model: NAdam(model.parameters()))
    assert codes(nadam) == ("FB0541", "the step of torch.optim.nadam.NAdam cannot be planned")

    class Mine(SGD):
        pass

    code, message = codes(small(make=lambda model: Mine(model.parameters(), lr=0.1)))
    assert code == "FB0541"
    assert "Mine" in message

    def hooked(model: nn.Module) -> Optimizer:
        optimizer = SGD(model.parameters(), lr=0.1)
        optimizer.register_step_post_hook(lambda *_: None)
        return optimizer

    code, message = codes(small(make=hooked))
    assert code == "FB0541"
    assert "hooks" in message


def test_parameters_of_another_model() -> None:
    code, message = codes(small(make=lambda _: SGD(nn.Linear(7, 3).parameters(), lr=0.1)))
    assert (code, message) == (
        "FB0542",
        "the optimizer has a parameter [3, 7] that the model has not",
    )


def test_a_parameter_that_the_optimizer_has_twice() -> None:
    """PyTorch only warns of one twice in a group, and updates it twice."""

    def twice(model: nn.Module) -> Optimizer:
        parameters = [*model.parameters()]
        with pytest.warns(UserWarning, match="duplicate"):
            return SGD([*parameters, parameters[0]], lr=0.1)

    def in_two_groups(model: nn.Module) -> Optimizer:
        optimizer = SGD(model.parameters(), lr=0.1)
        optimizer.param_groups += [{**optimizer.param_groups[0], "params": [*model.parameters()]}]
        return optimizer

    for make in (twice, in_two_groups):
        code, message = codes(small(make=make))
        assert (code, message) == (
            "FB0542",
            "the optimizer has embed.weight twice, and would update it twice in a step",
        )


def test_states_that_are_none_of_a_first_step() -> None:
    dampened = of(SGD, lr=0.1, momentum=0.9, dampening=0.5)
    code, message = codes(small(make=dampened))
    assert code == "FB0543"
    assert "dampening" in message

    def torn(model: nn.Module) -> Optimizer:
        optimizer = ADAMW(model)
        ordinary(model, optimizer, batch(0))
        optimizer.state[next(model.parameters())]["exp_avg"] = torch.zeros(2)
        return optimizer

    code, message = codes(small(make=torn))
    assert code == "FB0543"
    assert re.match(r"the optimizer's exp_avg of embed.weight is not a tensor like", message)

    def stepped(model: nn.Module) -> Optimizer:
        optimizer = dampened(model)
        ordinary(model, optimizer, batch(0))
        return optimizer

    torch.manual_seed(0)
    model = Net()
    optimizer = stepped(model)
    other = copy.deepcopy(model)
    stepper = dampened(other)
    stepper.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step = remat_compile.compile(model, (batch(0),), optimizer=optimizer)
    train_alike(step, (model, optimizer), (other, stepper), [3])


def test_an_optimizer_that_changed_since() -> None:
    model, optimizer, step = compiled(ADAMW)
    first = next(model.parameters())
    first.grad = torch.zeros_like(first)
    code, message = codes(lambda: step(batch(0)))
    assert code == "FB0544"
    assert "has a gradient already" in message
    optimizer.zero_grad()
    before = copy.deepcopy(model.state_dict())
    own = optimizer.state.pop(first)
    code, message = codes(lambda: step(batch(0)))
    assert code == "FB0544"
    assert "is gone" in message
    assert_same(dict(model.state_dict()), dict(before))
    optimizer.state[first] = own
    hook = first.register_post_accumulate_grad_hook(lambda parameter: None)
    code, message = codes(lambda: step(batch(0)))
    assert (code, message) == (
        "FB0544",
        "a parameter has hooks, which a planned step would not run",
    )
    hook.remove()
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    code, message = codes(lambda: step(batch(0)))
    assert (code, message) == ("FB0544", "the optimizer has other groups of parameters than it had")


def test_a_parameter_that_the_optimizer_does_not_update() -> None:
    """One put into the model after it was compiled, and a copy of the whole step."""
    model, _, step = compiled(ADAMW)
    twin = copy.deepcopy(step)
    model.head.bias = nn.Parameter(torch.zeros(50))  # type: ignore[union-attr,assignment]
    before = copy.deepcopy(model.state_dict())
    for one, names in ((step, "head.bias"), (twin, "embed.weight")):
        code, message = codes(lambda one=one: one(batch(0)))  # type: ignore[misc]
        assert code == "FB0544"
        assert message.startswith(f"{names} is another tensor than the optimizer updates")
    assert_same(dict(model.state_dict()), dict(before))


@pytest.mark.parametrize("sides", [(), ("home",)])
def test_a_backward_of_ones_own_is_refused(sides: tuple[str, ...]) -> None:
    """As under a scaler; nothing is updated, and the next step is right."""
    model, optimizer, step = compiled(ADAMW, *sides)
    before = copy.deepcopy(dict(model.named_parameters()))
    scaler = torch.amp.GradScaler("cpu")
    loss = scaler.scale(step.module(batch(0)))
    code, message = codes(lambda: loss.backward())
    assert (code, "outside of its training step" in message) == ("FB0550", True)
    assert_same(dict(model.named_parameters()), before)
    other, stepper = twin_of(ADAMW)
    other.load_state_dict(model.state_dict())
    train_alike(step, (model, optimizer), (other, stepper), [1])


def test_scaled_micro_batches_without_the_optimizer_in_the_plan() -> None:
    """The way out that the refusals name: the bits of eager, and a skipped update."""
    model, other = Net(), Net()
    other.load_state_dict(model.state_dict())
    ours = remat_compile.compile(model, (batch(0),), grads="accumulate", planner="store-all")
    trained = []
    for run, held in ((ours, model), (other, other)):
        optimizer = ADAMW(held)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for index in range(3):
            for part in range(2):
                torch.manual_seed(2 * index + part)
                loss = run(batch(2 * index + part))
                scaler.scale(loss * (torch.inf if index == 1 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        trained.append((dict(held.state_dict()), optimizer.state_dict(), scaler.get_scale()))
    assert_same(trained[0][0], trained[1][0])
    assert_same(trained[0][1], trained[1][1])
    assert trained[0][2] == trained[1][2] == 512.0


def test_nothing_is_under_way_behind_a_step_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first update fails while slow ones wait in its thread. The next step is right."""
    model, optimizer, step = compiled(ADAMW, "host")
    train_alike(step, (model, optimizer), twin_of(ADAMW), [0])
    run, names = OptimizerUpdates.run, []

    def failing(self: OptimizerUpdates, name: str, tensors: Sequence[Tensor]) -> None:
        names.append(name)
        if len(names) == 1:
            raise RuntimeError("out of luck")
        time.sleep(0.05)
        run(self, name, tensors)

    with monkeypatch.context() as patched:
        patched.setattr(OptimizerUpdates, "run", failing)
        with pytest.raises(FBError, match=r"FB0952.*the update of .* failed: out of luck") as lost:
            step(batch(1))
    after, ran = copy.deepcopy((model.state_dict(), optimizer.state_dict())), len(names)
    assert ran > 1
    time.sleep(0.3)
    assert len(names) == ran
    assert_same([dict(model.state_dict()), optimizer.state_dict()], [dict(after[0]), after[1]])
    assert all(p.grad is None for p in model.parameters())
    other, stepper = twin_of(ADAMW)
    other.load_state_dict(after[0])
    stepper.load_state_dict(copy.deepcopy(after[1]))
    train_alike(step, (model, optimizer), (other, stepper), [2, 3])
    assert "checkpoint" in str(lost.value)  # and it is alive until here


@pytest.mark.parametrize("sides", [(), ("home", "host")], ids=["device", "host"])
def test_threads_train_one_after_the_other(sides: tuple[str, ...]) -> None:
    """As many steps as calls, with the bits of so many ordinary ones."""
    torch.manual_seed(0)
    model = WithLoss(GPT(layers=1))
    other = copy.deepcopy(model)
    optimizer, stepper = ADAMW(model), ADAMW(other)
    options: dict[str, Any] = {"planner": HomedUpdates(sides), "link": "1GB/s"} if sides else {}
    step = remat_compile.compile(model, (ids(0),), optimizer=optimizer, **options)
    failed: list[Exception] = []

    def train() -> None:
        try:
            step(ids(0))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=train) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    for _ in threads:
        ordinary(other, stepper, ids(0))
    assert_same(dict(model.state_dict()), dict(other.state_dict()))
    assert_same(optimizer.state_dict(), stepper.state_dict())


def test_a_step_is_not_pickled() -> None:
    """Loaded again it would have no plan; the model itself and both states are saved."""
    model, optimizer, step = compiled(ADAMW, "home")
    step(batch(0))
    assert codes(lambda: pickle.dumps(step))[0] == "FB0950"
    assert codes(lambda: torch.save(step, io.BytesIO()))[0] == "FB0950"
    saved = io.BytesIO()
    torch.save((model, optimizer.state_dict()), saved)
    saved.seek(0)
    again, state = torch.load(saved, weights_only=False)
    assert_same(dict(again.state_dict()), dict(model.state_dict()))
    assert_same(state, optimizer.state_dict())


def test_hooks_that_come_later_are_refused() -> None:
    """Hooks of the optimizer itself, and those of all optimizers."""
    _, optimizer, step = compiled(ADAMW)
    for register in (optimizer.register_step_pre_hook, register_optimizer_step_pre_hook):
        hook = register(lambda *_: None)
        code, message = codes(lambda: step(batch(0)))
        hook.remove()
        assert (code, "hooks around its step" in message) == ("FB0544", True)
    step(batch(0))


@pytest.mark.parametrize(
    ("options", "few"),
    [
        ({}, True),
        ({"budget": "100%"}, True),
        ({"budget": "80%", "planner": "dtr"}, False),
        ({"planner": "zero-offload", "link": "1GB/s"}, False),
    ],
)
def test_the_optimizer_is_called_as_seldom_as_memory_allows(options: Any, few: bool) -> None:
    """A short step calls it once where gradients may wait; a bound one and homes have pieces."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(8)), nn.Flatten(0))
    optimizer = SGD(model.parameters(), lr=0.1)
    plan = remat_compile.plan(
        nn.Sequential(model, Mean()), (torch.ones(4, 64),), optimizer=optimizer, **options
    )
    updates = [c for c in plan.graph.cnodes if c.is_update]
    assert (len(updates) == 1) if few else (len(updates) > 4)


@pytest.mark.parametrize("norm", [None, 0.5])
def test_the_updates_of_a_plan_are_compared_with_the_optimizer(norm: float | None) -> None:
    model = Net()
    plan = remat_compile.plan(model, (batch(0),), optimizer=ADAMW(model), max_grad_norm=norm)

    def check(make: Make, **more: Any) -> str:
        seen = plan.check_model(model, (batch(0),), optimizer=make(model), **more)
        return seen.assumption.rpartition(": ")[2]

    assert check(ADAMW, max_grad_norm=norm) == "same text; updates of the optimizer the same"
    for other in (of(Adam, lr=0.1, amsgrad=True), of(SGD, lr=0.1), lambda m: AdamW(m.parameters())):
        code, message = codes(lambda other=other: check(other, max_grad_norm=norm))  # type: ignore[misc]
        assert code == "FB0720"
        assert message == "the updates are not those of the optimizer of Net"
    if norm is not None:
        code, message = codes(lambda: check(ADAMW))
        assert (code, message) == ("FB0720", "the graph is not that of Net")


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean()


class Several(Net):
    def forward(self, x: Tensor) -> Any:
        loss = super().forward(x)
        return (loss, loss * 2) if self.training else loss


def test_a_model_that_gives_no_number_to_minimise() -> None:
    code, message = codes(small(model=Several()))
    assert code == "FB0545"
    assert "2 results to differentiate" in message
    model = nn.Linear(4, 4)
    make = SGD(model.parameters(), lr=0.1)
    code, message = codes(lambda: remat_compile.compile(model, (torch.ones(2, 4),), optimizer=make))
    assert code == "FB0545"
    assert "has several" in message


@pytest.mark.parametrize(
    ("options", "way_out"),
    [
        ({"on_change": "eager"}, 'use on_change="error"'),
        ({"on_change": "replan"}, 'use on_change="error"'),
        ({"cuda_graph": True}, "use cuda_graph=False"),
        ({"max_grad_norm": 0.0}, "pass optimizer= and a number above 0"),
        ({"max_grad_norm": float("nan")}, "pass optimizer= and a number above 0"),
    ],
)
def test_what_a_training_step_is_not_combined_with(
    monkeypatch: pytest.MonkeyPatch, options: Any, way_out: str
) -> None:
    """Told before the model is captured, and before the optimizer is looked at."""
    monkeypatch.setattr("remat_compile.capture.torch.export", None)
    monkeypatch.setattr("remat_compile.backends.torch.check_graphs", lambda *_, **__: None)
    with pytest.raises(FBError) as refused:
        small(make=lambda model: NAdam(model.parameters()), **options)()
    (diagnostic,) = refused.value.diagnostics
    assert (diagnostic.code, diagnostic.hint) == ("FB0546", way_out)
    model = Net()
    xla = {"optimizer": ADAMW(model), "fuse": "xla"}
    code, _ = codes(lambda: remat_compile.plan(model, (batch(0),), **xla))
    assert code == "FB0546"


class Wide(nn.Module):
    """Masks that a codec keeps in bits, and calls that a kernel takes together."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 64), nn.Linear(64, 64)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(torch.relu(self.first(x)))
        return self.drop(torch.relu(self.second(x))).square().mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "options",
    [
        {"codecs": "lossless", "activation_budget": "80%", "planner": "store-all"},
        {"fuse": "inductor", "planner": "store-all"},
        {"fuse": "inductor", "planner": "zero-offload", "link": "1GB/s"},
    ],
    ids=["packed", "fused", "fused, at home on the host"],
)
@pytest.mark.filterwarnings("ignore:.*FB0470")
def test_packed_and_fused_steps(options: Any, dtype: torch.dtype) -> None:
    """With the bits of ordinary training, fused cNodes by their calls; bytes as proven with their
    kernels."""
    torch.manual_seed(0)
    model, args = Wide().to(dtype), (torch.randn(2048, 8, dtype=dtype),)
    twin, other = copy.deepcopy(model), copy.deepcopy(model)
    optimizer, stepper = ADAMW(model), ADAMW(other)
    plan = remat_compile.plan(twin, args, optimizer=ADAMW(twin), **options)
    special = {c.call.op for c in plan.graph.cnodes if c.is_fused or "pack" in c.call.op}
    assert special
    assert plan.check_model(model, args, optimizer=optimizer).updates == "the same"
    updates = updates_of(optimizer, export(model, args), None)
    step = bind(plan.program, plan.schedule, export(model, args), by_calls=True, optimizer=updates)
    train_alike(step, (model, optimizer), (other, stepper), range(2), given=lambda _: args[0])
    trained = plan.bind(twin, args, optimizer=ADAMW(twin))
    assert torch.isfinite(trained(*args))
    use = measure_step(trained.module, args)  # type: ignore[arg-type]
    assert use.measured_bytes == use.predicted_bytes


def test_a_replica_is_refused() -> None:
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    try:
        model = nn.parallel.DistributedDataParallel(Net())
        code, message = codes(small(model=model))
    finally:
        torch.distributed.destroy_process_group()
    assert code == "FB0546"
    assert "sums gradients before its optimizer steps" in message


def test_homes_that_cannot_be_run() -> None:
    model, optimizer, step = compiled(ADAMW, ("home",))
    program, schedule = step.module.planned_step.program, step.module.planned_step.schedule
    header = replace(program.header, device="cuda")
    code, message = codes(lambda: PlanCopies(replace(program, header=header), schedule, ()))
    assert code == "FB0549"
    assert "is at home on the host in the plan, and lies on cuda" in message
    state = optimizer.state[model.net[0].weight]
    wide = torch.zeros(*state["exp_avg"].shape, 2)
    state["exp_avg"] = wide[..., 0]
    code, message = codes(lambda: step(batch(0)))
    assert code == "FB0549"
    assert "has gaps between its elements" in message


@pytest.mark.parametrize("sides", [(), ("home",), ("host",)])
def test_a_parameter_that_is_written_to_before_its_update(sides: tuple[str, ...]) -> None:
    """Between the forward and the backward; the next step is right again."""
    model, _, step = compiled(ADAMW, *sides)
    loss = step.module(batch(0))
    with torch.no_grad():
        model.net[0].weight.mul_(2.0)  # type: ignore[union-attr,operator]
    with pytest.raises(FBError, match="FB0962"):
        loss.backward()
    other = copy.deepcopy(model)
    assert torch.isfinite(step(batch(1)))
    assert not torch.equal(model.head.bias, other.head.bias)  # type: ignore[arg-type]


def test_no_script_of_a_step_with_updates() -> None:
    model = Net()
    plan = remat_compile.plan(model, (batch(0),), optimizer=SGD(model.parameters(), lr=0.1))
    with pytest.raises(FBError) as refused:
        plan.emit()
    assert [d.code for d in refused.value.diagnostics] == ["FB0548"]


class WithLoss(nn.Module):
    """A model of the next token, its result the loss."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.net(x).flatten(0, 1), x.flatten())


@pytest.mark.parametrize("net", [GPT, Llama])
def test_offmate_trains_with_the_bits_of_ordinary_training(net: type[nn.Module]) -> None:
    """Four layers under half of the bytes, 10 steps: what the O-ILP or the search chose, with the
    proven peaks of both sides, above the lower bound."""
    torch.manual_seed(0)
    model = WithLoss(net(layers=4))
    other = copy.deepcopy(model)
    optimizer, stepper = (AdamW(m.parameters(), lr=1e-2, fused=True) for m in (model, other))
    options: dict[str, Any] = {"planner": "offmate", "link": "1GB/s", "time_limit_s": 8}
    train = remat_compile.compile(model, (ids(0),), optimizer=optimizer, budget="50%", **options)
    assert isinstance(train, TrainingStep)
    plan = train.module.planned_step
    assert plan.schedule.homes
    for seed in range(10):
        assert torch.equal(train(ids(seed)), ordinary(other, stepper, ids(seed)))
    assert_same(dict(train.state_dict()), dict(other.state_dict()))
    assert_same(optimizer.state_dict(), stepper.state_dict())
    proven = verify(plan.program, plan.schedule)
    assert isinstance(proven, ProvenPlan)
    use = measure_step(train.module, (ids(0),))
    assert use.measured_bytes == use.predicted_bytes == proven.proven.device_bytes
    assert use.host_measured_bytes == proven.proven.host_bytes


def ids(seed: int) -> Tensor:
    return torch.randint(0, 61, (4, 16), generator=torch.Generator().manual_seed(seed))


def test_a_model_on_meta_has_a_step_with_an_optimizer_and_a_bound() -> None:
    """Planning allocates no tensor of the model."""
    with torch.device("meta"):
        model = WithLoss(GPT(layers=2))
        x = torch.zeros(4, 16, dtype=torch.long)
    plan = remat_compile.plan(
        model,
        (x,),
        optimizer=AdamW(model.parameters()),
        planner="offmate",
        budget="70%",
        costs="roofline",
        device="rtx-4090",
        time_limit_s=8,
    )
    assert plan.proven is not None
    assert plan.lower_bound_s is not None
    assert 0 < plan.lower_bound_s <= plan.time_s
    assert plan.schedule is not None
    assert "no plan in this order takes less than" in plan.summary()
