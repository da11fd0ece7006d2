"""cvc5: easy questions in the process, hard ones in a process of their own.

cvc5 holds Python's lock while it works, so that Ctrl-C waits for it. A question gets
`SLICE_S` seconds here; after that a child process has it, which ends with the time limit or
with Ctrl-C, whatever cvc5 is doing. Proofs are always written by the child.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any, Literal

from ..answer import Answer, Deadline, Model, NoModel, OutOfTime

SLICE_S = 1.0
CHILD = "from remat_compile.verifier.solvers.cvc5 import serve; serve()"


@dataclass(frozen=True)
class Cvc5:
    """cvc5 with its defaults, held to the letter of SMT-LIB 2.6 (`strict-parsing`)."""

    name: str = "cvc5"

    @property
    def version(self) -> str:
        import cvc5

        return str(cvc5.__version__)

    def check(self, text: str, deadline: Deadline) -> Answer:
        if deadline.left_s <= 0:
            return OutOfTime("the time limit was reached while stating the obligation")
        answer, timed_out = _decide(text, min(SLICE_S, deadline.left_s))
        if not timed_out:
            return answer
        return _answer(_ask_child("check", text, deadline))

    def prove(self, text: str, deadline: Deadline) -> str | OutOfTime:
        """The proof of unsatisfiable assertions, in the Alethe format."""
        said = _ask_child("prove", text, deadline)
        proof = said.get("proof")
        return (
            proof if isinstance(proof, str) else OutOfTime(str(said.get("why", "cvc5: no proof")))
        )


def _decide(text: str, limit_s: float) -> tuple[Answer, bool]:
    """cvc5's answer, and whether it only ran out of time."""
    import cvc5

    # Sums of bytes are chains of definitions: simplified again and again they take a third as long.
    solver = _new(limit_s, {"produce-models": "true", "repeat-simp": "true"})
    try:
        names = _read(solver, text)
        result = solver.checkSat()
        if result.isUnsat():
            return NoModel(), False
        if result.isSat():
            return Model(_values(solver, names)), False
        why = result.getUnknownExplanation()
        return OutOfTime(f"cvc5: {why.name.lower()}"), why == cvc5.UnknownExplanation.TIMEOUT
    except RuntimeError as error:  # what cvc5 raises, on what it cannot read too
        return OutOfTime(f"cvc5: {error}"), False


def _new(limit_s: float, options: dict[str, str]) -> Any:
    import cvc5

    solver = cvc5.Solver(cvc5.TermManager())
    milliseconds = str(max(1, min(int(limit_s * 1000), 2**31)))
    chosen = {"tlimit-per": milliseconds, "strict-parsing": "true", **options}
    for name, value in chosen.items():
        solver.setOption(name, value)
    return solver


def _read(solver: Any, text: str) -> Any:
    """Gives the assertions to the solver; the symbols that they declare."""
    import cvc5

    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, f"(set-logic ALL)\n{text}", "script")
    symbols = parser.getSymbolManager()
    while not (command := parser.nextCommand()).isNull():
        command.invoke(solver, symbols)
    return symbols


def _values(solver: Any, symbols: Any) -> dict[str, int]:
    """The constants of a model that are numbers or truth values."""
    values: dict[str, int] = {}
    for term in symbols.getDeclaredTerms():
        if term.getSort().isBoolean():
            values[term.getSymbol()] = int(solver.getValue(term).getBooleanValue())
        elif term.getSort().isInteger():
            values[term.getSymbol()] = int(solver.getValue(term).getIntegerValue())
    return values


def _prove(text: str, limit_s: float) -> dict[str, Any]:
    import cvc5

    # Rewrites down to single rules: with less, cvc5 leaves them open in the Alethe format.
    options = {
        "produce-proofs": "true",
        "proof-format-mode": "alethe",
        "proof-granularity": "dsl-rewrite",
        "simplification": "none",
    }
    solver = _new(limit_s, options)
    try:
        _read(solver, text)
        result = solver.checkSat()
        if not result.isUnsat():
            return {"why": f"cvc5: {result}"}
        proof = solver.proofToString(solver.getProof()[0], cvc5.ProofFormat.ALETHE)
        return {"proof": proof.decode() if isinstance(proof, bytes) else str(proof)}
    except RuntimeError as error:
        return {"why": f"cvc5: {error}"}


def _ask_child(what: Literal["check", "prove"], text: str, deadline: Deadline) -> dict[str, Any]:
    """The child's messages: `unsat`, `model`, `proof`, or `why` there is no answer."""
    left_s = deadline.left_s
    if left_s <= 0:
        return {"why": "cvc5: timeout"}
    question = json.dumps({"what": what, "text": text, "limit_s": left_s})
    command = [sys.executable, "-P", "-c", CHILD]
    try:
        # cvc5 keeps to its limit by itself; a second more is for what it does not count.
        ran = subprocess.run(
            command, input=question, capture_output=True, text=True, timeout=left_s + 1
        )
    except subprocess.TimeoutExpired:
        return {"why": "cvc5: timeout"}
    if ran.returncode != 0:
        return {"why": f"cvc5: its process ended with exit code {ran.returncode}"}
    said = json.loads(ran.stdout)
    assert isinstance(said, dict)
    return said


def serve() -> None:
    """The loop of the child process: one question from standard input, one answer."""
    asked = json.load(sys.stdin)
    if asked["what"] == "prove":
        said = _prove(asked["text"], asked["limit_s"])
    else:
        match _decide(asked["text"], asked["limit_s"])[0]:
            case NoModel():
                said = {"unsat": True}
            case Model(values):
                said = {"model": dict(values)}
            case OutOfTime(why):
                said = {"why": why}
    json.dump(said, sys.stdout)


def _answer(said: dict[str, Any]) -> Answer:
    if said.get("unsat"):
        return NoModel()
    if "model" in said:
        return Model(said["model"])
    return OutOfTime(str(said["why"]))
