"""Arrays and numbers of NumPy, which is never imported here: what it holds is asked by its types.

A number of NumPy that is one of Python's too (`float64` is a `float`) counts as that, and is none
here. No method that a subclass has of its own is called.

Example: of `numpy.ones(4, "f4")` the form is its class, dtype, shape, strides and 16 bytes. Of a
table of 1 MiB it has 256 elements, each 1/256 of the table behind the one before it, and the last.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

from .strides import lie_alike

__all__ = [
    "MOST_BYTES",
    "MOST_BYTES_AT_CAPTURE",
    "ArrayForm",
    "is_array",
    "is_same_array",
    "is_whole",
    "is_writable",
    "plain_array",
    "text_of_array",
]

MOST_BYTES = 1 << 18
"""Of an array that is compared before each step, 3 us where it lies in a cache and 14 where it does
not; four times as many take 19 and 45."""

MOST_BYTES_AT_CAPTURE = 1 << 24
"""Of an array that is compared, and put back, while a model is captured."""

_SAMPLED = 256
"""Elements of a larger array that are compared before each step."""


def is_array(value: object) -> bool:
    """Whether it is an array, of a subclass too, or a number that is none of Python's."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return False
    kind = type(value)
    if issubclass(kind, getattr(numpy, "ndarray", ())):
        return True
    is_number = issubclass(kind, getattr(numpy, "generic", ()))
    return is_number and not issubclass(kind, bool | int | float | complex | str)


def is_whole(value: object, most: int = MOST_BYTES) -> bool:
    """Whether it is an array of which all is compared before each step. Not where its class adds
    something to its elements (a mask), or where those are objects."""
    if not is_array(value):
        return False
    array = plain_array(value)
    package, _, part = type(value).__module__.partition(".")
    is_numpys = package == "numpy" and part.partition(".")[0] != "ma"
    return is_numpys and not array.dtype.hasobject and array.nbytes <= most


def is_writable(value: object) -> bool:
    """Whether it is an array, and not a number, that may be written to."""
    ndarray = getattr(sys.modules.get("numpy"), "ndarray", ())
    return issubclass(type(value), ndarray) and bool(plain_array(value).flags.writeable)


def plain_array(value: Any) -> Any:
    """The array without what its class adds; a number as it is."""
    ndarray = sys.modules["numpy"].ndarray
    kind = type(value)
    return (
        value if kind is ndarray or not issubclass(kind, ndarray) else ndarray.view(value, ndarray)
    )


@dataclass(frozen=True)
class ArrayForm:
    """What an array was, for a comparison by bits; of a large one a few elements, of one of objects
    none."""

    kind: type
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    content: bytes
    is_sampled: bool
    text: str = field(compare=False)

    @classmethod
    def of(cls, value: Any, most: int = MOST_BYTES) -> ArrayForm:
        array = plain_array(value)
        is_sampled = array.nbytes > most or array.dtype.hasobject
        content = _sample(array) if is_sampled else array.tobytes()
        shape, strides, text = array.shape, array.strides, text_of_array(value)
        return cls(type(value), array.dtype, shape, strides, content, is_sampled, text)

    def is_of(self, value: Any) -> bool:
        """Whether an array has this form, as far as it is looked at."""
        if type(value) is not self.kind:
            return False
        array = plain_array(value)
        if array.dtype != self.dtype or array.shape != self.shape:
            return False
        if not lie_alike(array.shape, array.strides, self.shape, self.strides):
            return False
        if self.is_sampled:
            return _sample(array) == self.content
        try:
            return self.content.startswith(array)  # compares in place, and both are as long
        except (ValueError, TypeError, BufferError):  # its elements lie apart
            return bool(array.tobytes() == self.content)

    def __repr__(self) -> str:
        return self.text

    def __deepcopy__(self, _: dict[int, Any]) -> ArrayForm:
        return self


def _sample(array: Any) -> bytes:
    if array.dtype.hasobject:
        return b""
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
    every = max(1, array.size // _SAMPLED)
    return bytes(flat[::every].tobytes() + flat[-1:].tobytes())


def is_same_array(one: Any, other: Any) -> bool:
    """By bits, all of them; of objects, whether they are the same ones."""
    if one is other or not (is_array(one) and is_array(other)):
        return one is other
    if (
        plain_array(one).dtype.hasobject
        and plain_array(one).tobytes() != plain_array(other).tobytes()
    ):
        return False
    return ArrayForm.of(other, sys.maxsize).is_of(one)


def text_of_array(value: Any) -> str:
    """A few numbers themselves, of others the dtype and the shape."""
    array = plain_array(value)
    if array.size > 8 or array.dtype.hasobject or not is_whole(value):
        return f"array of {array.dtype}{list(array.shape)}"
    return " ".join(repr(value).split())
