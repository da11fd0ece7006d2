"""Inquiries to solvers: the question, the solver, the time limit, the answer.

The obligations are given an `Inquiry`: each part that they ask about goes through it to the
solvers, and may be kept as a script.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, assert_never

from .answer import Answer, Deadline, Model, NoModel, OutOfTime
from .obligation import Obligation
from .smt import ScriptPart
from .solvers.solver import Solver, identity
from .solvers.z3 import Z3

Status = Literal["unsat", "sat", "unknown"]


@dataclass(frozen=True)
class Script:
    """One question as it was asked. `text` is SMT-LIB 2.6 and says which answer it had."""

    name: str
    obligation: Obligation
    text: str
    status: Status
    assertions: str = field(repr=False)

    @property
    def sha256(self) -> str:
        """SHA-256 (hex) of `text`."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass
class Record:
    """The record of an inquiry beside its answers, shared by all obligations of a proof."""

    scripts: list[Script] = field(default_factory=list)
    disagreements: list[str] = field(default_factory=list)
    unconfirmed: list[str] = field(default_factory=list)
    asked: Counter[Obligation] = field(default_factory=Counter)


@dataclass
class Inquiry(Deadline):
    """A deadline with the solvers to ask.

    The first one gives the models. A proof needs all of them; a refutation does not, since a
    model is held against the steps by whoever asked. `subject` says in scripts what they are
    about; without it they are not kept. `allow_lossy`: gradients may be approximate.
    """

    solvers: tuple[Solver, ...] = (Z3(),)
    subject: tuple[str, ...] = ()
    allow_lossy: bool = False
    obligation: Obligation = Obligation.VALIDITY
    record: Record = field(default_factory=Record)

    def about(self, obligation: Obligation) -> Inquiry:
        """The same inquiry, for the parts of one obligation."""
        return replace(self, obligation=obligation)

    @property
    def prover(self) -> str:
        """Who a proof is by, as in `z3 5.4.0, cvc5 1.4.2`."""
        return ", ".join(map(identity, self.solvers))

    def ask(self, part: ScriptPart, tactics: tuple[str, ...]) -> Answer:
        text = part.assertions()
        self.record.asked[self.obligation] += 1
        number = self.record.asked[self.obligation]
        name = f"{self.obligation.number:02}-{self.obligation}-part{number}"
        first, *others = (
            replace(solver, tactics=tactics) if isinstance(solver, Z3) else solver
            for solver in self.solvers
        )
        answer = first.check(text, self)
        for other in others:
            if not isinstance(answer, OutOfTime):
                answer = self._join(name, first, answer, other, other.check(text, self))
        if self.subject:
            self.record.scripts.append(self._script(name, text, answer))
        return answer

    def _join(
        self, name: str, first: Solver, answer: Answer, other: Solver, second: Answer
    ) -> Answer:
        """The answer of both to script `name`."""
        match answer, second:
            case (NoModel(), NoModel()) | (Model(), Model() | OutOfTime()):
                return answer
            case NoModel(), OutOfTime(why):
                detail = why.removeprefix(f"{other.name}: ")
                self.record.unconfirmed.append(f"not confirmed by {other.name}: {detail} ({name})")
                return OutOfTime(self.record.unconfirmed[-1])
            case _:
                one = f"{_status(answer)} by {identity(first)}"
                said = f"script {name} is {one}, {_status(second)} by {identity(other)}"
                self.record.disagreements.append(said)
                return OutOfTime(self.record.disagreements[-1])

    def _script(self, name: str, assertions: str, answer: Answer) -> Script:
        status = _status(answer)
        lines = "\n".join(self._head(name, status))
        text = f"{lines}\n{assertions}(check-sat)\n(exit)\n"
        return Script(name, self.obligation, text, status, assertions)

    def _head(self, name: str, status: Status) -> Iterator[str]:
        yield f"; {name}, asked by remat-compile of {self.prover}"
        yield from (f"; {line}" for line in self.subject)
        yield f"; unsat means: {self.obligation.meaning}"
        if status == "sat":
            yield "; sat: a counter-example, or a bound that was tried on the way to the one proven"
        yield "(set-info :smt-lib-version 2.6)"
        yield f"(set-info :status {status})"
        yield "(set-logic ALL)"


def _status(answer: Answer) -> Status:
    match answer:
        case NoModel():
            return "unsat"
        case Model():
            return "sat"
        case OutOfTime():
            return "unknown"
        case _:
            assert_never(answer)
