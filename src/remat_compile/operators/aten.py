"""Operators and arguments: names and atoms of the IR <-> objects of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from ..ir.diagnostics import fail, nearest
from ..ir.expr import Add, CeilDiv, Const, FloorDiv, Max, Mul, RoundUp, Sym, evaluate
from ..ir.graph import Arg, Atom, AtomKind, Ref
from . import codecs  # noqa: F401 (registers operators)
from .overloads import HigherOrderOperator, OpOverload, OpOverloadPacket, registered_operators

METHODS = {
    "aten.detach.default": "detach",
    "aten.permute.default": "permute",
    "aten.t.default": "t",
    "aten.transpose.int": "transpose",
    "aten.unsqueeze.default": "unsqueeze",
    "aten.view.default": "view",
}
"""Generated code calls these operators as methods: half of the time, and easier to read."""

_DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "u16": torch.uint16,
    "u32": torch.uint32,
    "u64": torch.uint64,
    "bool": torch.bool,
    "c64": torch.complex64,
    "c128": torch.complex128,
}
_LAYOUTS: dict[str, torch.layout] = {
    "strided": torch.strided,
    "sparse_coo": torch.sparse_coo,
    "sparse_csr": torch.sparse_csr,
}
_FORMATS: dict[str, torch.memory_format] = {
    "contiguous_format": torch.contiguous_format,
    "preserve_format": torch.preserve_format,
    "channels_last": torch.channels_last,
    "channels_last_3d": torch.channels_last_3d,
}

_TABLES: dict[AtomKind, Mapping[str, object]] = {
    "dtype": _DTYPES,
    "layout": _LAYOUTS,
    "format": _FORMATS,
}
_NAMED = {of: Atom(kind, name) for kind, table in _TABLES.items() for name, of in table.items()}

ATOMS: tuple[object, ...] = tuple(_NAMED)
"""The objects of PyTorch that atoms stand for, devices left out."""


def op_name(op: OpOverload | HigherOrderOperator) -> str:
    """The name under which an operator stands in the IR; `resolve_op` inverts it.

    `aten.addmm.default`, `mylib.myop.default`, `higher_order.run_and_save_rng_state`.
    """
    if isinstance(op, HigherOrderOperator):
        return f"higher_order.{op}"
    return str(op)


@lru_cache(maxsize=4096)
def resolve_op(name: str) -> OpOverload | HigherOrderOperator:
    """The operator under a name of the IR.

    Raises FBError FB0901 when this PyTorch does not have it (with the nearest name).
    """
    parts = name.split(".")
    op: object = None
    try:
        if len(parts) == 2 and parts[0] == "higher_order":
            op = getattr(torch.ops.higher_order, parts[1])
        elif len(parts) == 3:
            packet = getattr(getattr(torch.ops, parts[0]), parts[1])
            if isinstance(packet, OpOverloadPacket):
                op = getattr(packet, parts[2])
    except (AttributeError, RuntimeError):
        op = None
    if not isinstance(op, OpOverload | HigherOrderOperator):
        message = f"PyTorch {torch.__version__} has no operator {name}."
        hint = "import the library that registers it, or use the PyTorch version of the capture"
        fail("FB0901", message + nearest(name, _known_ops()), hint=hint)
    return op


def _known_ops() -> list[str]:
    """Names of all registered operators, as the IR writes them."""
    names = []
    for qualified in registered_operators():
        name = qualified.replace("::", ".")
        names.append(name if name.count(".") == 2 else f"{name}.default")
    return names


def from_torch_dtype(dtype: torch.dtype) -> str:
    """`torch.float32` -> `f32`. Raises FBError FB0902 for a dtype that the IR has not."""
    if dtype not in _NAMED:
        fail("FB0902", f"tensors of {dtype} are not supported")
    return _NAMED[dtype].value


def torch_dtype(name: str) -> torch.dtype:
    """`f32` -> `torch.float32`. Raises FBError FB0902 for an unknown name."""
    if name not in _DTYPES:
        fail("FB0902", f"unknown dtype {name}.{nearest(name, _DTYPES)}")
    return _DTYPES[name]


def atom_of(value: object) -> Atom | None:
    """The atom for a dtype, device, layout, memory format or complex number, else None.

    Raises FBError FB0902 for one of these that the IR cannot name.
    """
    match value:
        case torch.dtype() | torch.layout() | torch.memory_format():
            if value not in _NAMED:
                fail("FB0902", f"{value} is not supported")
            return _NAMED[value]
        case torch.device():
            return Atom("device", str(value))
        case complex():
            return Atom("complex", str(value).strip("()"))
        case _:
            return None


def to_torch(arg: Arg, env: Mapping[str, int], values: Mapping[str, Any]) -> Any:
    """An argument of the IR as PyTorch takes it.

    `env` binds the symbols, `values` the names of aNodes and views; lists stay tuples
    of the IR but become Python lists here. KeyError for an unbound name; FBError FB0902
    for an atom that PyTorch does not have.
    """
    match arg:
        case Ref(name):
            return values[name]
        case Atom():
            return from_atom(arg)
        case tuple():
            return [to_torch(part, env, values) for part in arg]
        case Add() | CeilDiv() | Const() | FloorDiv() | Max() | Mul() | RoundUp() | Sym():
            return evaluate(arg, env)
        case _:
            return arg


def from_atom(atom: Atom) -> object:
    """PyTorch's object for an atom. FBError FB0902 where it has none."""
    value = atom.value
    table = _TABLES.get(atom.kind)
    if table is not None:
        if value not in table:
            fail("FB0902", f"unknown {atom.kind} {value}.{nearest(value, table)}")
        return table[value]
    try:
        return torch.device(value) if atom.kind == "device" else complex(value)
    except (RuntimeError, ValueError):
        fail("FB0902", f"{value} is no {'device' if atom.kind == 'device' else 'complex number'}")
