"""Messages between this process and one that it started: a line of JSON, then raw arrays.

The line is an object; its key `arrays` lists [name, dtype, length] of what follows.
No pickle: what a process sends is only data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

Arrays = Mapping[str, "NDArray[Any]"]
Message = tuple[dict[str, Any], "dict[str, NDArray[Any]]"]


def send(stream: IO[bytes], head: Mapping[str, object], arrays: Arrays | None = None) -> None:
    """Writes one message and flushes."""
    arrays = arrays or {}
    shapes = [[name, a.dtype.str, len(a)] for name, a in arrays.items()]
    parts = [json.dumps({**head, "arrays": shapes}).encode(), b"\n"]
    parts += [a.tobytes() for a in arrays.values()]
    stream.write(b"".join(parts))
    stream.flush()


def receive(stream: IO[bytes]) -> Message | None:
    """Reads one message; None where the other side has closed the stream or been killed.

    ValueError, KeyError or TypeError where it is none.
    """
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    head = json.loads(line)
    arrays: dict[str, NDArray[Any]] = {}
    for name, dtype, length in head.pop("arrays"):
        import numpy as np  # here, since most messages have no arrays

        size = np.dtype(dtype).itemsize * length
        data = stream.read(size)
        if len(data) < size:
            return None
        arrays[name] = np.frombuffer(data, dtype=dtype)
    return head, arrays
