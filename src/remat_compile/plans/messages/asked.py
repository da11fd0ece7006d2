"""The words that options are given in, and what collects refusals of them; quick to import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

from ...ir.diagnostics import Diagnostic, FBError

T = TypeVar("T")

Costs = Literal["measured", "roofline"]
Grads = Literal["fresh", "accumulate"]
Backend = Literal["torch", "jax"]
Fuse = Literal["none", "auto", "inductor", "xla"]
"""True where runs of a plan become kernels of PyTorch (those that are measured faster, or all that
can), or regions as XLA computes them."""
Emitted = Literal["torch", "jax", "trace", "dot"]
"""Targets that a plan can be written for: code of a backend, a trace for Perfetto, a graph for
Graphviz."""
JaxStyle = Literal["explicit", "annotated", "annotated-nearest"]


class Errors:
    """Collects refusals, so that the user sees all of them at once."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []

    def collect(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except FBError as error:
            self.diagnostics += error.diagnostics
            return None

    def add(self, code: str, message: str, hint: str | None = None) -> None:
        self.diagnostics.append(Diagnostic(code, message, hint=hint))

    def raise_if_any(self) -> None:
        """Raises what was collected, as wrong usage."""
        if self.diagnostics:
            raise FBError(self.diagnostics, usage=True)
