"""Places: in a text file, and in the user's model."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one line of a text file; lines and columns count from 1."""

    line: int
    column: int
    end_column: int
    file: str = "<text>"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Loc:
    """Where in the model a computation comes from.

    `file` and `line` are 0-length when the source is not Python. Of an ONNX file, `module` is
    the node: `encoder/MatMul (MatMul, opset 17)`.
    """

    file: str
    line: int
    module: str = ""

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of the modules, from the outermost inwards."""
        return tuple(filter(None, re.split(r"[./]", self.module.partition(" (")[0])))

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.file else ""
        name = f'"{self.module}"' if self.module else ""
        return " ".join(part for part in (place, name) if part)
