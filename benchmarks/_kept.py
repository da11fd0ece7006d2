"""Figures that a benchmark keeps in a file as soon as they are there, to go on from."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def processor_s() -> float:
    """Of this process and of those that it waited for."""
    uses = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(use.ru_utime + use.ru_stime for use in uses)


class Kept:
    """Lines of JSON: a key, the figure, and the processor seconds that it took."""

    def __init__(self, path: Path | None):
        self.path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.known = {tuple(key): figure for key, figure in map(json.loads, lines)}

    def figure(
        self, key: tuple[str | int | float, ...], compute: Callable[[], T]
    ) -> tuple[T, float]:
        """The figure and its seconds; computed, and kept, where it is not known."""
        if key not in self.known:
            began = processor_s()
            value: Any = compute()
            self.known[key] = [value, round(processor_s() - began, 2)]
            if self.path is not None:
                with self.path.open("a") as file:
                    file.write(json.dumps([key, self.known[key]]) + "\n")
        value, spent_s = self.known[key]
        return value, spent_s
