"""Several views of one tensor are a function of the generated module: what it says is read back,
and what runs knows where they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import remat_compile
from remat_compile.backends.torch import emit
from remat_compile.backends.torch.readback import check_source
from remat_compile.backends.torch.reinterpret import reinterpret_views
from remat_compile.backends.torch.view_functions import view_groups
from remat_compile.frontends.torch_export import export, lower
from remat_compile.ir.analysis.identities import equal_views
from remat_compile.ir.analysis.order import capture_order, frees_after_last_use
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.graph import Call, Graph, Ref, View
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.text.parser import parse_program


class Attention(nn.Module):
    """Queries, keys and values of one product, by heads; `split` takes them apart."""

    def __init__(self, split: Callable[[Tensor], Sequence[Tensor]]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.all, self.out, self.split = nn.Linear(8, 24), nn.Linear(8, 8), split

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.all(x))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        made: Tensor = self.out(mixed.transpose(1, 2).reshape(2, 3, 8))
        return made


def by_split(x: Tensor) -> list[Tensor]:
    return [part.view(2, 3, 2, 4).transpose(1, 2) for part in x.split(8, -1)]


def by_unbind(x: Tensor) -> Sequence[Tensor]:
    return x.view(2, 3, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)


def by_select(x: Tensor) -> list[Tensor]:
    parts = x.view(2, 3, 3, 2, 4)
    return [parts.select(2, place).transpose(1, 2) for place in range(3)]


def program_of(split: Callable[[Tensor], Sequence[Tensor]]) -> tuple[Program, Schedule]:
    with lower(export(Attention(split), (torch.randn(2, 3, 8),))) as lowered:
        program = lowered.program
    steps = frees_after_last_use(program.graph, capture_order(program.graph))
    schedule = Schedule("p", "", steps)
    return program.with_schedule(schedule), schedule


SPLIT = """def _views0(a0):
    t0 = a0.view(2, 3, 24)
    (t1, t2, t3,) = _aten_split_Tensor(t0, 8, -1)[:3]
    t4 = t1.view(2, 3, 2, 4)
    t5 = t4.transpose(1, 2)
    t6 = t2.view(2, 3, 2, 4)
    t7 = t6.transpose(1, 2)
    t8 = t3.view(2, 3, 2, 4)
    t9 = t8.transpose(1, 2)
    return (t5, t7, t9,)
"""


def test_one_function_for_forward_and_backward() -> None:
    program, schedule = program_of(by_split)
    source = emit(program, schedule)
    assert source.count("def _views") == 1
    assert SPLIT in source
    assert source.count("= _views0(") == 2
    assert source.count("_aten_split_Tensor(") == 1
    forward = source[source.index("def forward") :]
    assert ".split" not in forward
    check_source(source, program, schedule)


@pytest.mark.parametrize("split", [by_split, by_unbind, by_select])
def test_a_step_has_the_bits_and_the_bytes_that_it_says(
    split: Callable[[Tensor], Sequence[Tensor]],
) -> None:
    """The first call runs the lines, later ones what was noted of them."""
    model, x = Attention(split).double(), torch.randn(2, 3, 8, dtype=torch.float64)
    planned = remat_compile.compile(model, (x,), activation_budget="100%")
    assert "_views0" in str(planned.planned_source)
    made: list[list[Any]] = []
    wanted: list[list[Any]] = []
    for _ in range(3):
        for of, into in ((planned, made), (model, wanted)):
            model.zero_grad()
            y = of(x)
            y.square().sum().backward()
            into.append([y.detach(), *(p.grad for p in model.parameters())])
    for ours, theirs in zip(made, wanted, strict=True):
        assert all(map(torch.equal, ours, theirs))


def changed(source: str, was: str, now: str) -> str:
    assert source.count(was) >= 1
    return source.replace(was, now, 1)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("return (t5, t7, t9,)", "return (t7, t5, t9,)"),
        ("return (t5, t7, t9,)", "return (t5, t7, t7,)"),
        ("return (t5, t7, t9,)", "return (t5, t7,)"),
        ("return (t5, t7, t9,)", "return (t5, t7, t8,)"),
        ("t5 = t4.transpose(1, 2)", "t5 = t4.transpose(2, 1)"),
        ("t5 = t4.transpose(1, 2)", "t5 = t6.transpose(1, 2)"),
        ("_aten_split_Tensor(t0, 8, -1)", "_aten_split_Tensor(t0, 8, 2)"),
        ("_aten_split_Tensor(t0, 8, -1)", "_aten_split_Tensor(t0, 12, -1)"),
        ("(t1, t2, t3,) =", "(t2, t1, t3,) ="),
        ("(t1, t2, t3,) =", "(t1, t2,) ="),
        ("t0 = a0.view(2, 3, 24)", "t0 = a0.view(3, 2, 24)"),
        ("t0 = a0.view(2, 3, 24)", "t0 = _aten_addmm_default(a0, a0, a0)"),
        ("t0 = a0.view(2, 3, 24)", "t0 = _views0(a0)"),
        ("t0 = a0.view(2, 3, 24)", "t0 = a0"),
        ("t0 = a0.view(2, 3, 24)\n", "t0 = a0.view(2, 3, 24)\n    del a0\n"),
        ("t0 = a0.view(2, 3, 24)\n", "t0 = a0.view(2, 3, 24)\n    t1.add_(t0)\n"),
        ("t4 = t1.view", "_aten_addmm_default = t1.view"),
        ("def _views0(a0):", "def _views0(a0, a1):"),
        ("def _views0(a0):", "def _views0(a0=None):"),
        ("def _views0(a0):", "@torch\ndef _views0(a0):"),
        ("def _views0(a0):", "def _views0(a0) -> torch.ones(1):"),
        ("def forward(args, constants=()):", "def forward(args, constants=()) -> print():"),
        ("= _views0(addmm)", "= _views0(addmm_1)"),
        ("= _views0(addmm)", "= _views0(addmm, addmm)"),
        ("= _views0(addmm)", "= _views0(addmm)[:3]"),
        ("= _views0(addmm)", "= _views1(addmm)"),
        ("transpose_1, transpose_2,) = _views0", "transpose_2, transpose_1,) = _views0"),
        ("transpose_1, transpose_2,) = _views0", "transpose_1,) = _views0"),
    ],
)
def test_other_code_is_refused(was: str, now: str) -> None:
    program, schedule = program_of(by_split)
    source = changed(emit(program, schedule), was, now)
    with pytest.raises(FBError) as caught:
        check_source(source, program, schedule)
    assert caught.value.diagnostics[0].code in ("FB0945", "FB0946")


DYNAMIC = """fbir 1
sym n in [1, 8] = 2 of arg 0 dim 0
graph @g {
  %x : input f32[n, 8] bytes 32*n
  %y : output f32[n, 2] bytes 8*n
  %d : tangent f32[n, 2] bytes 8*n
  %v = view of %x aten.view.default(%x, [SIZE, 2, 4])
  %t = view of %x aten.transpose.int(%v, 1, 2)
  %s = view of %x aten.select.int(%t, 1, 0)
  F1: fwd %y = aten.neg.default(%s)
  L: loss %d = loss(%y)
}
bind {
  arg "args[0]" = %x
  result %y tangent %d
}
"""


def test_views_of_dynamic_sizes_stay_lines() -> None:
    """A function has the tensor alone: no size that a call brings."""
    graphs = [parse_program(DYNAMIC.replace("SIZE", s), "g.fbir").graph for s in ("n", "-1")]
    groups = [[*view_groups(graph, ["s"], ())] for graph in graphs]
    assert [len(of_graph) for of_graph in groups] == [0, 1]


class Three(nn.Module):
    """Products of one input, of which the capture takes a view each time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(8, 8, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(x)
        made: Tensor = self.q(x) * self.k(x) + self.v(x)
        return made


def test_a_view_that_is_there_twice_is_derived_once() -> None:
    model, x = Three(), torch.randn(2, 3, 8)
    with lower(export(model, (x,))) as lowered:
        program = lowered.program
    twice = equal_views(program.graph)
    assert {program.graph.view[name].call for name in twice.values()} == {
        program.graph.view[name].call for name in twice
    }
    schedule = Schedule("p", "", frees_after_last_use(program.graph, capture_order(program.graph)))
    program = program.with_schedule(schedule)
    source = emit(program, schedule)
    check_source(source, program, schedule)
    forward = source[source.index("def forward") : source.index("def backward")]
    assert forward.count("tanh.view(6, 8)") == 1
    planned = remat_compile.compile(model, (x,), activation_budget="100%")
    assert torch.equal(planned(x), model(x))


@pytest.mark.parametrize(
    ("one", "other"), [((1, 0), (True, 0)), ((0, 1), (1, 0)), ((0, 1), (-2, 1))]
)
def test_views_by_other_arguments_are_not_equal(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    calls = [Call("aten.transpose.int", (Ref("x"), *dims)) for dims in (one, other, other)]
    views = tuple(View(f"v{i}", "x", call) for i, call in enumerate(calls))
    assert equal_views(Graph("g", (), views, ())) == {"v2": "v1"}


# -- what runs ----------------------------------------------------------------------------


@torch.library.custom_op("views::scaled", mutates_args=())
def scaled(x: Tensor, by: Tensor) -> Tensor:
    return x * by


@scaled.register_fake
def _(x: Tensor, by: Tensor) -> Tensor:
    return torch.empty_like(x)


def _scaled_grads(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return grad * ctx.saved_tensors[0], None


def _save_scale(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


scaled.register_autograd(_scaled_grads, setup_context=_save_scale)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = scaled(self.linear(x), x)
        return made


def test_an_operator_that_is_called_like_a_function_of_views() -> None:
    model, x = Scaled(), torch.randn(2, 8)
    planned = remat_compile.compile(model, (x,), activation_budget="100%")
    for _ in range(2):
        assert torch.equal(planned(x), model(x))


def installed(derive: Callable[[Tensor], Sequence[Tensor]]) -> dict[str, Any]:
    space: dict[str, Any] = {"_views0": derive}
    reinterpret_views(space, ["_views0"])
    return space


def counted(derive: Callable[[Tensor], Sequence[Tensor]]) -> tuple[dict[str, Any], list[Tensor]]:
    """A module with the function, and the tensors on a device that it ran for."""
    calls: list[Tensor] = []

    def run(base: Tensor) -> Sequence[Tensor]:
        if base.device.type != "meta":
            calls.append(base)
        return derive(base)

    return installed(run), calls


def alike(one: Tensor, other: Tensor) -> bool:
    described = [
        (t.shape, t.stride(), t.storage_offset(), t.dtype, t.data_ptr(), t.requires_grad)
        for t in (one, other)
    ]
    return described[0] == described[1] and torch.equal(one, other)


def parts_of(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(part.unflatten(-1, (2, 4)).transpose(1, 2) for part in x.split(8, -1))


@pytest.mark.parametrize(
    "base",
    [
        torch.randn(2, 3, 24),
        torch.randn(3, 2, 24).transpose(0, 1),
        torch.randn(5, 2, 3, 24)[3],
        torch.randn(2, 3, 48)[:, :, ::2],
        torch.zeros(2, 3, 1).expand(2, 3, 24),
        torch.randn(2, 3, 24, dtype=torch.complex64).conj(),
        torch._neg_view(torch.randn(2, 3, 24)),
        torch.randn(0, 3, 24),
        nn.Parameter(torch.randn(2, 3, 24)),
    ],
)
def test_they_lie_where_the_lines_say(base: Tensor) -> None:
    space, calls = counted(parts_of)
    with torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
        for _ in range(3):
            for made, wanted in zip(space["_views0"](base), parts_of(base), strict=True):
                assert alike(made, wanted)
                assert (made.is_conj(), made.is_neg()) == (wanted.is_conj(), wanted.is_neg())
    assert len(calls) == (3 if base.requires_grad else 1)


def test_a_tensor_that_lies_elsewhere_or_otherwise_has_its_own_views() -> None:
    space, calls = counted(parts_of)
    space["_views0"](torch.randn(2, 3, 24))
    others = [torch.randn(4, 2, 3, 24)[2], torch.randn(3, 2, 24).transpose(0, 1)]
    others += [torch.randn(4, 3, 24), torch.randn(2, 3, 16)]
    others += [others[1]] * 2
    for base in others:
        for made, wanted in zip(space["_views0"](base), parts_of(base), strict=True):
            assert alike(made, wanted)
    assert len(calls) == len(others)  # all but the one that lies as the first


@pytest.mark.parametrize(
    ("derive", "of"),
    [
        (lambda x: (x.as_strided((2, 2), (2, 1), 3),), torch.float32),
        (lambda x: (x.view(torch.int32),), torch.float32),
        (lambda x: (torch.view_as_real(x),), torch.complex64),
        (lambda x: (x.conj(),), torch.complex64),
        (lambda x: (torch._neg_view(x),), torch.float32),
        (lambda x: (x.imag,), torch.complex64),
    ],
)
def test_what_strides_do_not_tell_is_derived_each_time(
    derive: Callable[[Tensor], tuple[Tensor, ...]], of: torch.dtype
) -> None:
    space, calls = counted(derive)
    bases = [torch.arange(24.0).to(of).view(4, 6)[row:] for row in (0, 0, 1, 2)]
    for base in bases:
        for made, wanted in zip(space["_views0"](base), derive(base), strict=True):
            assert alike(
                made.resolve_conj().resolve_neg(), wanted.resolve_conj().resolve_neg()
            ) or (made.is_conj() or made.is_neg())
            assert (made.dtype, made.is_conj(), made.is_neg(), made.data_ptr()) == (
                *(wanted.dtype, wanted.is_conj(), wanted.is_neg()),
                wanted.data_ptr(),
            )
    assert len(calls) == len(bases)


def test_a_mode_of_dispatch_sees_the_views() -> None:
    """What is traced of a step that has run is the step, not the views of one tensor."""
    space, calls = counted(parts_of)
    base, other = torch.randn(2, 3, 24), torch.randn(2, 3, 24)
    for runs in range(1, 4):
        traced = make_fx(space["_views0"])(base)
        assert all(map(torch.equal, traced(other), parts_of(other)))
        assert len(calls) == runs + (runs > 1)  # and once where no mode is on
        space["_views0"](base)


def test_nothing_is_noted_while_a_step_is_traced() -> None:
    space, calls = counted(parts_of)
    traced = torch.jit.trace(space["_views0"], (torch.randn(2, 3, 24),), check_trace=False)
    base = torch.randn(4, 3, 24)
    for given in (base, base + 1):
        assert all(map(torch.equal, space["_views0"](given), parts_of(given)))
        assert all(map(torch.equal, traced(given[:2]), parts_of(given[:2])))
    assert len(calls) == 2


def test_a_subclass_is_given_to_the_operators() -> None:
    class Other(Tensor):
        pass

    space, calls = counted(parts_of)
    base = torch.randn(2, 3, 24)
    for given in (base.as_subclass(Other), base, base.as_subclass(Other), base):
        for made, wanted in zip(space["_views0"](given), parts_of(given), strict=True):
            assert type(made) is type(wanted)
            assert torch.equal(made, wanted)
    assert len(calls) == 3


def test_a_compiler_around_the_step_finds_its_functions() -> None:
    """One that looks for the module of each function that it inlines, by name."""
    model, x = Attention(by_split), torch.randn(2, 3, 8)
    planned = remat_compile.compile(model, (x,), activation_budget="100%")
    wanted = model(x)
    compiled = torch.compile(planned, backend="eager")
    for _ in range(2):
        assert torch.equal(compiled(x), wanted)
        assert torch.equal(planned(x), wanted)


def test_what_runs_on_its_device_alone_is_derived_each_time() -> None:
    def on_device(x: Tensor) -> tuple[Tensor, ...]:
        if x.device.type == "meta":
            raise NotImplementedError
        return parts_of(x)

    space, calls = counted(on_device)
    for _ in range(3):
        space["_views0"](torch.randn(2, 3, 24))
    assert len(calls) == 3


def test_a_release_without_the_call_derives_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C._dynamo.guards, "_reinterpret_tensor")
    space, calls = counted(parts_of)
    for _ in range(3):
        space["_views0"](torch.randn(2, 3, 24))
    assert len(calls) == 3
