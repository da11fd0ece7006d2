"""Plans that copy to the host run: bit-equal, within their bytes, call by call, without leaks."""

from __future__ import annotations

import copy
import gc
import resource
import sys
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers.clock import HANGS_S
from helpers.execution.copy_engines import LateEngine
from helpers.models import MODELS
from helpers.programs.offloading import offload_everything
from helpers.training import assert_bit_equal, train_steps
from remat_compile.backends.python.allowed import check_generated
from remat_compile.backends.torch import PlannedModule, build, emit, measure_peak, measure_step
from remat_compile.backends.torch.code.allowed import allowed
from remat_compile.backends.torch.code.script import replay_helper
from remat_compile.backends.torch.runtime import (
    CopyEngine,
    HostCopies,
    PlanCopies,
    ThreadEngine,
    engine_for,
)
from remat_compile.backends.torch.runtime.accelerator import pinned_sizes
from remat_compile.backends.torch.runtime.call import Arena
from remat_compile.capture.torch import export, lower
from remat_compile.costs import measured
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.schedule import Compute, Direction, Free, Prefetch, Schedule, Wait
from remat_compile.ir.semantics.simulate import simulate


class Net(nn.Module):
    """Three layers with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3), nn.Tanh()) for _ in range(3))
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def planned(module: nn.Module, *args: Any, **options: Any) -> PlannedModule:
    with lower(export(module, args, **options)) as lowered:
        return build(lowered, offload_everything(lowered.program))


def copies_of(module: PlannedModule) -> PlanCopies:
    copies = module.planned_step.copies
    assert copies is not None
    return copies


def codes(call: Callable[[], Any]) -> list[str]:
    with pytest.raises(FBError) as refused:
        call()
    return [d.code for d in refused.value.diagnostics]


def slow(seed: int) -> ThreadEngine:
    """Copies that take up to 2 ms longer; with seed 0 only those to the host, with 1 back."""
    rng = Random(seed)
    only: Direction | None = {0: "d2h", 1: "h2d"}.get(seed)  # type: ignore[assignment]
    return ThreadEngine(lambda d, _: 2e-3 * rng.random() if only in (None, d) else 0.0)


@pytest.mark.parametrize(
    "name",
    ["mlp", *(pytest.param(n, marks=pytest.mark.slow) for n in ("resnet", "unet", "gpt-loss"))],
)
def test_offloading_everything_is_bit_equal_and_measures_as_proven(name: str) -> None:
    module, args, kwargs = MODELS[name](torch.float32)
    reference, same_args, same_kwargs = MODELS[name](torch.float32)
    exported = export(module, args, kwargs)
    with lower(exported) as lowered:
        pass
    program = measured(lowered.program, lowered.values(), time_limit_s=0.2)
    plan = offload_everything(program)
    with lower(exported) as lowered:
        drop_in = build(lowered.with_program(program), plan)
    ours = train_steps(drop_in, args, kwargs)
    theirs = train_steps(reference, same_args, same_kwargs)
    assert_bit_equal(ours, theirs)
    use = measure_step(drop_in, args, kwargs)
    assert use.forward_measured_bytes == use.forward_predicted_bytes
    assert use.backward_measured_bytes == use.backward_predicted_bytes
    assert use.host_measured_bytes == simulate(program, plan).host_peak_bytes > 0
    assert copies_of(drop_in).arenas == 1


@pytest.mark.parametrize("engine", [*map(slow, range(6)), LateEngine()])
def test_no_timing_of_the_copies_changes_a_bit(engine: CopyEngine) -> None:
    module, x = Net(), torch.randn(4, 6)
    drop_in = planned(module, x)
    copies_of(drop_in).engine = engine
    for step in range(2):
        torch.manual_seed(step)
        ours = torch.autograd.grad(drop_in(x).square().sum(), list(drop_in.parameters()))
        torch.manual_seed(step)
        theirs = torch.autograd.grad(module(x).square().sum(), list(module.parameters()))
        assert all(map(torch.equal, ours, theirs))
    if isinstance(engine, LateEngine):
        assert engine.waits > 0
        assert engine.pending == []


def test_copies_move_what_was_planned() -> None:
    moved = []

    def delay(direction: Direction, name: str) -> float:
        moved.append((direction, name))
        return 0.0

    drop_in = planned(Net(), x := torch.randn(4, 6))
    copies_of(drop_in).engine = ThreadEngine(delay)
    drop_in(x).sum().backward()
    names = [s.anode for s in drop_in.planned_step.schedule.steps if getattr(s, "copies", None)]
    assert sorted(name for _, name in moved) == sorted(names)
    assert {direction for direction, _ in moved} == {"d2h", "h2d"}


@pytest.mark.filterwarnings("ignore:.*second forward")
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_each_of_several_forwards_has_copies_of_its_own(order: tuple[int, ...]) -> None:
    module = Net()
    inputs = [torch.randn(4, 6) for _ in range(3)]
    drop_in = planned(module, inputs[0])
    parameters = list(drop_in.parameters())

    def grads(run: nn.Module) -> list[tuple[Tensor, ...]]:
        torch.manual_seed(0)
        outs = [run(x) for x in inputs]
        assert run is module or copies_of(drop_in).arenas == 3
        return [torch.autograd.grad(outs[i].square().sum(), parameters) for i in order]

    for ours, theirs in zip(grads(drop_in), grads(module), strict=True):
        assert all(map(torch.equal, ours, theirs))
    assert copies_of(drop_in).arenas == 1


def test_dynamic_batches_share_one_plan() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU())
    batch = torch.export.Dim("batch", min=2, max=16)
    drop_in = planned(module, torch.randn(3, 4), dynamic_shapes=({0: batch},))
    peaks = []
    for size in (2, 16, 5):
        x = torch.randn(size, 4)
        ours = torch.autograd.grad(drop_in(x).square().sum(), list(drop_in.parameters()))
        theirs = torch.autograd.grad(module(x).square().sum(), list(module.parameters()))
        assert all(map(torch.equal, ours, theirs))
        step = drop_in.planned_step
        peaks.append(copies_of(drop_in).last_host_peak_bytes)
        name = step.program.symbols[0].name
        assert peaks[-1] == simulate(step.program, step.schedule, {name: size}).host_peak_bytes
    assert peaks[1] == 8 * peaks[0]
    assert copies_of(drop_in).arenas == 1


def test_without_gradients_nothing_is_copied() -> None:
    drop_in = planned(Net(), x := torch.randn(4, 6))
    with torch.no_grad():
        drop_in(x)
    assert copies_of(drop_in).arenas == 0


def test_a_deep_copy_of_the_module_runs() -> None:
    drop_in = planned(Net(), x := torch.randn(4, 6))
    copy.deepcopy(drop_in)(x).sum().backward()


def test_a_saved_result_whose_copy_is_under_way_crosses_the_loss() -> None:
    """Copied to the host before the loss and waited for behind it; the other one comes back
    before the loss, and is waited for behind it."""
    module, x = Net(), torch.randn(4, 6)
    with lower(export(module, (x,))) as lowered:
        graph = lowered.program.graph
        plan = offload_everything(lowered.program)
        steps = list(plan.steps)
        loss = steps.index(Compute(graph.loss.name))
        back = next(s for s in steps[loss:] if isinstance(s, Prefetch))
        steps.remove(back)
        steps.insert(loss, back)
        late = next(s for s in steps if isinstance(s, Wait) and s.anode != back.anode)
        at = steps.index(late)
        assert steps[at + 1] == Free(late.anode)
        del steps[at : at + 2]
        loss = steps.index(Compute(graph.loss.name))
        steps[loss + 1 : loss + 1] = [late, Free(late.anode)]
        drop_in = build(lowered, Schedule("plan", "by hand", tuple(steps)))
    copies_of(drop_in).engine = engine = LateEngine()
    torch.manual_seed(0)
    ours = torch.autograd.grad(drop_in(x).sum(), list(drop_in.parameters()))
    torch.manual_seed(0)
    theirs = torch.autograd.grad(module(x).sum(), list(module.parameters()))
    assert all(map(torch.equal, ours, theirs))
    assert engine.waits > 0


@pytest.mark.parametrize(
    "foreign",
    [
        "copies.wait('other')",
        "copies.offload('tanh', addmm)",
        "copies.pause()",
        "copies.flights.clear()",
        "x = copies.begin()",
        "x = copies.__class__",
        "copies = 1; copies.wait('other')",
    ],
)
def test_code_that_asks_other_things_of_copies_is_not_written(foreign: str) -> None:
    with lower(export(Net(), (torch.randn(4, 6),))) as lowered:
        program = lowered.program
    plan = offload_everything(program)
    source = emit(program, plan)
    table = allowed(program, plan, replay_helper(program))
    assert check_generated(source, table) == source
    changed = source.replace("copies.wait('tanh')", foreign, 1)
    assert changed != source
    assert codes(lambda: check_generated(changed, table)) == ["FB0940"]


# -- what goes wrong ------------------------------------------------------------------------


class Failing(ThreadEngine):
    """The n-th copy fails."""

    def __init__(self, n: int) -> None:
        self.left = n
        super().__init__(self._count)

    def _count(self, *_: str) -> float:
        self.left -= 1
        if self.left == 0:
            raise OSError("the link is gone")
        return 0.0


@pytest.mark.parametrize("n", [1, 4, 6, 9])
def test_a_copy_that_fails_ends_its_step_and_no_other(n: int) -> None:
    module, x = Net(), torch.randn(4, 6)
    drop_in = planned(module, x)
    copies_of(drop_in).engine = Failing(n)
    with pytest.raises(FBError, match=r"FB0952.*between host and device failed: the link is gone"):
        drop_in(x).sum().backward()
    gc.collect()
    torch.manual_seed(1)
    ours = torch.autograd.grad(drop_in(x).sum(), list(drop_in.parameters()))
    torch.manual_seed(1)
    theirs = torch.autograd.grad(module(x).sum(), list(module.parameters()))
    assert all(map(torch.equal, ours, theirs))
    assert copies_of(drop_in).arenas == 1


def test_a_second_backward_of_a_call() -> None:
    drop_in = planned(Net(), x := torch.randn(4, 6))
    loss = drop_in(x).sum()
    with torch._functorch.config.patch(donated_buffer=False):
        loss.backward(retain_graph=True)
        assert codes(loss.backward) == ["FB0953"]
    drop_in(x).sum().backward()


def test_host_memory_that_is_not_to_be_had() -> None:
    class Poor(ThreadEngine):
        def host_memory(self, size_bytes: int) -> tuple[Tensor, ...]:
            raise RuntimeError("cannot pin\nmore")

    drop_in = planned(Net(), x := torch.randn(4, 6))
    size = simulate(drop_in.planned_step.program, drop_in.planned_step.schedule).host_peak_bytes
    copies_of(drop_in).engine = Poor()
    with pytest.raises(FBError, match=rf"FB0951.*{size} bytes of host memory .*: cannot pin\n"):
        drop_in(x)
    copies_of(drop_in).engine = ThreadEngine()
    drop_in(x).sum().backward()


def copies(**slots: int) -> HostCopies:
    engine = ThreadEngine()
    of = {name: (((0, size),),) for name, size in slots.items()}
    return HostCopies(engine, Arena(engine, max(slots.values())), of)


def test_a_tensor_larger_than_planned() -> None:
    assert codes(lambda: copies(a=8).offload("a", torch.zeros(3))) == ["FB0954"]


@pytest.mark.parametrize(
    "calls",
    [
        "wait a",
        "prefetch a",
        "hostfree a",
        "offload b",
        "offload a, offload a",
        "offload a, prefetch a",
        "offload a, hostfree a",
        "offload a, wait a, wait a",
        "offload a, wait a, hostfree a, offload a",
    ],
)
def test_a_step_that_no_valid_schedule_has(calls: str) -> None:
    state = copies(a=8)
    *first, last = calls.split(", ")

    def run(call: str) -> None:
        word, name = call.split()
        getattr(state, word)(*([name, torch.zeros(2)] if word == "offload" else [name]))

    for call in first:
        run(call)
    assert codes(lambda: run(last)) == ["FB0955"]


def test_a_device_without_streams() -> None:
    assert codes(lambda: engine_for(torch.device("meta"))) == ["FB0912"]


def test_strides_offsets_and_types_come_back() -> None:
    state = copies(a=96)
    base = torch.arange(24, dtype=torch.float32)
    for tensor in (base.view(4, 6).t(), base[3:9], base.view(torch.int64)[1:5:2]):
        state = copies(a=96)
        state.offload("a", tensor)
        state.wait("a")
        back = state.prefetch("a")
        state.wait("a")
        assert torch.equal(back, tensor)
        assert back.stride() == tensor.stride()
        assert back.data_ptr() != tensor.data_ptr()
        state.hostfree("a")
        assert state.host_bytes == 0
        assert state.moved_bytes == {"d2h": 96, "h2d": 96}


def test_pinned_blocks_are_no_larger_than_asked_for() -> None:
    for size in (1, 4096, 4097, 5 << 30, (7 << 20) + 12345):
        blocks = pinned_sizes(size)
        assert size <= sum(blocks) < size + 4096
        assert all(block & (block - 1) == 0 for block in blocks)
    assert pinned_sizes(5 << 30) == (4 << 30, 1 << 30)


# -- over many steps --------------------------------------------------------------------------


def _mixed(drop_in: PlannedModule, x: Tensor, count: int) -> None:
    """Steps, forwards without a backward, forwards without gradients."""
    for step in range(count):
        if step % 5 == 3:
            drop_in(x)
        elif step % 5 == 4:
            with torch.no_grad():
                drop_in(x)
        else:
            drop_in(x).sum().backward()
            for parameter in drop_in.parameters():
                parameter.grad = None


def _soak(count: int) -> None:
    drop_in = planned(Net(), x := torch.randn(4, 6))
    _mixed(drop_in, x, 10)
    threads = threading.active_count()
    _, use = measure_peak(lambda: _mixed(drop_in, x, 50))
    assert use.end_bytes_over_entry == 0
    held = len(gc.get_objects())
    _mixed(drop_in, x, count)
    gc.collect()
    assert len(gc.get_objects()) <= held + 50
    engine = copies_of(drop_in).engine
    for step in range(count // 10):
        copies_of(drop_in).engine = Failing(1 + step % 9)
        with pytest.raises(FBError, match="FB0952"):
            drop_in(x).sum().backward()
    copies_of(drop_in).engine = engine
    gc.collect()
    drop_in(x).sum().backward()
    assert copies_of(drop_in).arenas == 1
    until = time.monotonic() + HANGS_S  # threads end when their engine is gone, in their own time
    gc.collect()
    while threading.active_count() > threads:
        assert time.monotonic() < until, f"{threading.active_count()} threads, {threads} before"
        time.sleep(0.02)
        gc.collect()


def test_soak() -> None:
    _soak(80)


@pytest.mark.slow
def test_soak_of_two_thousand_steps() -> None:
    _soak(100)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _soak(2000)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 16 * 1024  # KiB


# -- as a script ------------------------------------------------------------------------------


def test_a_script_copies_too(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, x = Net(), torch.randn(4, 6)
    with lower(export(module, (x,))) as lowered:
        program = lowered.program
    source = emit(program, offload_everything(program))
    assert "from remat_compile.backends.torch.runtime import single_call\n" in source
    torch.manual_seed(0)
    out = module(x)
    out.sum().backward()  # type: ignore[no-untyped-call]
    stored = {
        "param": {name: p.detach().clone() for name, p in module.named_parameters()},
        "arg": {"0": x},
        "output": {"0": out.detach()},
        "grad": {n: p.grad for n, p in module.named_parameters() if p.grad is not None},
    }
    torch.save(stored, tmp_path / "step.pt")
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "step.py")])
    space: dict[str, Any] = {"__name__": "step", "__file__": str(tmp_path / "step.py")}
    exec(compile(source, str(tmp_path / "step.py"), "exec"), space)
    assert space["main"]() == 0
    said = capsys.readouterr().out
    assert "outputs and gradients: 0 wrong, 7 compared" in said
