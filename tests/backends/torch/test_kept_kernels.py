"""Kernels that another process made: the same bits, and nothing that others may have written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from remat_compile.backends.torch.kernels import Kernels, kept_kernels, made, missing
from remat_compile.backends.torch.kernels.generated import Generated
from remat_compile.backends.torch.kernels.kept import KeptKernels
from remat_compile.ir.graph import Call, CNode, InnerCall, Ref

CPU = torch.device("cpu")
VALUES = [torch.randn(8, 32), torch.randn(8, 32)]
REGION = CNode(
    "region",
    "fwd",
    ("y",),
    Call(
        "fused",
        (Ref("a"), Ref("b")),
        region=(
            InnerCall(("t",), Call("aten.add.Tensor", (Ref("a"), Ref("b")))),
            InnerCall(("y",), Call("aten.tanh.default", (Ref("t"),))),
        ),
    ),
)
needs_posix = pytest.mark.skipif(os.name != "posix", reason="owners of files are those of POSIX")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[object]:
    """Functions that Inductor compiled, into a cache of this test's own."""
    if missing(CPU) is not None:
        pytest.skip("no C++ compiler")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    seen: list[object] = []
    inner: Callable[..., Any] = made.compile_traced

    def counted(traced: object) -> Any:
        seen.append(traced)
        return inner(traced)

    monkeypatch.setattr(made, "compile_traced", counted)
    return seen


def result() -> Tensor:
    kernel = Kernels(CPU, kept=kept_kernels()).kernel(REGION, VALUES)
    assert kernel is not None
    assert kernel.refuses  # arguments of another layout, as those of Inductor do
    (y,) = kernel(*VALUES)
    return y


def record() -> Path:
    (path,) = kept_kernels().folder.glob("*.json")
    return path


def library() -> Path:
    (path,) = kept_kernels().folder.glob("*.so")
    return path


def changed(path: Path, code: bytes) -> None:
    """Another file in its place: a library may be in use."""
    path.unlink()
    path.write_bytes(code)
    path.chmod(0o600)


@needs_posix
def test_a_kernel_is_compiled_once_for_all_processes(compiled: list[object]) -> None:
    first = result()
    assert len(compiled) == 1
    assert torch.equal(result(), first)
    assert len(compiled) == 1
    assert kept_kernels().folder.stat().st_mode & 0o077 == 0


def edited(**parts: object) -> Callable[[], None]:
    def change() -> None:
        changed(record(), json.dumps({**json.loads(record().read_text()), **parts}).encode())

    return change


@needs_posix
@pytest.mark.parametrize(
    "change",
    [
        lambda: changed(library(), library().read_bytes() + b"\0"),
        lambda: library().unlink(),
        lambda: library().chmod(0o622),
        lambda: record().chmod(0o622),
        lambda: changed(record(), b"{"),
        lambda: changed(record(), b"[" * 100_000),
        edited(function="other"),
        edited(libraries={"cpp_fused_0": "../" + "0" * 61}),
        edited(libraries={"cpp_fused_0": 7}),
        edited(libraries=[]),
        edited(call="def call(args):\n    return (print(args),)"),
    ],
)
def test_what_was_changed_is_compiled_again(
    compiled: list[object], change: Callable[[], None]
) -> None:
    first = result()
    change()
    assert torch.equal(result(), first)
    assert len(compiled) == 2
    result()
    assert len(compiled) == 2  # it was written again


@needs_posix
@pytest.mark.parametrize("which", ["own", "around"])
def test_a_folder_that_others_may_write_to_is_not_looked_at(
    compiled: list[object], which: str
) -> None:
    result()
    folder = kept_kernels().folder
    (folder if which == "own" else folder.parent).chmod(0o777)
    before = sorted(folder.iterdir())
    result()
    assert len(compiled) == 2
    assert sorted(folder.iterdir()) == before


@needs_posix
def test_a_folder_behind_a_link_is_not_looked_at(compiled: list[object], tmp_path: Path) -> None:
    result()
    folder = kept_kernels().folder
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    result()
    assert len(compiled) == 2


@needs_posix
def test_other_settings_of_inductor_have_other_kernels(compiled: list[object]) -> None:
    from torch._inductor import config

    result()
    with config.patch({"cpp.simdlen": 1}):
        result()
    assert len(compiled) == 2
    result()
    assert len(compiled) == 2


@needs_posix
def test_other_threads_have_other_kernels(
    compiled: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    result()
    monkeypatch.setenv("OMP_DYNAMIC", "true")
    result()
    assert len(compiled) == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "import os",
        "call = 1",
        "def other(args):\n    return ()",
        "@print\ndef call(args):\n    return ()",
        "def call(args, more):\n    return ()",
        "def call(args=print):\n    return ()",
        "def call(*args):\n    return ()",
        "def call(args: print):\n    return ()",
        "def call(args):\n    return ()\nprint(1)",
        "def call(args):\n    import os",
        "def call(args):\n    return [x for x in args]",
        "def call(args):\n    return (lambda: 1)()",
        "def call(args):\n    return args.__class__",
        "def call(args):\n    args.append(1)",
        "def call(args):\n    args.clear(1)",
        "def call(args):\n    torch.load('x')",
        "def call(args):\n    return torch.ops",
        "def call(args):\n    torch.float32 = 1",
        "def call(args):\n    empty_strided_cpu = cpp_fused_0",
        "def call(args):\n    cpp_fused_0(*args)",
        "def call(args):\n    empty_strided_cpu(size=args)",
        "def call(args):\n    eval('1')",
        "def call(args):\n    while True:\n        pass",
        "def call(args):\n    return f'{args}'",
        "def call(args):\n    return (" + "(" * 300 + ")" * 300 + ")",
    ],
)
def test_a_text_that_does_more_than_to_allocate_and_call_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a kernel"):
        Generated(text, {"cpp_fused_0": Path("nowhere.so")}).load()


def test_what_is_no_generated_code_is_not_kept(tmp_path: Path) -> None:
    kept = KeptKernels(tmp_path / "kept")
    kept.keep("f", lambda args: args)
    kept.keep("f", print)
    kept.keep("f", object())
    assert not (tmp_path / "kept").exists()
