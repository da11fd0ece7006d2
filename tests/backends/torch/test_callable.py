"""Operators that a graph names and a plan may not call are refused before anything runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from helpers.clock import HANGS_S
from remat_compile.backends.jax.support import require_lowerings
from remat_compile.backends.torch import emit
from remat_compile.costs import measured
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.expr import Const, Sym, mul
from remat_compile.ir.graph import DTYPE_BYTES, Atom, Call, Ref
from remat_compile.ir.text.parser import parse_program, read_syntax
from remat_compile.operators import effects
from remat_compile.operators.aten import (
    atom_of,
    from_torch_dtype,
    op_name,
    resolve_op,
    to_torch,
    torch_dtype,
)
from remat_compile.operators.callable import callable_op, check_call, check_operators, check_results
from remat_compile.operators.executor import execute

TEXT = """fbir 1
graph @g {{
  %x : input f32[4] bytes 16
  %y : output f32[4] bytes 16
  %d : tangent f32[4] bytes 16
  {view}F1: fwd %y = {call} at net.py:7
  L: loss %d = loss(%y)
}}
bind {{
  arg "x" = %x
  result %y tangent %d
}}
schedule @plan by "someone" {{ F1; L; free %d }}
"""
FUNCTIONAL = (
    *("aten.mm.default", "aten.relu.default", "aten.native_dropout.default", "aten.empty_like"),
    *("aten.gelu.default", "aten.full.default", "aten.split.Tensor", "prims.convert_element_type"),
    *("aten._native_batch_norm_legit_functional.default", "aten.__lshift__.Tensor"),
)
HARMFUL = {
    "aten.from_file.default": "text and no tensor",
    "aten.relu_.default": "writes to its arguments",
    "aten.add_.Tensor": "writes to its arguments",
    "aten.add.out": "writes to its arguments",
    "aten.resize_.default": "writes to its arguments",
    "aten.set_data.default": "writes to its arguments",
    "aten._print.default": "returns nothing",
    "aten._cufft_set_plan_cache_max_size.default": "returns nothing",
    "aten._backward.default": "returns nothing",
    "debugprims.load_tensor.default": "more than compute tensors",
    "inductor._alloc_from_pool.default": "more than compute tensors",
    "inductor._reinterpret_tensor.default": "more than compute tensors",
    "_c10d_functional.all_reduce.default": "more than compute tensors",
    "c10d.send.default": "more than compute tensors",
    "profiler._record_function_enter_new.default": "more than compute tensors",
    "rngprims.philox_rand.default": "more than compute tensors",
    "aten._reshape_alias.default": "reads beyond its tensors",
    "aten._sparse_coo_tensor_unsafe.default": "reads beyond its tensors",
    "aten.segment_reduce.default": "reads beyond its tensors",
    "aten.resize.default": "reads beyond its tensors",
    "aten.set.source_Storage": "reads beyond its tensors",
    "aten.hash.generic": "returns no tensor",
    "aten.initial_seed.default": "returns no tensor",
    "aten.to_here.default": "returns no tensor",
    "higher_order.run_and_save_rng_state": "runs functions",
    "higher_order.cond": "runs functions",
}


@pytest.mark.parametrize("name", FUNCTIONAL)
def test_functional_operators(name: str) -> None:
    callable_op(name if name.count(".") == 2 else f"{name}.default")


@pytest.mark.parametrize("name", HARMFUL)
def test_harmful_operators(name: str) -> None:
    try:
        callable_op(name)
    except FBError as error:
        (diagnostic,) = error.diagnostics
    else:
        raise AssertionError("it may be called")
    if diagnostic.code == "FB0901":
        pytest.skip(f"this PyTorch does not register {name}")
    assert diagnostic.code == "FB0942"
    assert name in diagnostic.message
    assert HARMFUL[name] in diagnostic.message


@pytest.mark.parametrize(
    "name",
    ["load_library.x.y", "import_module.__call__.x", "__class__.mro.x", "aten.__class__.mro"],
)
def test_attributes_that_are_no_operators(name: str) -> None:
    with pytest.raises(FBError) as caught:
        callable_op(name)
    assert caught.value.diagnostics[0].code == "FB0901"


CALLS = {
    "uninitialised": ("aten.resize.default(%x, [4])", ""),
    "file": ('aten.from_file.default("PWNED", true, 4)', ""),
    "view": ("aten.relu.default(%v)", "%v = view of %x aten.set_data.default(%x, %x)\n  "),
    "replay": (
        "aten.relu.default(%x) replay { %y = aten.resize.default(%x, [4]) }",
        "",
    ),
}


def test_what_writes_is_refused_as_the_text_is_read() -> None:
    for call in (
        "aten.relu_.default(%x)",
        "aten.relu.default(%x) replay { %y = aten.relu_.default(%x) }",
    ):
        with pytest.raises(FBError) as caught:
            parse_program(TEXT.format(call=call, view=""), "plan.fbir")
        assert caught.value.diagnostics[0].code == "FB0225"
        assert str(caught.value.diagnostics[0].span).startswith("plan.fbir:6:")


@pytest.mark.parametrize("case", CALLS)
def test_the_place_is_named_and_nothing_runs(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call, view = CALLS[case]
    text = TEXT.format(call=call, view=view)
    with pytest.raises(FBError) as caught:
        parse_program(text, "plan.fbir")
    assert caught.value.diagnostics[0].code in ("FB0225", "FB0942")
    program = read_syntax(text, "plan.fbir")
    values = {"x": torch.zeros(4)}
    for refuse in (
        lambda: emit(program, program.schedules[0]),
        lambda: execute(program, program.schedules[0].steps, values),
        lambda: measured(program, values),
        lambda: check_operators(program.graph),
    ):
        with pytest.raises(FBError) as caught:
            refuse()
        diagnostic = caught.value.diagnostics[0]
        assert diagnostic.code == "FB0942"
        assert str(diagnostic.span).startswith("plan.fbir:6:")
        assert diagnostic.message.startswith("%v" if case == "view" else "F1")
    with pytest.raises(FBError) as caught:
        require_lowerings(program.graph)
    assert {d.code for d in caught.value.diagnostics} == {"FB0920"}
    assert not list(tmp_path.iterdir())
    assert values["x"].tolist() == [0.0] * 4


@pytest.fixture
def library() -> Iterator[None]:
    made = torch.library.Library("codegen_test", "DEF")  # type: ignore[no-untyped-call]
    made.define("write_file(str name, Tensor x) -> Tensor")  # type: ignore[no-untyped-call]
    made.define("fill(Tensor(a!) x) -> Tensor")  # type: ignore[no-untyped-call]
    made.define("twice(Tensor x) -> Tensor")  # type: ignore[no-untyped-call]
    yield
    made._destroy()  # type: ignore[no-untyped-call]


def test_libraries_of_users(library: None) -> None:
    callable_op("codegen_test.twice.default")
    with pytest.raises(FBError, match="writes to its arguments"):
        callable_op("codegen_test.fill.default")
    check_call(Call("codegen_test.twice.default", (1, 2.0)))
    check_call(Call("aten.gelu.default", (), (("approximate", "tanh"),)))
    for args in (("a", 1), (1, ("a",))):
        with pytest.raises(FBError, match="may name a file") as caught:
            check_call(Call("codegen_test.write_file.default", args))
        assert caught.value.diagnostics[0].code == "FB0942"


def test_every_namespace_of_pytorch_is_known() -> None:
    """A new one must be put into the list of `make_operators.py`."""
    code = "import torch\nprint(*{n.split('::')[0] for n in torch._C._dispatch_get_all_op_names()})"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANGS_S
    )
    # Tensor arithmetic of exporters, which is as harmless as a user's library.
    unknown = {name for name in ran.stdout.split() if effects(f"{name}.any.default") is None}
    assert unknown <= {"onnx", "quantized_decomposed"}


def test_operators_that_give_lists_have_any_number_of_results() -> None:
    check_results(Call("aten.split_copy.Tensor"), ("a", "b", "c"))
    with pytest.raises(FBError, match="2 results of aten"):
        check_results(Call("aten.relu.default"), ("a", "b"))


# -- Operators and atoms convert both ways, and unknown ones are refused by name ------------------


@pytest.mark.parametrize(
    "name",
    [
        "aten.addmm.default",
        "aten.split.Tensor",
        "prims.convert_element_type.default",
        "higher_order.run_and_save_rng_state",
    ],
)
def test_operator_names_round_trip(name: str) -> None:
    assert op_name(resolve_op(name)) == name


def test_custom_namespace_resolves() -> None:
    library = torch.library.Library("remat_compile_test_ops", "DEF")  # type: ignore[no-untyped-call]
    library.define("twice(Tensor x) -> Tensor")  # type: ignore[no-untyped-call]
    assert op_name(resolve_op("remat_compile_test_ops.twice.default")).endswith("twice.default")


@pytest.mark.parametrize(
    "name",
    ["aten.admm.default", "aten.addmm.nosuch", "addmm", "load_library.x.y", "aten._dir.x", "a.b.c"],
)
def test_unknown_operator_is_refused(name: str) -> None:
    with pytest.raises(FBError) as caught:
        resolve_op(name)
    assert caught.value.diagnostics[0].code == "FB0901"


def test_unknown_operator_names_the_nearest() -> None:
    with pytest.raises(FBError, match=r'Did you mean "aten.addmm'):
        resolve_op("aten.admm.default")


@pytest.mark.parametrize("name", sorted(DTYPE_BYTES))
def test_every_dtype_of_the_ir_converts(name: str) -> None:
    dtype = torch_dtype(name)
    assert from_torch_dtype(dtype) == name
    assert dtype.itemsize == DTYPE_BYTES[name]


@pytest.mark.parametrize(
    "value",
    [
        torch.bfloat16,
        torch.device("cpu"),
        torch.device("cuda:1"),
        torch.strided,
        torch.channels_last,
        torch.preserve_format,
        torch.contiguous_format,
    ],
)
def test_atoms_round_trip(value: object) -> None:
    atom = atom_of(value)
    assert atom is not None
    assert to_torch(atom, {}, {}) == value


def test_other_objects_are_no_atoms() -> None:
    assert atom_of(3) is None
    assert atom_of("cpu") is None


def test_unsupported_atoms_are_refused() -> None:
    for value in (torch.qint8, torch.sparse_bsr):
        with pytest.raises(FBError) as caught:
            atom_of(value)
        assert caught.value.diagnostics[0].code == "FB0902"
    for atom in (
        Atom("dtype", "f33"),
        Atom("device", "quantum"),
        Atom("layout", "x"),
        Atom("format", "channels"),
    ):
        with pytest.raises(FBError) as caught:
            to_torch(atom, {}, {})
        assert caught.value.diagnostics[0].code == "FB0902"


def test_arguments_convert() -> None:
    x = torch.ones(2)
    arg = (Ref("x"), None, True, 0.5, "mean", (mul(Const(2), Sym("b")), 3))
    assert to_torch(arg, {"b": 4}, {"x": x}) == [x, None, True, 0.5, "mean", [8, 3]]
    assert to_torch(True, {}, {}) is True
