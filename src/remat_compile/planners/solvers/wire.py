"""Messages between this process and a solver's: a line of JSON, then raw arrays.

The line is an object; its key `arrays` lists [name, dtype, length] of what follows.
No pickle: a message can be read by a solver's process in any language.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Arrays", "receive", "send"]

Arrays = Mapping[str, NDArray[Any]]


def send(stream: IO[bytes], head: Mapping[str, object], arrays: Arrays | None = None) -> None:
    """Writes one message and flushes."""
    arrays = arrays or {}
    shapes = [[name, a.dtype.str, len(a)] for name, a in arrays.items()]
    parts = [json.dumps({**head, "arrays": shapes}).encode(), b"\n"]
    parts += [a.tobytes() for a in arrays.values()]
    stream.write(b"".join(parts))
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
    """Reads one message; None where the other side has closed the stream or been killed."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    head = json.loads(line)
    arrays = {}
    for name, dtype, length in head.pop("arrays"):
        size = np.dtype(dtype).itemsize * length
        data = stream.read(size)
        if len(data) < size:
            return None
        arrays[name] = np.frombuffer(data, dtype=dtype)
    return head, arrays
