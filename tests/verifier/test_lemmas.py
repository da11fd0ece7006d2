"""The lemmas of `spec/lemmas`: z3 (and cvc5) proves each for all sizes, and needs each premise."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from helpers.clock import HANGS_S
from remat_compile.verifier.smt import machine

FOLDER = Path(__file__).parents[2] / "spec" / "lemmas"
PREMISE = re.compile(r"^\(assert \(! .*?:named (\w+)\)\)$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One claim of a lemma, negated, with its premises by name."""

    name: str
    text: str

    @property
    def premises(self) -> dict[str, str]:
        return {match[1]: match[0] for match in PREMISE.finditer(self.text)}


def _blocks(path: Path) -> list[Block]:
    parts = path.read_text(encoding="utf-8").split("(push 1)")[1:]
    texts = [part.split("(check-sat)")[0] for part in parts]
    return [Block(f"{path.stem}{index}", text) for index, text in enumerate(texts)]


FILES = sorted(FOLDER.glob("*.smt2"))
BLOCKS = [block for path in FILES for block in _blocks(path)]


def _z3(script: str, limit_s: float = HANGS_S) -> str:
    import z3

    solver = z3.Solver(ctx=z3.Context())
    solver.set("timeout", int(1000 * limit_s))
    solver.from_string(machine() + script)
    return str(solver.check())


def test_every_lemma_is_there() -> None:
    wanted = "corner direction frame intervals clocks last_copy lower_bounds pairs parts peaks"
    wanted += " homes quotient reuse rows sums"
    assert {path.stem for path in FILES} == set(wanted.split())
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert "; Used: " in text, path.name
        assert text.count("(push 1)") == text.count("(check-sat)") == text.count("(pop 1)")


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_is_proven_and_needs_each_premise(block: Block) -> None:
    assert _z3(block.text) == "unsat"
    assert block.premises
    for name, premise in block.premises.items():
        rest = block.text.replace(premise, "")
        if "forall" in rest:  # a model of these takes z3 long, and is not always found
            assert _z3(rest, 0.3) != "unsat", name
        else:
            assert _z3(rest) == "sat", name


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_is_proven_by_cvc5(block: Block) -> None:
    cvc5 = pytest.importorskip("cvc5")
    solver = cvc5.Solver()
    solver.setOption("tlimit-per", str(int(1000 * HANGS_S)))
    solver.setOption("enum-inst", "true")
    parser = cvc5.InputParser(solver)
    script = f"(set-logic ALL)\n{machine()}{block.text}"
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, script, block.name)
    symbols = parser.getSymbolManager()
    while not (command := parser.nextCommand()).isNull():
        command.invoke(solver, symbols)
    assert solver.checkSat().isUnsat()
