"""cvc5 beside z3: the same answers, a proof only where both agree, scripts and proofs as files."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from helpers.clock import HANGS_S, skips
from helpers.paths import ROOT
from helpers.verifier.second_solver import FAST, rows_of
from remat_compile.cli import main
from remat_compile.ir.program import Program
from remat_compile.ir.schedule import Schedule
from remat_compile.ir.text.parser import parse_program
from remat_compile.verifier import (
    ProvenPlan,
    Refuted,
    Undecided,
    accept_certificate,
    prove_largest,
    scripts,
    verify,
)
from remat_compile.verifier.inquiry import Inquiry
from remat_compile.verifier.smt import Answer, Deadline, Encoding, Model, NoModel, OutOfTime
from remat_compile.verifier.solvers import cvc5 as cvc5_solver
from remat_compile.verifier.solvers import z3 as z3_solver
from remat_compile.verifier.solvers.cvc5 import Cvc5
from remat_compile.verifier.solvers.solver import Solver, identity
from remat_compile.verifier.solvers.z3 import Z3

VALID = ROOT / "spec/conformance/valid"
MLP = VALID / "mlp.fbir"
SYMBOLS = VALID / "symbols.fbir"
REDRAWN = ROOT / "tests/verifier/bugs/dropout_redrawn.fbir"

HARD = """
(declare-const x Int)(declare-const y Int)(declare-const z Int)
(assert (and (> x 1) (> y 1) (> z 1) (= (+ (* x x x) (* y y y)) (* z z z))))
"""
"""Fermat's last theorem for cubes: no solver says anything about it."""


def read(path: Path) -> tuple[Program, Schedule]:
    program = parse_program(path.read_text(encoding="utf-8"), str(path))
    return program, program.schedules[-1]


@dataclass(frozen=True)
class Fixed:
    """A solver that gives one answer to everything."""

    answer: Answer
    name: str = "fixed"
    version: str = "1"

    def check(self, text: str, deadline: Deadline) -> Answer:
        return self.answer


def with_second(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> None:
    monkeypatch.setattr(
        "remat_compile.verifier.prove.solvers_of", lambda choice: (Z3(), Fixed(answer))
    )


@pytest.mark.parametrize("name", FAST)
def test_cvc5_gives_the_same_answer_to_every_script(name: str) -> None:
    rows = list(rows_of(ROOT / name))
    assert [text for row in rows for text in row.wrong] == []
    assert sum(row.agreed for row in rows) == sum(row.scripts for row in rows) >= 3
    wrong_plan = name.startswith(("tests/verifier/bugs/drop", "tests/verifier/races/mega"))
    assert (sum(row.sat for row in rows) > 0) == wrong_plan


@pytest.mark.slow
def test_cvc5_agrees_on_all_recorded_plans() -> None:
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).parents[1] / "runners/run_second_solver.py")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr


def test_the_comparison_sees_another_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cvc5, "check", lambda self, text, deadline: Model({}))
    assert any(row.wrong for row in rows_of(MLP))


def test_solvers_that_do_not_agree_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    program, schedule = read(MLP)
    with_second(monkeypatch, Model({}))
    verdict = verify(program, schedule, solver="both")
    assert isinstance(verdict, Undecided)
    (said,) = verdict.diagnostics
    assert said.code == "FB0872"
    assert said.span == schedule.span
    assert "01-validity-part1 is unsat by z3" in said.message
    # Beyond the sample too, where z3 alone would say that it holds at the sample.
    largest = prove_largest(*read(SYMBOLS), (), "b", solver="both")
    assert isinstance(largest, Undecided)
    assert [d.code for d in largest.diagnostics] == ["FB0872"]
    # And where z3 refutes: the other one's proof is a disagreement.
    with_second(monkeypatch, NoModel())
    refuted = verify(*read(REDRAWN), solver="both")
    assert isinstance(refuted, Undecided)
    assert [d.code for d in refuted.diagnostics] == ["FB0872"]


def test_what_the_second_leaves_open_is_not_proven(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, schedule = read(MLP)
    with_second(monkeypatch, OutOfTime("fixed: timeout"))
    verdict = verify(program, schedule, solver="both")
    assert isinstance(verdict, Undecided)
    assert [(d.code, d.span) for d in verdict.diagnostics] == [("FB0873", schedule.span)]
    assert verdict.why == "not confirmed by fixed: timeout (01-validity-part1)"
    assert main(["verify", str(MLP), "--solver", "both"]) == 1
    said = capsys.readouterr()
    assert "error[FB0873]" in said.err
    assert "proven" not in said.out
    # A counter-example of z3 is held against the steps, and needs no second opinion.
    assert isinstance(verify(*read(REDRAWN), solver="both"), Refuted)


def test_ranges_that_the_second_leaves_open_are_not_proven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At the sample cvc5 agrees, and in the ranges it gives up: z3 alone is not enough."""

    @dataclass(frozen=True)
    class NoSymbols(Cvc5):
        def check(self, text: str, deadline: Deadline) -> Answer:
            return OutOfTime("cvc5: timeout") if "sym!" in text else super().check(text, deadline)

    monkeypatch.setattr(
        "remat_compile.verifier.prove.solvers_of", lambda choice: (Z3(), NoSymbols())
    )
    verdict = verify(*read(SYMBOLS), solver="both")
    assert isinstance(verdict, Undecided)
    assert [d.code for d in verdict.diagnostics] == ["FB0873"]


@pytest.mark.parametrize("solver", ["cvc5", "both"])
def test_a_certificate_says_who_proved(solver: Any) -> None:
    program, schedule = read(MLP)
    verdict = verify(program, schedule, solver=solver)
    assert isinstance(verdict, ProvenPlan)
    proven = verdict.proven
    solvers: dict[str, list[Solver]] = {"cvc5": [Cvc5()], "both": [Z3(), Cvc5()]}
    by = solvers[solver]
    assert proven.prover == ", ".join(map(identity, by))

    def codes(*provers: str) -> list[str]:
        return [d.code for d in accept_certificate(program, schedule, proven, (), provers)]

    assert codes() == codes("cvc5") == []
    assert codes("z3", "cvc5") == ([] if solver == "both" else ["FB0834"])


def test_a_certificate_of_cvc5_needs_that_version_here(monkeypatch: pytest.MonkeyPatch) -> None:
    program, schedule = read(MLP)
    verdict = verify(program, schedule, solver="both")
    assert isinstance(verdict, ProvenPlan)

    def codes() -> list[str]:
        return [d.code for d in accept_certificate(program, schedule, verdict.proven)]

    assert codes() == []
    monkeypatch.setattr(Cvc5, "version", "0.1")
    assert codes() == ["FB0833"]
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "cvc5", None)
    assert codes() == ["FB0833"]


def test_a_certificate_of_z3_is_not_one_of_cvc5(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from remat_compile.api import load

    path = tmp_path / "plan.fbir"
    load(MLP, None).save(path)
    words = ["verify", str(path), "--schedule", "again", "--require-certificate"]
    assert main(words) == 0
    assert main([*words, "--solver", "both"]) == 1
    assert "error[FB0834]" in capsys.readouterr().err


def test_a_missing_package_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cvc5", None)
    assert main(["verify", str(MLP), "--solver", "both"]) == 1
    said = capsys.readouterr().err
    assert "error[FB0712]" in said
    assert 'pip install "remat-compile[cvc5]"' in said
    assert main(["verify", str(MLP)]) == 0


def test_models_of_cvc5_have_the_values() -> None:
    text = "(declare-const |a b| Bool)(declare-const n Int)(assert (and |a b| (= n (- 7))))"
    answer = Cvc5().check(text, Deadline(10))
    assert answer == Model({"a b": 1, "n": -7})


def test_cvc5_alone_finds_the_same_counter_example() -> None:
    program, schedule = read(REDRAWN)
    by_z3, by_cvc5 = verify(program, schedule), verify(program, schedule, solver="cvc5")
    assert isinstance(by_z3, Refuted)
    assert by_cvc5 == by_z3


def test_unreadable_text_is_no_answer() -> None:
    for solver in (Z3(), Cvc5()):
        assert isinstance(solver.check("(assert nonsense)", Deadline(10)), OutOfTime)


@pytest.mark.parametrize("goals", [0, 1, 2])
def test_a_part_is_smt_lib_whatever_it_asks(goals: int) -> None:
    encoding = Encoding()
    for index in range(goals):
        encoding.ask(encoding.define(f"a{index}", "Bool", "true"))
    part = encoding.parts[0]
    expected = Model if goals else NoModel
    assert isinstance(Cvc5().check(part.assertions(), Deadline(10)), expected)
    assert isinstance(Inquiry(10).ask(part, encoding.tactics), expected)


def test_cvc5_keeps_to_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cvc5_solver, "SLICE_S", 0.05)  # then a process has it
    assert isinstance(Cvc5().check(HARD, Deadline(0.5)), OutOfTime)
    assert isinstance(Cvc5().check("(assert true)", Deadline(0)), OutOfTime)


@pytest.mark.parametrize(("slice_s", "left_s"), [(40 * HANGS_S, 60 * HANGS_S), (200 * HANGS_S, 0)])
def test_the_process_of_cvc5_has_what_is_left_and_is_then_ended(
    slice_s: float, left_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked there where nothing is left."""
    skip, limits_s = skips(monkeypatch), list[float]()

    def undecided(text: str, limit_s: float) -> tuple[Answer, bool]:
        assert limit_s <= cvc5_solver.SLICE_S
        skip(slice_s)
        return OutOfTime("cvc5: timeout"), True

    def overrun(command: Any, *, input: str, timeout: float, **_: object) -> Any:
        limits_s.extend((json.loads(input)["limit_s"], timeout - 1))
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(cvc5_solver, "_decide", undecided)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", overrun)
        answer = Cvc5().check(HARD, Deadline(100 * HANGS_S))
    assert answer == OutOfTime("cvc5: timeout")
    assert limits_s == pytest.approx([left_s, left_s] if left_s else [], abs=HANGS_S)


def test_nothing_is_asked_past_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question to z3 takes 40 of 100 units."""
    skip, answer, asked = skips(monkeypatch), z3_solver._answer, list[object]()

    def slow(solver: Any, z3: Any) -> Answer:
        asked.append(solver)
        skip(40 * HANGS_S)
        return answer(solver, z3)

    made, plan = read(MLP)
    assert len(list(scripts(made, plan))) > 3
    monkeypatch.setattr(z3_solver, "_answer", slow)
    verdict = verify(made, plan, time_limit_s=100 * HANGS_S)
    assert isinstance(verdict, Undecided)
    assert len(asked) == 3


def test_ctrl_c_ends_cvc5() -> None:
    code = (
        "import signal, subprocess, sys\n"
        "from remat_compile.verifier.smt import Deadline\n"
        "from remat_compile.verifier.solvers import cvc5\n"
        "def told(*args, **options):\n"
        "    print('asking', flush=True)\n"
        "    return run(*args, **options)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "run, subprocess.run, cvc5.SLICE_S = subprocess.run, told, 0.05\n"
        "try: cvc5.Cvc5().check(sys.argv[1], Deadline(1000))\n"
        "except KeyboardInterrupt: print('interrupted')\n"
    )
    ran = subprocess.Popen(
        [sys.executable, "-c", code, HARD],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert ran.stdout is not None
    assert ran.stdout.readline() == "asking\n"
    os.killpg(ran.pid, signal.SIGINT)
    assert ran.communicate(timeout=HANGS_S)[0] == "interrupted\n"


# Scripts and proofs as files.


def said_by_cvc5(text: str) -> str:
    """The answer to a whole script, `check-sat` included."""
    import cvc5

    solver = cvc5.Solver(cvc5.TermManager())
    solver.setOption("strict-parsing", "true")
    parser = cvc5.InputParser(solver)
    parser.setStringInput(cvc5.InputLanguage.SMT_LIB_2_6, text, "script")
    said = ""
    while not (command := parser.nextCommand()).isNull():
        said += str(command.invoke(solver, parser.getSymbolManager()))
    return said.strip()


def said_by_z3(path: Path) -> str:
    """What z3's own command says; it comes with the package."""
    command = [str(Path(sys.executable).with_name("z3")), str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@pytest.mark.parametrize("path", [MLP, VALID / "offload.fbir", REDRAWN], ids=lambda p: p.stem)
def test_scripts_are_files_for_any_solver(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "scripts"
    first = re.findall(r"^schedule @(\w+)", path.read_text(), re.M)[0]
    code = main(["verify", str(path), "--schedule", first, "--smt-lib", str(folder)])
    assert code == (1 if path == REDRAWN else 0)
    names = sorted(entry.name for entry in folder.iterdir())
    assert names[0] == "01-validity-part1.smt2"
    obligations = {re.sub(r"-part\d+\.smt2", "", name) for name in names}
    assert {"01-validity", "03-values"} <= obligations
    if path != REDRAWN:
        assert {"02-memory", "05-claims"} <= obligations
    for name in names:
        text = (folder / name).read_text(encoding="ascii")
        status = re.findall(r"^\(set-info :status (\w+)\)$", text, re.M)
        assert [said_by_z3(folder / name)] == [said_by_cvc5(text)] == status
        assert text.endswith("(check-sat)\n(exit)\n")
        for line in ('; schedule "', "; graph and steps sha256 ", "; unsat means: "):
            assert f"\n{line}" in text


def test_python_gives_the_scripts_too() -> None:
    recorded = list(scripts(*read(MLP)))
    assert recorded[0].name == "01-validity-part1"
    assert {script.status for script in recorded} == {"unsat"}


def test_names_cannot_leave_their_comment() -> None:
    program, schedule = read(MLP)
    evil = replace(schedule, name="x\n(assert false)\u2028;")
    (script, *_) = scripts(replace(program, schedules=(evil,)), evil)
    assert not [line for line in script.text.splitlines() if line.startswith("(assert false)")]
    assert script.text.isascii()


def test_a_folder_with_other_files_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["verify", str(MLP), "--smt-lib"]
    file = tmp_path / "file"
    file.write_text("mine")
    for place, code in ((file, "FB0703"), (tmp_path, "FB0874"), (tmp_path / "a" / "b", "FB0703")):
        assert main([*words, str(place)]) == 2
        said = capsys.readouterr()
        assert (code in said.err, said.out) == (True, "")
    # One that has the name of a script and is none.
    other = tmp_path / "other"
    other.mkdir()
    (other / "01-validity-part1.smt2").write_text("(my own)")
    assert main([*words, str(other)]) == 2
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "other"]
    assert file.read_text() == "mine"


def test_scripts_of_an_earlier_proof_are_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "scripts"
    words = ["--smt-lib", str(folder), "--schedule"]
    assert main(["verify", str(VALID / "offload.fbir"), *words, "activation"]) == 0
    assert (folder / "04-races-part1.smt2").exists()
    assert main(["verify", str(MLP), *words, "all"]) == 0
    assert not (folder / "04-races-part1.smt2").exists()
    assert (folder / "03-values-part1.smt2").exists()


def test_nothing_is_written_where_a_file_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from remat_compile.plans.files import scripts as _scripts

    def full(writers: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(_scripts, "write_together", full)
    with pytest.raises(OSError, match="no space"):
        _scripts.write_scripts(tmp_path / "new", list(scripts(*read(MLP))))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "more", [["--proofs", "x"], ["--largest", "b"], ["--require-certificate"]], ids=lambda m: m[0]
)
def test_what_scripts_do_not_go_with(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(MLP), "--smt-lib", str(tmp_path / "new"), *more]) == 2
    assert "error[FB0707]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_proofs_end_in_the_empty_clause_and_assume_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "proofs"
    words = ["verify", str(MLP), "--schedule", "all", "--proofs", str(folder), "--format", "json"]
    assert main(words) == 0
    proofs = sorted(folder.glob("*.alethe"))
    facts = json.loads(capsys.readouterr().out)
    assert (facts["proofs"], facts["folder"]) == (len(proofs), str(folder))
    assert [path.name for path in proofs] == ["03-values-part1.smt2.alethe"]
    for path in proofs:
        script = path.with_suffix("").read_bytes()
        head, *lines = path.read_text(encoding="utf-8").splitlines()
        assert f"sha256 {hashlib.sha256(script).hexdigest()}" in head
        assert f"of {path.with_suffix('').name}," in head
        assumed = [line for line in lines if re.match(r"\(assume a\d+ ", line)]
        # A definition of the machine is an assumption too, an equation.
        assert 1 < len(assumed) <= script.count(b"(assert ") + script.count(b"(define-fun ")
        last = [line for line in lines if line.startswith("(step ")][-1]
        assert re.match(r"\(step \S+ \(cl\) ", last)
        assert not [line for line in lines if ":rule hole" in line]


def test_a_proof_with_holes_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["verify", str(MLP), "--schedule", "all", "--proofs", str(tmp_path / "new")]
    for said in ('(step t1 (cl) :rule hole :args ("x"))', OutOfTime("cvc5: timeout")):
        monkeypatch.setattr(Cvc5, "prove", lambda self, text, deadline, said=said: said)
        assert main(words) == 1
        assert "error[FB0875]" in capsys.readouterr().err
        assert list(tmp_path.iterdir()) == []
