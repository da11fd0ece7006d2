"""The kinds of faults, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from .case import Case, Mutant

Where = Literal["schedule", "graph", "certificate"]
Seeds = Callable[[Case, str], Iterator[Mutant]]


@dataclass(frozen=True)
class Kind:
    """A way to break a plan. `where` says what is edited: the steps, the graph under them,
    or what is recorded as proven."""

    name: str
    where: Where
    copies: bool
    """Whether it is about copies to the host; it is then seeded into plans that have some."""
    _seeds: Seeds

    def mutants(self, case: Case) -> Iterator[Mutant]:
        """Every place of `case` in which this fault can be seeded."""
        return self._seeds(case, self.name) if case.has_copies == self.copies else iter(())


KINDS: dict[str, Kind] = {}


def seeds(
    name: str, where: Where = "schedule", *, copies: bool = False
) -> Callable[[Seeds], Seeds]:
    """Registers a generator of mutants."""

    def register(generator: Seeds) -> Seeds:
        assert name not in KINDS
        KINDS[name] = Kind(name, where, copies, generator)
        return generator

    return register


MODULES = (
    "lifetimes",
    "order",
    "gradients",
    "effects",
    "memory",
    "statements",
    "copies",
    "homes",
    "certificates",
)


def load() -> None:
    for module in MODULES:
        import_module(f".{module}", __package__)


load()
