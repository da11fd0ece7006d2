"""Proof objects: what a checker that trusts no solver needs."""

from __future__ import annotations

from ..ir.diagnostics import Diagnostic, FBError
from .answer import Deadline, OutOfTime
from .inquiry import Script
from .solvers.solver import identity, solvers_of


def prove_script(script: Script, deadline: Deadline) -> str:
    """cvc5's proof in the Alethe format that the assertions of `script` have no model.

    Its first lines name the script by its SHA-256; the proof assumes each assertion of the
    script and ends in the empty clause. FB0712 where cvc5 is missing, FB0875 where it finds no
    proof in time, or one with steps that it gives no rule for (`hole`).
    """
    from .solvers.cvc5 import Cvc5

    (cvc5,) = solvers_of("cvc5")
    assert isinstance(cvc5, Cvc5)
    match cvc5.prove(script.assertions, deadline):
        case OutOfTime(why):
            message = f"no proof of {script.name}: {why}"
            hint = "give more time with --time-limit, or take --smt-lib, the scripts alone"
            raise FBError(Diagnostic("FB0875", message, hint=hint))
        case proof if holes := proof.count(":rule hole"):
            message = f"no whole proof of {script.name}: cvc5 leaves {holes} steps open"
            hint = "take --smt-lib, the scripts alone"
            raise FBError(Diagnostic("FB0875", message, hint=hint))
        case proof:
            head = (
                f"; Alethe proof by {identity(cvc5)} of {script.name}.smt2, sha256 {script.sha256}"
            )
            return f"{head}\n{proof.strip()}\n"
