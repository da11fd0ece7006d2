"""The interface of a solver, and the available solvers."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import Literal, Protocol, get_args

from ...ir.diagnostics import Diagnostic, FBError
from ..answer import Answer, Deadline

Choice = Literal["z3", "cvc5", "both"]
"""Who decides: one of them, or z3 with cvc5 confirming each of its proofs."""

CHOICES: tuple[str, ...] = get_args(Choice)
NAMES = ("z3", "cvc5")


class Solver(Protocol):
    """Decides SMT-LIB 2 assertions. Each adapter is one file, and loads its package when asked."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def check(self, text: str, deadline: Deadline) -> Answer:
        """`NoModel` for unsat; `Model` for sat, with the values of the constants; `OutOfTime`
        for unknown, for an error of the solver, and where no time is left."""
        ...


def solvers_of(choice: Choice) -> tuple[Solver, ...]:
    """The solvers to ask, the first of which gives the models.

    FB0712 where the package of one is missing; FB0707 for another word.
    """
    match choice:
        case "z3" | "cvc5":
            return (_load(choice),)
        case "both":
            return (_load("z3"), _load("cvc5"))
        case _:
            message = f'no solver "{choice}"'
            hint = f"write {', '.join(CHOICES[:-1])} or {CHOICES[-1]}"
            raise FBError(Diagnostic("FB0707", message, hint=hint), usage=True)


def identity(solver: Solver) -> str:
    """The name and version that a proof is signed with."""
    return f"{solver.name} {solver.version}"


def installed(names: Iterable[str]) -> list[str]:
    """The identities of those solvers of `names` that can be loaded here."""
    identities = []
    for name in NAMES:
        if name in names:
            try:
                identities.append(identity(_load(name)))
            except FBError:
                continue
    return identities


def _load(name: str) -> Solver:
    try:
        import_module(name)
    except ImportError as error:
        message = f"this needs {name}, which cannot be imported ({error})"
        hint = f'pip install "remat-compile[{name}]"'
        raise FBError(Diagnostic("FB0712", message, hint=hint)) from None
    if name == "cvc5":
        from .cvc5 import Cvc5

        return Cvc5()
    from .z3 import Z3

    return Z3()
