"""One ONNX node as the lowering table sees it: attributes, opset, and typed access to inputs.

A value that is known when the module is built (an initialiser that is not trained, a
`Constant`, a shape, and whatever follows from those) is a `Known`; everything else is a
tensor, or a list of values for ONNX sequences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ...ir.diagnostics import Diagnostic, FBError
from .exporter.record import Origin

MICROSOFT = "com.microsoft"
"""The domain of what ONNX Runtime's optimiser fuses."""

ML = "ai.onnx.ml"

_READABLE = 4096
"""Largest number of elements that an input describing a shape may have."""


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A value known at build time. `data` is what operators compute with, `items` what
    lowerings read (nested Python lists; None when too large to describe a shape). `decimal` is
    the number of a float32 scalar as its exporter had it."""

    name: str
    data: Tensor
    items: Any
    decimal: float | None = None

    def with_data(self, data: Tensor) -> Known:
        return replace(self, data=data)


def known(name: str, data: Tensor) -> Known:
    """`data` as a known value."""
    items = data.tolist() if data.numel() <= _READABLE else None
    scalar = data.numel() == 1 and data.dtype == torch.float32
    return Known(name, data, items, decimal_float(data.item()) if scalar else None)


Value: TypeAlias = "Tensor | Known | list[Any] | None"
Lowering: TypeAlias = Callable[..., Any]


def decimal_float(value: float) -> float:
    """The double with the shortest decimal that is this float32 (ONNX attributes are float32).

    The exporter had `eps=1e-5`, the file has 9.99999974e-06; this gives 1e-5 back.
    """
    return float(str(np.float32(value)))


_NUMBER = r"(?<![\w.%\]])-?\d+\.\d+(?:e[-+]?\d+)?|(?<![\w.%\]])-?\d+e[-+]?\d+"


def literals_of(text: str) -> tuple[float, ...]:
    """The floating-point numbers in the text of a PyTorch call."""
    return tuple(float(number) for number in re.findall(_NUMBER, text))


def widened(value: float, literals: Sequence[float]) -> float:
    """The double that a float32 constant was made from.

    It is the literal of the PyTorch call if one rounds to it (0.3535533905932738; -1.8e308
    where the file has -inf), else the one with the shortest decimal.
    """
    single = np.float32(value)
    with np.errstate(over="ignore"):
        exact = [number for number in literals if np.float32(number) == single]
    return exact[0] if exact else decimal_float(value)


@dataclass(slots=True)
class Call:
    """A node: `op`, its unique `path` in the module, the opset of its domain, attributes."""

    op: str
    name: str
    path: str
    opset: int
    attributes: Mapping[str, Any]
    outputs: tuple[str, ...]
    touched: set[str] = field(default_factory=set)
    train_bn: bool = False
    literals: tuple[float, ...] = ()
    """Numbers in the text of the PyTorch call that this node comes from."""
    trained: frozenset[int] = frozenset()
    """Positions of inputs that are parameters."""
    statistics: frozenset[int] = frozenset()
    """Positions of inputs that are stored statistics, which a step moves on."""
    origin: Origin = field(default_factory=Origin)
    straight_through: bool = False
    """True where rounding counts as the identity in gradients."""

    def refuse(self, message: str, code: str = "FB0612", hint: str | None = None) -> NoReturn:
        """Stop with a diagnostic that names this node."""
        raise self.refusal(message, code, hint)

    def refusal(self, message: str, code: str = "FB0612", hint: str | None = None) -> FBError:
        """A diagnostic that names this node."""
        text = f'node "{self.name}" ({self.op}, opset {self.opset}): {message}'
        return FBError(Diagnostic(code, text, hint=hint))

    def has(self, index: int) -> bool:
        """Return whether output `index` is wanted."""
        return index < len(self.outputs) and self.outputs[index] != ""

    def tensor(self, value: Value) -> Tensor:
        """A value to compute with."""
        if isinstance(value, Known):
            self.touched.add(value.name)
            return value.data
        if isinstance(value, Tensor):
            return value
        return self.refuse("a required tensor input is missing")

    def optional(self, value: Value) -> Tensor | None:
        """A value to compute with, or None when the input is left out."""
        return None if value is None else self.tensor(value)

    def operand(self, value: Value, other: Value) -> Any:
        """Like `tensor`, but a known scalar that broadcasts into `other` is a Python number.

        `x * 0.5` is what PyTorch itself runs; a scalar also needs no storage.
        """
        rank = other.ndim if isinstance(other, Tensor) else -1
        if isinstance(value, Known) and value.data.numel() == 1 and value.data.ndim <= rank:
            return self.scalar(value)
        return self.tensor(value)

    def ints(self, value: Value, what: str) -> list[int]:
        """A shape-like input as Python integers (a 0-dimensional one counts as one)."""
        return [*map(int, self._flat(value, what))]

    def floats(self, value: Value, what: str) -> list[float]:
        """A known input as Python floats."""
        return [*map(float, self._flat(value, what))]

    def _flat(self, value: Value, what: str) -> list[Any]:
        items = self.rows(value, what)
        return items if isinstance(items, list) else [items]

    def check_within(self, value: Value, low: int, high: int, what: str) -> None:
        """Refuse a known integer outside `low` to `high` - 1, which fake tensors let pass."""
        if not isinstance(value, Known) or value.items is None:
            return
        for item in tree_leaves(value.items):
            if not low <= item < high:
                self.refuse(f"{what} {item} is not within {low} and {high - 1}", "FB0606")

    def scalar(self, value: Value, what: str = "value", default: Any = None) -> Any:
        """A known one-element input as a Python number."""
        if value is None:
            return default
        items = self.rows(value, what)
        while isinstance(items, list):
            if len(items) != 1:
                self.refuse(f"{what} must have one element")
            items = items[0]
        return items

    def rows(self, value: Value, what: str) -> Any:
        """A known input as nested Python lists."""
        if not isinstance(value, Known):
            self.refuse(f"{what} depends on the values of the model's inputs", "FB0613")
        if value.items is None:
            self.refuse(f"{what} has {value.data.numel()} elements")
        return value.items

    def axes(self, value: Value, rank: int) -> list[int] | None:
        """`axes` from the attribute (old opsets) or the input, counted from 0; None if absent."""
        given = self.attributes.get("axes")
        axes = list(given) if given is not None else None
        if axes is None and value is not None:
            axes = self.ints(value, "axes")
        if axes is None:
            return None
        for axis in axes:
            if not -rank <= axis < rank:
                self.refuse(f"axis {axis} is out of range for rank {rank}")
        return [axis % rank for axis in axes]

    def axis(self, default: int, rank: int) -> int:
        """The attribute `axis`, counted from 0."""
        axis = self.integer("axis", default)
        if not -rank <= axis < max(rank, 1):
            self.refuse(f"axis {axis} is out of range for rank {rank}")
        return axis % rank if rank else 0

    def integer(self, name: str, default: int) -> int:
        return int(self.attributes.get(name, default))

    def flag(self, name: str, default: bool = False) -> bool:
        return bool(self.attributes.get(name, default))

    def number(self, name: str, default: float) -> float:
        """A float attribute as the double its exporter had (see `decimal_float`)."""
        return float(self.attributes.get(name, default))

    def string(self, name: str, default: str) -> str:
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def integers(self, name: str, default: Sequence[int]) -> list[int]:
        value = self.attributes.get(name)
        return [int(item) for item in (default if value is None else value)]

    def one_of(self, name: str, default: str, allowed: Sequence[str]) -> str:
        """A text attribute; refused unless it is one of `allowed`."""
        value = self.string(name, default)
        if value not in allowed:
            self.refuse(f'attribute {name} is "{value}"; supported: {", ".join(allowed)}')
        return value


DTYPES: dict[int, torch.dtype] = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    4: torch.uint16,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    12: torch.uint32,
    13: torch.uint64,
    14: torch.complex64,
    15: torch.complex128,
    16: torch.bfloat16,
}
"""ONNX `TensorProto.DataType` to torch."""
