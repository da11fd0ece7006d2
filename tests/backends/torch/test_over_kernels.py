"""Kernels that write results over arguments: the same values, and nothing else is written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from remat_compile.backends.torch.kernels import Kernel, Kernels, kept_kernels, made, missing
from remat_compile.backends.torch.kernels.inductor import Compiling
from remat_compile.backends.torch.kernels.over import copied
from remat_compile.backends.torch.overwrites import Pairs
from remat_compile.ir.graph import Call, CNode, InnerCall, Ref

CPU = torch.device("cpu")


def region(results: tuple[str, ...], *calls: tuple[str, str, tuple[object, ...]]) -> CNode:
    """Calls `(written, operator, arguments)`; names in arguments are those of values."""

    def arg(a: Any) -> Any:
        return Ref(a) if isinstance(a, str) else a

    inner = tuple(
        InnerCall((name,), Call(f"aten.{op}", tuple(map(arg, args)))) for name, op, args in calls
    )
    written = {name for name, _, _ in calls}
    reads = [a for _, _, args in calls for a in args if isinstance(a, str) and a not in written]
    refs = tuple(Ref(name) for name in dict.fromkeys(reads))
    return CNode("region", "bwd", results, Call("fused", refs, (), inner))


GATED = region(
    ("p", "q"),
    ("av", "view.default", ("a", (4, 8, 32))),
    ("bv", "view.default", ("b", (4, 8, 32))),
    ("s", "silu.default", ("av",)),
    ("p", "mul.Tensor", ("bv", "s")),
    ("q", "silu_backward.default", ("bv", "av")),
)
"""(a, b) -> (p, q), in another shape."""

READ_LATER = region(
    ("n", "m"),
    ("x", "add.Tensor", ("a", "b")),
    ("m", "mean.dim", ("x", (0,), True)),
    ("n", "sub.Tensor", ("a", "m")),
)
"""The second loop reads what the first one read, after its reduction."""

TURNED = region(
    ("p", "q"),
    ("at", "t.default", ("a",)),
    ("p", "add.Tensor", ("a", "at")),
    ("q", "mul.Tensor", ("p", "at")),
)
"""Each element is read at two places: written over at once, one would be gone."""


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape)


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    if missing(CPU) is not None:
        pytest.skip("no C++ compiler")
    return Kernels(CPU)


CASES: dict[str, tuple[CNode, list[Tensor], Pairs]] = {
    "first over second": (GATED, [normal(32, 32), normal(32, 32)], ((0, 1),)),
    "second over first": (GATED, [normal(32, 32), normal(32, 32)], ((1, 0),)),
    "both": (GATED, [normal(32, 32), normal(32, 32)], ((0, 0), (1, 1))),
    "both, crosswise": (GATED, [normal(32, 32), normal(32, 32)], ((0, 1), (1, 0))),
    "after a reduction": (READ_LATER, [normal(64, 48), normal(64, 48)], ((0, 0),)),
    "of an argument that the reduction alone reads": (
        READ_LATER,
        [normal(64, 48), normal(64, 48)],
        ((0, 1),),
    ),
    "transposed": (
        region(("y",), ("t", "mul.Tensor", ("a", "b")), ("y", "tanh.default", ("t",))),
        [normal(48, 64).t(), normal(48, 64).t()],
        ((0, 1),),
    ),
    "channels last": (
        region(("y",), ("t", "mul.Tensor", ("a", "b")), ("y", "tanh.default", ("t",))),
        [normal(2, 8, 6, 4).to(memory_format=torch.channels_last) for _ in "ab"],
        ((0, 0),),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_values_are_those_of_the_plain_kernel(name: str, kernels: Kernels) -> None:
    c, args, over = CASES[name]
    plain, kernel = kernels.kernel(c, args), kernels.kernel(c, args, over)
    assert plain is not None
    assert kernel is not None
    assert kernel is not plain
    wanted = plain(*args)
    for run in (kernel, kernel.runner()):
        given = copied(args)
        results = run(*given)
        for result, other in zip(results, wanted, strict=True):
            torch.testing.assert_close(result, other, rtol=1e-5, atol=1e-6)
            assert (result.shape, result.stride()) == (other.shape, other.stride())
        stored = {place for _, place in over}
        for at, place in over:
            assert results[at].data_ptr() == given[place].data_ptr()
        for place, (now, before) in enumerate(zip(given, args, strict=True)):
            assert place in stored or torch.equal(now, before)
    assert kernels.failures == []


def test_what_is_read_after_it_would_be_written_is_copied_or_refused(kernels: Kernels) -> None:
    """Right, or none; and a copy is counted as workspace, for which there was no room."""
    args = [normal(32, 32)]
    plain, kernel = kernels.kernel(TURNED, args), kernels.kernel(TURNED, args, ((0, 0),))
    assert plain is not None
    if kernel is None:
        return
    given = copied(args)
    for result, other in zip(kernel(*given), plain(*args), strict=True):
        torch.testing.assert_close(result, other, rtol=1e-5, atol=1e-6)
    assert kernel.workspace_bytes > plain.workspace_bytes


def test_arguments_of_other_layouts_run_by_the_calls(kernels: Kernels) -> None:
    """And are as they were."""
    c, args, over = CASES["transposed"]
    kernel = kernels.kernel(c, args, over)
    assert kernel is not None
    for run in (kernel.runner(), kernel):
        for place in range(2):
            kernel.is_told = False
            given = copied(args)
            given[place] = given[place].contiguous()
            with pytest.warns(UserWarning, match="FB0915"):
                (y,) = run(*given)
            torch.testing.assert_close(y, torch.tanh(args[0] * args[1]))
            assert all(map(torch.equal, given, args))


@pytest.mark.parametrize(
    "args",
    [
        [torch.randn(32, 1).expand(32, 32), torch.randn(32, 32)],  # elements in one place
        [torch.randn(32, 64)[:, :32], torch.randn(32, 32)],  # gaps
        [torch.randn(32, 32).t(), torch.randn(32, 32)],  # the result lies otherwise
        [torch.randn(32, 32, dtype=torch.float64), torch.randn(32, 32)],  # another type
        [torch.randn(32, 1), torch.randn(32, 32)],  # a smaller one
    ],
)
def test_there_is_none_where_the_result_does_not_fit(args: list[Tensor], kernels: Kernels) -> None:
    c = region(
        ("y",),
        ("s", "clone.default", ("b",)),
        ("t", "mul.Tensor", ("s", "a")),
        ("u", "_to_copy.default", ("t",)),
        ("y", "add.Tensor", ("b", "b")),
    )
    assert [arg.name for arg in c.call.args if isinstance(arg, Ref)] == ["b", "a"]
    args = args[::-1]
    assert kernels.kernel(c, args) is not None
    assert kernels.kernel(c, args, ((0, 1),)) is None
    assert kernels.failures == []  # the plain one stands in


def wrong(compiled: Any, how: str) -> Any:
    """A kernel for GATED with result 0 over argument 1 that does something else as well."""

    def run(args: list[Tensor]) -> Sequence[Tensor]:
        a, b = args
        p, q = compiled([a, b])
        match how:
            case "other argument":
                a.mul_(2)
            case "not over":
                p = p.clone()
            case "other value":
                p[0, 0, 0] += 1
        return p, q

    return run


@pytest.mark.parametrize("how", ["other argument", "not over", "other value"])
def test_a_kernel_that_writes_elsewhere_is_not_used(
    how: str, monkeypatch: pytest.MonkeyPatch, kernels: Kernels
) -> None:
    c, args, over = CASES["first over second"]
    inner = made.compile_traced
    monkeypatch.setattr(
        made, "compile_traced", lambda traced: Compiling(wrong(inner(traced).kernel(), how))
    )
    assert Kernels(CPU).kernel(c, args, over) is None


def test_one_whose_text_is_not_known_is_not_used(
    monkeypatch: pytest.MonkeyPatch, kernels: Kernels
) -> None:
    """It might write before it notices an argument of another layout."""
    c, args, over = CASES["first over second"]
    inner = made.compile_traced
    monkeypatch.setattr(
        made, "compile_traced", lambda traced: Compiling(wrong(inner(traced).kernel(), "none"))
    )
    asked = Kernels(CPU)
    assert asked.kernel(c, args, over) is None
    assert asked.kernel(c, args) is not None


@pytest.mark.skipif(missing(CPU) is not None, reason="no C++ compiler")
def test_it_is_kept_beside_the_plain_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    seen: list[object] = []
    inner = made.compile_traced

    def counted(traced: Any) -> Any:
        seen.append(traced)
        return inner(traced)

    monkeypatch.setattr(made, "compile_traced", counted)
    c, args, over = CASES["both, crosswise"]

    def results() -> list[Tensor]:
        kernels = Kernels(CPU, kept=kept_kernels())
        both: list[Kernel | None] = [kernels.kernel(c, args), kernels.kernel(c, args, over)]
        return [r for kernel in both if kernel is not None for r in kernel(*copied(args))]

    first = results()
    assert len(first) == 4
    assert len(seen) == 2
    assert all(map(torch.equal, results(), first))
    assert len(seen) == 2
