"""Kernels called with their arguments one by one, and what they look at before they run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from remat_compile.backends.torch.kernels import Kernels, kept_kernels, missing
from remat_compile.backends.torch.kernels.direct import direct
from remat_compile.backends.torch.kernels.generated import Generated
from remat_compile.ir.graph import Call, CNode, InnerCall, Ref

CPU = torch.device("cpu")

CALL = """
def call(args):
    a0_1, a1_1, a2_1 = args
    args.clear()
    assert_size_stride(a1_1, (3, 2), (1, 3), 'input')
    buf0 = empty_strided_cpu((2, 3), (3, 1), torch.float32)
    assert_size_stride(a0_1, (2, 3), (3, 1), 'input')
    del a0_1
    buf1 = reinterpret_tensor(a1_1, (6,), (1,), 0)
    del a1_1
    return (buf0, buf1, reinterpret_tensor(buf0, (6,), (1,), 0))
"""
ARGS = [torch.ones(2, 3), torch.arange(6.0).view(2, 3).t(), torch.ones(5)]


class Otherwise:
    def __init__(self) -> None:
        self.given: list[tuple[Tensor, ...]] = []

    def __call__(self, *args: Tensor) -> tuple[Tensor, ...]:
        self.given.append(args)
        return ()


def loaded(text: str) -> object:
    return Generated(text.strip(), {}).load()


def test_what_is_left_of_a_call() -> None:
    otherwise = Otherwise()
    run = direct(loaded(CALL), otherwise)
    assert run is not None
    buf0, buf1, flat = run(*ARGS)
    assert (buf0.shape, buf0.stride(), flat.data_ptr()) == ((2, 3), (3, 1), buf0.data_ptr())
    assert torch.equal(buf1, torch.arange(6.0))
    assert otherwise.given == []


@pytest.mark.parametrize(
    ("place", "other"),
    [
        (1, torch.ones(3, 2)),
        (1, torch.ones(2, 3)),
        (1, torch.ones(2, 4).t()[:3]),
        (1, torch.ones(6)),
        (1, torch.ones(1, 2, 3).transpose(1, 2)),
    ],
)
def test_other_sizes_and_strides_are_run_otherwise(place: int, other: Tensor) -> None:
    otherwise = Otherwise()
    run = direct(loaded(CALL), otherwise)
    assert run is not None
    args = [*ARGS[:place], other, *ARGS[place + 1 :]]
    assert run(*args) == ()
    (given,) = otherwise.given
    assert all(one is two for one, two in zip(given, args, strict=True))


@pytest.mark.parametrize("place", [0, 2])
def test_what_the_code_does_not_read_is_not_looked_at(place: int) -> None:
    otherwise = Otherwise()
    run = direct(loaded(CALL), otherwise)
    assert run is not None
    assert len(run(*ARGS[:place], torch.ones(7), *ARGS[place + 1 :])) == 3
    assert otherwise.given == []


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("    assert_size_stride(a1_1, (3, 2), (1, 3), 'input')\n", ""),  # read, and not asserted
        ("(a1_1, (3, 2), (1, 3), 'input')", "(a1_1, (3, buf0), (1, 3), 'input')"),
        ("    args.clear()\n", ""),
        ("a0_1, a1_1, a2_1 = args", "(a0_1, a1_1), a2_1 = args"),
        ("a0_1, a1_1, a2_1 = args", "a1_1, a1_1, a2_1 = args"),
        ("a0_1, a1_1, a2_1 = args", "a1_1 = args"),
        ("    del a0_1\n", "    a2_1 = buf0\n"),
        ("    del a0_1\n", "    a2_1 = args\n"),
        ("a2_1", "_otherwise"),
    ],
)
def test_a_text_of_another_kind_has_no_such_function(was: str, now: str) -> None:
    assert was in CALL
    assert direct(loaded(CALL.replace(was, now)), Otherwise()) is None


def test_a_function_without_a_text_has_none() -> None:
    assert direct(lambda args: args, Otherwise()) is None
    assert direct(print, Otherwise()) is None


NORM = CNode(
    "B",
    "bwd",
    ("dx", "dw"),
    Call(
        "fused",
        tuple(map(Ref, ("dy", "x", "mean", "rstd", "w", "b"))),
        region=(
            InnerCall(
                ("t", "dw", None),
                Call(
                    "aten.native_layer_norm_backward.default",
                    (
                        *(Ref("dy"), Ref("x"), (16,), Ref("mean"), Ref("rstd")),
                        *(Ref("w"), Ref("b"), (True, True, False)),
                    ),
                ),
            ),
            InnerCall(("dx",), Call("aten.tanh.default", (Ref("t"),))),
        ),
    ),
)


def of_norm() -> list[Tensor]:
    torch.manual_seed(0)
    x, dy, w, b = torch.randn(8, 16), torch.randn(8, 16), torch.randn(16), torch.randn(16)
    _, mean, rstd = torch.native_layer_norm(x, [16], w, b, 1e-5)
    return [dy, x, mean, rstd, w, b]


def runner(kernels: Kernels) -> tuple[object, Sequence[Tensor]]:
    args = of_norm()
    kernel = kernels.kernel(NORM, args)
    assert kernel is not None, kernels.failures
    run = kernel.runner()
    assert run is not kernel
    assert run.__name__ == "kernel"
    for made, wanted in zip(run(*args), kernel(*args), strict=True):
        assert torch.equal(made, wanted)
        assert made.stride() == wanted.stride()
    return run, args


@pytest.mark.filterwarnings("error::UserWarning")
def test_kernels_of_this_process_and_kept_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backward of a norm does not read the bias: so it was asked before each call how all of
    its arguments lie."""
    if missing(CPU) is not None:
        pytest.skip("no C++ compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        run, args = runner(Kernels(CPU, kept=kept_kernels()))
        assert callable(run)
        run(*args[:5], torch.randn(32)[::2])  # nobody reads it: no FB0915
