"""Operators and atoms convert both ways, and unknown ones are refused by name."""

from __future__ import annotations

import pytest
import torch

from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.expr import Const, Sym, mul
from remat_compile.ir.graph import DTYPE_BYTES, Atom, Ref
from remat_compile.operators.aten import (
    atom_of,
    from_torch_dtype,
    op_name,
    resolve_op,
    to_torch,
    torch_dtype,
)


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
