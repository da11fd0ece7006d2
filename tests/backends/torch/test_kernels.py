"""Kernels of Inductor: the canary of its entry, and what becomes of a kernel that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event, RLock, Thread
from typing import Any

import pytest
import torch
from torch import Tensor

from remat_compile.backends.torch.kernels import (
    InductorPrice,
    Kernel,
    Kernels,
    inductor,
    made,
    make_kernels,
    missing,
)
from remat_compile.backends.torch.kernels import price as price_module
from remat_compile.backends.torch.kernels.inductor import (
    Compiling,
    KernelError,
    Layout,
    compile_traced,
    trace,
    waits_kept,
)
from remat_compile.ir.expr import Const
from remat_compile.ir.graph import Call, CNode, InnerCall, Ref

CPU = torch.device("cpu")
REGION = CNode(
    "F1_F2",
    "fwd",
    ("s", "y"),
    Call(
        "fused",
        (Ref("x"), Ref("w")),
        region=(
            InnerCall(("s",), Call("aten.add.Tensor", (Ref("x"), Ref("w")))),
            InnerCall(("t",), Call("aten.gelu.default", (Ref("s"),))),
            InnerCall(("y",), Call("aten.sum.dim_IntList", (Ref("t"), (1,)))),
        ),
    ),
    time_ns=10**9,
)
CONVOLVED = ((1, 1), (0, 0), (1, 1), False, (0, 0), 1)
VALUES = {"x": torch.randn(64, 32).t(), "w": torch.randn(64)}


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    if missing(CPU) is not None:
        pytest.skip("no C++ compiler")
    return Kernels(CPU)


def test_the_entry_of_inductor_is_as_known(kernels: Kernels) -> None:
    """The canary: one function compiled, run, and held against its calls."""
    kernel = kernels.kernel(REGION, list(VALUES.values()))
    assert kernels.failures == []
    assert kernel is not None
    s, y = kernel(*VALUES.values())
    wanted = torch.nn.functional.gelu(VALUES["x"] + VALUES["w"]).sum(1)
    assert torch.equal(s, VALUES["x"] + VALUES["w"])
    assert s.stride() == (1, 32)  # as the call gives it
    assert torch.allclose(y, wanted, rtol=1e-5)
    assert kernel.difference <= 1e-5
    assert kernel.workspace_bytes < 64 * 32 * 4  # the calls hold all of %t


def test_what_was_generated_is_kept_on_disk(
    kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inductor passes its cache over without a word for what it cannot describe, and generates the
    code again, which takes most of a start whose plan is kept."""
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    counters.clear()
    made = [Kernels(CPU).kernel(REGION, list(VALUES.values())) for _ in range(2)]
    assert counters["inductor"]["fxgraph_cache_bypass"] == 0
    assert counters["inductor"]["fxgraph_cache_miss"] == 1
    assert counters["inductor"]["fxgraph_cache_hit"] == 1
    values = [kernel(*VALUES.values()) for kernel in made if kernel is not None]
    for one, other in zip(*values, strict=True):
        assert torch.equal(one, other)


def test_a_region_is_compiled_once_whatever_its_names(kernels: Kernels) -> None:
    other = CNode(
        "other",
        "bwd",
        ("a", "b"),
        Call(
            "fused",
            (Ref("p"), Ref("q")),
            region=(
                InnerCall(("a",), Call("aten.add.Tensor", (Ref("p"), Ref("q")))),
                InnerCall(("c",), Call("aten.gelu.default", (Ref("a"),))),
                InnerCall(("b",), Call("aten.sum.dim_IntList", (Ref("c"), (1,)))),
            ),
        ),
    )
    first = kernels.kernel(REGION, list(VALUES.values()))
    assert kernels.kernel(other, list(VALUES.values())) is first


def test_a_kernel_notices_each_argument_of_another_layout(kernels: Kernels) -> None:
    """The canary of what a step relies on: Inductor asserts the layout of all that it reads."""
    kernel = kernels.kernel(REGION, list(VALUES.values()))
    assert kernel is not None
    given = [*VALUES.values()]
    for place, tensor in enumerate(given):
        for other in (tensor.unsqueeze(0), torch.stack([tensor, tensor], -1)[..., 0]):
            with pytest.raises(AssertionError):
                kernel.compiled([*given[:place], other, *given[place + 1 :]])


def test_other_strides_run_by_the_calls(kernels: Kernels) -> None:
    kernel = kernels.kernel(REGION, list(VALUES.values()))
    assert kernel is not None
    dense = VALUES["x"].contiguous()
    run = kernel.runner()
    with pytest.warns(UserWarning, match="FB0915") as said:
        results_of = [call(dense, VALUES["w"]) for call in (run, kernel, run)]
    assert len(said) == 1
    for results in results_of:
        for result, wanted in zip(results, kernel.calls(dense, VALUES["w"]), strict=True):
            assert torch.equal(result, wanted)


@pytest.mark.parametrize("mark", [torch._neg_view, torch.conj])
def test_there_is_no_kernel_for_what_is_only_marked_as_negated_or_conjugated(
    mark: Callable[[Tensor], Tensor],
) -> None:
    """Inductor reads the bytes, and not the mark."""
    kernels = Kernels(CPU)
    x = VALUES["x"] if mark is torch._neg_view else VALUES["x"].to(torch.complex64)
    assert kernels.kernel(REGION, [mark(x), VALUES["w"]]) is None
    (failure,) = kernels.failures
    assert "negated or conjugated by a mark" in failure


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_there_is_no_kernel_for_what_counts_from_where_the_storage_begins(
    dtype: torch.dtype,
) -> None:
    """`as_strided` of an argument does, and a kernel counts from where its argument begins."""
    calls = (
        InnerCall(("v",), Call("aten.as_strided.default", (Ref("x"), (32,), (1,), 0))),
        InnerCall(("y",), Call("aten.add.Tensor", (Ref("v"), Ref("v")))),
    )
    region = CNode("F1_F2", "fwd", ("y",), Call("fused", (Ref("x"),), region=calls), time_ns=1)
    kernels = Kernels(CPU)
    assert kernels.kernel(region, [torch.zeros(64, dtype=dtype)]) is None
    (failure,) = kernels.failures
    assert "F1_F2" in failure


def test_made_up_numbers_are_not_all_zero() -> None:
    """Else any kernel would be right: what a mask picks is not seen where all of it is False."""
    for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.complex128):
        values = made.made_up(Layout((3, 2), (1, 3), dtype, "cpu"))
        assert (values.dtype, values.stride()) == (dtype, (1, 3))
        assert values.count_nonzero() == 6
    for dtype in (torch.bool, torch.uint8, torch.int32, torch.int64):
        values = made.made_up(Layout((99, 2), (1, 99), dtype, "cpu"))
        assert (values.dtype, values.stride()) == (dtype, (1, 99))
        assert 0 < values.count_nonzero() < values.numel()
        assert values.max() == 1


def test_strides_of_single_elements_mean_nothing() -> None:
    layout = Layout((3, 1), (1, 1), torch.float32, "cpu")
    compiled = torch.zeros(3, 1)
    kernel = Kernel((layout,), lambda x: (x + 1,), lambda args: (compiled,), 0.0, 0)
    assert kernel(torch.ones(3, 1).as_strided((3, 1), (1, 7)))[0] is compiled


def test_what_a_kernel_asserts_of_its_own_is_no_question_of_layouts() -> None:
    def fails(args: list[Tensor]) -> tuple[Tensor, ...]:
        raise AssertionError("broken")

    layout = Layout((2,), (1,), torch.float32, "cpu")
    kernel = Kernel((layout,), lambda x: (x,), fails, 0.0, 0)
    for run in (kernel, kernel.runner()):
        with pytest.raises(AssertionError, match="broken"):
            run(torch.ones(2))


def test_a_price_is_measured(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    price = InductorPrice(kernels, VALUES, 3600.0)
    cost = price.cost(REGION)
    assert cost is not None
    assert 0 < cost.time_ns < 10**9
    alike = replace(REGION, name="other")  # the same kernel, which is not measured again
    assert price.cost(alike) == cost
    half = price.cost(replace(REGION, time_ns=5 * 10**8))  # a share of the time of its calls
    assert half is not None
    assert half.time_ns == pytest.approx(cost.time_ns / 2, abs=1)
    ticks = iter(range(0, 10**6, 10))  # one clock: the kernel is as fast as each of three calls
    monkeypatch.setattr(price_module, "clock_ns", lambda _: lambda: next(ticks))
    even = InductorPrice(kernels, VALUES, 3600.0).cost(REGION)
    assert even is not None
    assert even.time_ns == pytest.approx(10**9 / 3, abs=1)
    priced = replace(REGION, time_ns=half.time_ns)  # fused already: its calls take what they took
    assert price.calls_ns(priced) == pytest.approx(5 * 10**8, rel=1e-3)
    assert InductorPrice(kernels, VALUES, 3600.0).calls_ns(priced) == half.time_ns  # not measured
    price.time_limit_s = 0.0
    price.cost(REGION)
    assert price.is_late
    assert price.cost(REGION) is None


def test_kernel_and_calls_find_the_caches_alike(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a step leaves them, once before the kernel and once before its calls."""
    given: list[tuple[str, ...]] = []
    left: list[int] = []

    def leaver(self: object, tensors: Mapping[str, Tensor]) -> Callable[[], None]:
        given.append(tuple(tensors))
        return lambda: left.append(1)

    monkeypatch.setattr(price_module, "_ENOUGH_S", 0.0)
    monkeypatch.setattr(price_module.StepCaches, "leaver", leaver)
    InductorPrice(kernels, VALUES, 3600.0).cost(REGION)
    assert given == [REGION.call.refs()]
    assert len(left) == 2 * price_module._LEAST_REPEATS


@pytest.mark.parametrize(
    ("operator", "args", "generated"),
    [
        ("aten.gelu.default", (Ref("x"),), True),
        ("aten.native_layer_norm.default", (Ref("x"), (64,), Ref("w"), None, 1e-5), True),
        ("aten.mm.default", (Ref("x"), Ref("m")), False),
        ("aten.cumsum.default", (Ref("x"), 0), False),
        ("aten.bernoulli.default", (Ref("x"),), False),
        # Those that no tag tells: what Inductor lowers them to does.
        ("aten.cat.default", ((Ref("x"), Ref("x")), 1), True),
        ("aten.constant_pad_nd.default", (Ref("x"), (1, 2)), True),
        ("aten.slice_backward.default", (Ref("x"), (32, 128), 1, 0, 64, 1), True),
        ("aten.avg_pool2d.default", (Ref("c"), (2, 2)), True),
        # A window of -inf and padding gives Inductor a place outside of the tensor.
        ("aten.max_pool2d_with_indices.default", (Ref("c"), (2, 2), (1, 1), (1, 1)), False),
        ("aten.adaptive_max_pool2d.default", (Ref("c"), (2, 2)), False),
        ("aten.remainder.Scalar", (Ref("i"), 7), True),
        # A 0 among the divisors would end the process.
        ("aten.remainder.Tensor", (Ref("i"), Ref("i")), False),
        ("aten.floor_divide.default", (Ref("i"), Ref("i")), False),
        ("aten.remainder.Tensor", (Ref("w"), Ref("w")), True),
        ("aten.convolution.default", (*map(Ref, "cc"), None, *CONVOLVED), False),
        ("aten.sort.default", (Ref("x"),), False),
        # An index that is out of range would end the process where several threads run the loop.
        ("aten.embedding.default", (Ref("x"), Ref("i")), False),
        ("aten.gather.default", (Ref("x"), 1, Ref("j")), False),
        ("aten.nll_loss_forward.default", (Ref("x"), Ref("i"), None, 1, -100), False),
        # Its gradient compares with every class, and touches no other place.
        ("aten.nll_loss_backward.default", (*map(Ref, "sxi"), None, 1, -100, Ref("s")), True),
        ("aten.scatter.value", (Ref("x"), 1, Ref("j"), 1.0), False),
        ("aten.embedding_dense_backward.default", (Ref("x"), Ref("i"), 9, -1, False), False),
    ],
)
def test_only_generated_code_is_fused(
    operator: str, args: tuple[object, ...], generated: bool
) -> None:
    several = {"layer_norm": "abc", "sort": "ab", "nll_loss_forward": "ab", "max_pool": "ab"}
    names = next((names for part, names in several.items() if part in operator), "a")
    c = CNode("F", "fwd", tuple(names), Call(operator, args))  # type: ignore[arg-type]
    index = torch.zeros(32, dtype=torch.int64)
    values = {**VALUES, "m": torch.randn(64, 8), "i": index, "j": index[:, None]}
    values |= {"c": torch.randn(2, 2, 3, 3), "s": torch.tensor(1.0)}
    assert InductorPrice(Kernels(CPU), values, 1.0).may_fuse(c) == generated


def test_what_inductor_cannot_lower_has_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.graph import GraphLowering

    def padded(x: Tensor) -> tuple[Tensor, ...]:
        return (torch.constant_pad_nd(x, (1, 2)),)

    traced = trace(padded, [Layout((4,), (1,), torch.float32, "cpu")])
    assert traced.is_generated

    def fails(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(GraphLowering, "run", fails)
    assert not traced.is_generated


def broken(change: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]) -> object:
    """Stands in for the compiler; its kernel gives what `change` makes of the right results."""

    def compile_traced(traced: object) -> object:
        module = traced.module  # type: ignore[attr-defined]
        return Compiling(lambda args: change(tuple(module(*args))))

    return compile_traced


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda r: (r[0], r[1] * 1.001), "differs by"),
        (lambda r: (r[0], r[1] * float("nan")), "differs by"),
        (lambda r: (r[0], r[1].double()), "another type"),
        (lambda r: (r[0].contiguous(), r[1]), "another type, shape or stride"),
        (lambda r: (r[0], r[0][:, 0]), "share storage"),
    ],
)
def test_a_kernel_that_is_wrong_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]],
    why: str,
) -> None:
    monkeypatch.setattr(made, "compile_traced", broken(change))
    kernels = Kernels(CPU)
    assert kernels.kernel(REGION, list(VALUES.values())) is None
    (failure,) = kernels.failures
    assert failure.startswith("F1_F2: ")
    assert why in failure


def test_a_kernel_that_is_wrong_where_a_mask_is_set_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Made-up masks were False all over: the product with one was 0 in whatever a kernel did."""
    calls = (
        InnerCall(("t",), Call("aten.tanh.default", (Ref("x"),))),
        InnerCall(("y",), Call("aten.mul.Tensor", (Ref("t"), Ref("m")))),
    )
    region = CNode("F1_F2", "fwd", ("y",), Call("fused", (Ref("x"), Ref("m")), region=calls))
    monkeypatch.setattr(made, "compile_traced", broken(lambda r: (r[0] * 2,)))
    kernels = Kernels(CPU)
    given = [torch.randn(64, 32), torch.zeros(64, 32, dtype=torch.bool)]
    assert kernels.kernel(region, given) is None
    (failure,) = kernels.failures
    assert "differs by" in failure


def test_a_compiler_that_fails_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> object:
        raise KernelError("CppCompileError: no such file")

    monkeypatch.setattr(made, "compile_traced", fails)
    kernels = Kernels(CPU)
    for _ in range(2):
        assert kernels.kernel(REGION, list(VALUES.values())) is None
    assert kernels.failures == ["F1_F2: CppCompileError: no such file"]


def test_kernels_that_were_begun_are_compiled_beside_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All are handed to compilers before any is waited for. One that fails is told by who asks."""
    seen: list[str] = []

    def begun(traced: Any) -> Compiling:
        seen.append("begun")
        compiled = compile_traced(traced)
        number = seen.count("begun")

        def wait() -> None:
            seen.append("waited")
            if number == 2:
                raise RuntimeError("g++ was killed")

        return Compiling(compiled.compiled, (*compiled.waits, wait))

    monkeypatch.setattr(made, "compile_traced", begun)
    kernels = Kernels(CPU)
    given = list(VALUES.values())
    others = [
        replace(REGION, call=replace(REGION.call, region=(*REGION.call.region, more)))
        for more in (
            InnerCall(("u",), Call("aten.neg.default", (Ref("x"),))),
            InnerCall(("u",), Call("aten.abs.default", (Ref("x"),))),
        )
    ]
    for c in (REGION, *others, REGION):
        kernels.begin(c, given)
    assert seen == ["begun"] * 3
    assert kernels.compiling == 3
    for _ in range(2):  # for each once
        kernels.wait()
        assert seen == ["begun"] * 3 + ["waited"] * 3
        assert kernels.compiling == 0
    of = [kernels.kernel(c, given) for c in (REGION, *others)]
    assert [kernel is not None for kernel in of] == [True, False, True]
    assert kernels.failures == ["F1_F2: RuntimeError: g++ was killed"]
    assert seen.count("begun") == 3
    kernels.begin(REGION, given)
    assert kernels.kernel(REGION, given) is of[0]
    assert seen.count("begun") == 3


def test_other_threads_wait_for_their_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeps the waits of a module is for the thread that asked."""
    from torch._inductor.async_compile import AsyncCompile

    waited: list[dict[str, object]] = []
    monkeypatch.setattr(AsyncCompile, "wait", lambda self, scope: waited.append(scope))
    usual = AsyncCompile.wait
    own: dict[str, Any] = {"own": 1}
    other: dict[str, Any] = {"other": 1}
    with waits_kept() as waits:
        AsyncCompile().wait(own)
        thread = Thread(target=AsyncCompile().wait, args=(other,))
        thread.start()
        thread.join()
    assert waited == [other]
    assert AsyncCompile.wait is usual
    (wait,) = waits
    wait()
    assert waited == [other, own]


def test_two_threads_leave_the_waits_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second begins while the first is inside. What it saved then was the first one's, which it
    put back when it left, for all modules of the process."""
    from torch._inductor.async_compile import AsyncCompile

    usual, asks, entered = AsyncCompile.wait, Event(), list[str]()

    class Asked:
        lock = RLock()

        def __enter__(self) -> None:
            asks.set()
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()

    def second() -> None:
        with waits_kept():
            entered.append("second")

    monkeypatch.setattr(inductor, "_PATCHING", Asked())
    thread = Thread(target=second)
    with waits_kept():
        asks.clear()
        thread.start()
        asks.wait()
        assert entered == []
    thread.join()
    assert entered == ["second"]
    assert AsyncCompile.wait is usual


def test_a_missing_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import cpp_builder, exc

    def nothing() -> str:
        raise exc.InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", nothing)
    assert "no C++ compiler" in (missing(CPU) or "")


def test_what_cannot_be_traced_has_no_kernel() -> None:
    def fails(x: Tensor) -> tuple[Tensor, ...]:
        return (x.view(5),)

    with pytest.raises(KernelError):
        trace(fails, [Layout((4,), (1,), torch.float32, "cpu")])


@pytest.mark.parametrize(("planned", "is_used"), [(64, True), (63, False)])
def test_a_kernel_that_takes_more_than_was_proven_is_not_used(planned: int, is_used: bool) -> None:
    """Another machine, other threads: the workspace is measured again where a plan is bound."""

    class Known(Kernels):
        def kernel(self, c: CNode, args: Sequence[Tensor], over: object = ()) -> Kernel:
            return kernel

    kernel = Kernel((), lambda *args: args, object(), 0.0, 64)
    known = Known(CPU)
    by_name = make_kernels(known, {"fused1": [(replace(REGION, workspace=Const(planned)), [])]})
    assert (by_name == {"fused1": kernel}) is is_used
    assert known.by_calls == (0 if is_used else 1)
    assert ["needs 64 bytes of workspace here, 63 were planned" in f for f in known.failures] == (
        [] if is_used else [True]
    )
