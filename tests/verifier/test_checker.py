"""The independent checker: against the simulator, the reference and known plans, and hooked in."""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import time
import tokenize
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import remat_compile.verifier.check
from helpers.clock import HANGS_S, skips
from helpers.programs.strategies import random_program, random_schedule
from helpers.verifier.breaks import BREAKS
from helpers.verifier.module_faults import HARMLESS
from helpers.verifier.mutants import KINDS, cases
from helpers.verifier.mutants.sample import sample
from helpers.verifier.opinions import agrees
from helpers.verifier.reference import harm
from remat_compile.api import load
from remat_compile.ir.text.parser import parse_program
from remat_compile.ir.text.printer import format_program
from remat_compile.verifier import (
    Disagreement,
    Largest,
    ProvenPlan,
    Undecided,
    prove_largest,
    verify,
)
from remat_compile.verifier.agreement import written
from remat_compile.verifier.check import Accepted, Bytes, Refused, check, sizes

CONFORMANCE = Path(__file__).parents[2] / "spec" / "conformance"
CHECKER = Path(remat_compile.verifier.check.__file__).parent
EXPECTED = re.compile(
    r'expect @(\S+|"[^"]*") device (\d+) activation (\d+)(?: host (\d+))? time ([\d.]+)(ns|us)'
)


def code_lines(path: Path) -> int:
    """Without blank lines, comments and docstrings."""
    text = path.read_text(encoding="utf-8")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, documented) and ast.get_docstring(node) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }
    blank = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return len(
        {
            line
            for token in tokens
            if token.type not in (*blank, tokenize.ENDMARKER)
            for line in range(token.start[0], token.end[0] + 1)
        }
        - docstrings
    )


def test_it_stays_small_enough_to_be_read() -> None:
    """`spec/trust.md` and `spec/verification.md` tell these figures."""
    lines = {path.stem: code_lines(path) for path in CHECKER.glob("*.py")}
    judging = sum(lines.values()) - lines["read"] - lines["clock"] - lines["packs"]
    assert (judging, lines["clock"], lines["packs"], lines["read"]) == (400, 35, 168, 264)


def test_imports_nothing_of_ours() -> None:
    """Not at its top, not within a function: the standard library and its own modules only."""
    for path in CHECKER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                own = {p.stem for p in CHECKER.glob("*.py")}
                inside = node.level == 1 and node.module in own
                assert inside or (
                    not node.level and node.module in sys.stdlib_module_names | {"collections.abc"}
                ), ast.unparse(node)
            elif isinstance(node, ast.Import):
                assert {a.name for a in node.names} <= sys.stdlib_module_names


def test_runs_alone(tmp_path: Path) -> None:
    """A copy of the folder, without the package beside it, gives the same answer."""
    for path in (*CHECKER.glob("*.py"), CHECKER / "operators.txt"):
        (tmp_path / "alone").mkdir(exist_ok=True)
        (tmp_path / "alone" / path.name).write_text(path.read_text(encoding="utf-8"))
    file = CONFORMANCE / "valid" / "offload.fbir"
    code = f"from alone import check; print(check(open({str(file)!r}).read(), 'token'))"
    command = [
        sys.executable,
        "-I",
        "-c",
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; {code}",
    ]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert printed == str(check(file.read_text(encoding="utf-8"), "token"))


@pytest.mark.parametrize("path", sorted((CONFORMANCE / "valid").glob("*")), ids=lambda p: p.stem)
def test_valid_files_have_their_numbers(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    rows = EXPECTED.findall(text)
    for name, device, activation, host, duration, unit in rows:
        opinion = check(text, json.loads(name) if name[0] == '"' else name)
        assert isinstance(opinion, Accepted), opinion
        assert opinion.peak == Bytes(int(device), int(activation), int(host or 0))
        assert opinion.time_ns == float(duration) * {"ns": 1, "us": 1000}[unit]


@pytest.mark.parametrize(
    "path", sorted((CONFORMANCE / "invalid").glob("fb0[239]*")), ids=lambda p: p.stem
)
def test_invalid_files_are_refused(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    names = re.findall(r"^schedule @(\w+)", text, re.M)
    refused = [isinstance(check(text, name), Refused) for name in names]
    assert path.stem in HARMLESS or not names or any(refused)


def test_random_plans() -> None:
    for seed in range(60):
        rng = Random(seed)
        program = random_program(rng, size=6)
        assert agrees(program, random_schedule(rng, program))


@pytest.mark.parametrize("name", BREAKS)
def test_damaged_plans(name: str) -> None:
    damaged(name, 25)


@pytest.mark.slow
@pytest.mark.parametrize("name", BREAKS)
def test_many_damaged_plans(name: str) -> None:
    damaged(name, 1000)


def damaged(name: str, count: int) -> None:
    answers = []
    for seed in range(count):
        rng = Random(f"checker {name} {seed}")
        program = random_program(rng, size=6)
        schedule = random_schedule(rng, program)
        steps = list(schedule.steps)
        BREAKS[name](rng, steps)
        answers.append(agrees(program, replace(schedule, steps=tuple(steps))))
    assert False in answers


def test_seeded_faults_in_plans_of_models() -> None:
    """Mutants of the steps that do harm at any budget are refused, the plans accepted."""
    rng, small = Random(0), [case for case in cases() if case.name.startswith("mlp")]
    for case in rng.sample(cases(), 3):
        assert isinstance(check(written(case.program, case.schedule), case.schedule.name), Accepted)
    for name, kind in KINDS.items():
        if kind.where != "schedule":
            continue
        for case in small:
            for mutant in sample(list(kind.mutants(case)), 1, rng):
                if not mutant.budgets and harm(mutant.program, mutant.schedule):
                    text = written(mutant.program, mutant.schedule)
                    opinion = check(text, mutant.schedule.name)
                    assert isinstance(opinion, Refused), (name, case.name)


RANGES = """fbir 1
sym b in [1, 12] = 8 of arg 0 dim 0
sym s in [2, 6] = 3 of arg 0 dim 1
target "t" {{ granularity 8 }}
graph @g {{
  %x : input f32[b, s] bytes 4*b*s
  %a : act u8[] bytes {size}
  %y : output f32[] bytes 4
  %dy : tangent f32[] bytes 4
  F1: fwd %a = ns.f(%x) workspace 2*b
  F2: fwd %y = ns.f(%a)
  L: loss %dy = loss(%y)
}}
bind {{ arg "x" = %x; result %y tangent %dy }}
schedule @p {{ F1; F2; free %a; L; free %dy }}
"""


@pytest.mark.parametrize(
    "size", ["b*s", "roundup(b, 16)*s", "(b - 7)*(b - 7)*s + b", "max(30 - b, 2*floordiv(b*s, 3))"]
)
def test_ranges_against_every_value(size: str) -> None:
    text = RANGES.format(size=size)
    opinions = [check(text, "p", {"b": b, "s": s}) for b in range(1, 13) for s in range(2, 7)]
    peaks = [opinion.peak for opinion in opinions if isinstance(opinion, Accepted)]
    assert len(peaks) == 12 * 5
    most = [max(p.device for p in peaks), max(p.activation for p in peaks), 0]
    box = {"b": (1, 12), "s": (2, 6)}
    opinion = check(text, "p", None, box, Bytes(*most))
    assert isinstance(opinion, Accepted)
    assert not opinion.undecided
    for i in (0, 1):
        short = [n - (i == j) for j, n in enumerate(most)]
        assert isinstance(check(text, "p", None, box, Bytes(*short)), Refused)


def test_ranges_too_wide_to_decide_are_not_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    text = RANGES.format(size="(b - 7)*(b - 7)*s + b")
    program = parse_program(text)
    whole = verify(program, program.schedules[0])
    assert isinstance(whole, ProvenPlan)
    assert whole.bounds[-1].everywhere
    monkeypatch.setattr(sizes, "RANGE_WORK", 0)
    sample_only = verify(program, program.schedules[0])
    assert isinstance(sample_only, ProvenPlan)
    assert "memory at sample" in sample_only.proven.obligations
    assert isinstance(verify(program, program.schedules[0], scope="range"), Undecided)


@pytest.mark.parametrize("where", ["one long expression", "many expressions"])
def test_ranges_end_at_the_deadline(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bomb of sizes: boxes are many, and each takes long. The clock is looked at once a box, and
    each look takes 10 of 25 units."""
    size = "(b - s)*(b - s) + b"
    long = " + ".join([size] * 3000) if where == "one long expression" else size
    text = RANGES.format(size=long).replace("12]", "1000000]").replace("6]", "99999]")
    if where == "many expressions":
        rows = [f"  %a{i} : act u8[] bytes {size} + {i}\n" for i in range(2000)]
        calls = [f"  E{i}: fwd %a{i} = ns.f(%x)\n" for i in range(2000)]
        text = text.replace("  F1:", "".join(rows + calls) + "  F1:")
        steps = "".join(f"E{i}; free %a{i}; " for i in range(2000))
        text = text.replace("@p { F1", "@p { " + steps + "F1")
    box = {"b": (1, 10**6), "s": (2, 99999)}
    clock = skips(monkeypatch)
    clock.each_s = 10 * HANGS_S
    monkeypatch.setattr(sizes, "RANGE_WORK", 10 * len(text))  # of which a box takes about one
    deadline = time.monotonic() + 2.5 * clock.each_s
    opinion = check(text, "p", None, box, Bytes(10**20, 10**20, 0), deadline)
    assert isinstance(opinion, Accepted)
    assert opinion.undecided
    assert clock.looks == 3


def test_a_deadline_of_the_proof_is_one_of_the_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[float] = []

    def listen(text: str, *rest: object) -> object:
        deadline = next(r for r in reversed(rest) if isinstance(r, float))
        left.append(deadline - time.monotonic())
        return check(text, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("remat_compile.verifier.agreement.check", listen)
    program = parse_program(RANGES.format(size="b*s"))
    verify(program, program.schedules[0], time_limit_s=100 * HANGS_S)
    prove_largest(program, program.schedules[0], (), "b", time_limit_s=100 * HANGS_S)
    assert left == pytest.approx([50 * HANGS_S, 50 * HANGS_S], abs=HANGS_S)


def test_a_disagreement_is_no_proof(tmp_path: Path) -> None:
    """The parser's program is right and the text says something else: FB0817, both opinions."""
    text = (CONFORMANCE / "valid" / "accumulate.fbir").read_text(encoding="utf-8")
    program = parse_program(text, "plan.fbir")
    schedule = program.schedules[0]
    assert isinstance(verify(program, schedule, text=text), ProvenPlan)
    other = format_program(program).replace("  free ", "  // free ")
    assert other != format_program(program)
    verdict = verify(program, schedule, text=other)
    assert isinstance(verdict, Disagreement)
    (diagnostic,) = verdict.diagnostics
    assert diagnostic.code == "FB0817"
    assert diagnostic.span == schedule.span
    assert [note.message.split(":")[0] for note in diagnostic.notes] == [
        "the solver",
        "the checker",
    ]
    assert verdict.report.endswith(other)


def test_the_largest_value_needs_both(tmp_path: Path) -> None:
    text = RANGES.format(size="b*s")
    program = parse_program(text)
    schedule = program.schedules[0]
    assert isinstance(prove_largest(program, schedule, (), "b"), Largest)
    other = text.replace("bytes b*s", "bytes 2*b*s")
    assert isinstance(prove_largest(program, schedule, (), "b", text=other), Disagreement)


def test_a_loaded_plan_is_checked_on_its_own_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.fbir"
    path.write_text((CONFORMANCE / "valid" / "accumulate.fbir").read_text(encoding="utf-8"))
    seen: list[str] = []

    def listen(text: str, *rest: object) -> object:
        seen.append(text)
        return check(text, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("remat_compile.verifier.agreement.check", listen)
    assert isinstance(load(path).verify(), ProvenPlan)
    assert seen == [path.read_text()]


def test_ten_thousand_steps_take_a_second() -> None:
    """Linear: 100 000 steps took 5.4 s of one core (2026-11-22), most of it reading."""
    count = 2500
    rows = [f"  %a{i} : act f32[] bytes {i % 100}\n" for i in range(count)]
    calls = [f"  F{i + 1}: fwd %a{i + 1} = ns.f(%a{i})\n" for i in range(count - 1)]
    steps = [
        f"  offload %a{i}\n  F{i + 1}\n  wait %a{i}\n  hostfree %a{i}\n" for i in range(count - 1)
    ]
    frees = [f"  free %a{i}\n" for i in range(count)]
    text = (
        "fbir 1\ngraph @g {\n  %x : input f32[] bytes 4\n  %y : output f32[] bytes 4\n"
        + "".join(rows)
        + "  F0: fwd %a0 = ns.f(%x)\n"
        + "".join(calls)
        + f"  FY: fwd %y = ns.f(%a{count - 1})\n  L: loss loss(%y)\n}}\nschedule @p {{\n  F0\n"
        + "".join(steps)
        + "  FY\n  L\n"
        + "".join(frees)
        + "}\n"
    )
    assert isinstance(check(text, "p"), Accepted)


def test_every_computation_may_have_workspace() -> None:
    """No expression of the file is 0 then; steps that compute nothing take none all the same."""
    text = (
        "fbir 1\ngraph @g {\n  %x : input f32[] bytes 4\n  %y : output f32[] bytes 4\n"
        "  F: fwd %y = ns.f(%x) workspace 64\n  L: loss loss(%y) workspace 8\n}\n"
        'bind {\n  arg "x" = %x\n  result %y\n  grads fresh\n}\nschedule @p {\n'
        "  F\n  offload %y\n  wait %y\n  hostfree %y\n  L\n}\n"
    )
    program = parse_program(text)
    assert isinstance(verify(program, program.schedules[0], text=text), ProvenPlan)


def test_ranges_end_with_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker would try boxes for minutes; half of what is left of the limit is its own: the
    clock passes that as it begins, and the proof for the sample has the other half."""
    names = [f"a{i}" for i in range(6)]
    rows = [f"  %{n} : act f32[0] bytes {i + 1}*(b - s)*(b - s)\n" for i, n in enumerate(names)]
    pairs = zip(["x", *names], [*names, "y"], strict=True)
    calls = [f"  F{b}: fwd %{b} = ns.f(%{a})\n" for a, b in pairs]
    steps = [f"  F{n}\n" for n in (*names, "y")] + [f"  free %{n}\n" for n in names] + ["  L\n"]
    text = (
        "fbir 1\nsym b in [1, 30000] = 3 of arg 0 dim 0\nsym s in [1, 30000] = 4 of arg 0 dim 1\n"
        "graph @g {\n  %x : input f32[b, s] bytes 4*b*s\n  %y : output f32[] bytes 4\n"
        + "".join((*rows, *calls))
        + '  L: loss loss(%y)\n}\nbind {\n  arg "x" = %x\n  result %y\n  grads fresh\n}\n'
        + f"schedule @p {{\n{''.join(steps)}}}\n"
    )
    program = parse_program(text)
    skip, boxes, skipped = skips(monkeypatch), list[str](), list[Any]()
    everywhere = sizes.Search.everywhere

    def late(self: sizes.Search, box: Any, exprs: Any, holds: Any, cost: int = 0) -> None:
        if any(low < high for low, high in box.values()):
            skip(0 if skipped else 60 * HANGS_S)
            skipped.append(box)
            holds = counted(holds)
        everywhere(self, box, exprs, holds, cost)

    def counted(holds: Any) -> Any:
        def seen(size: Any) -> bool:
            boxes.append("")
            return bool(holds(size))

        return seen

    monkeypatch.setattr(sizes.Search, "everywhere", late)
    verdict = verify(program, program.schedules[0], time_limit_s=100 * HANGS_S, text=text)
    assert isinstance(verdict, ProvenPlan)
    assert "memory at sample" in verdict.proven.obligations
    assert len(boxes) == len(skipped)  # of each size at most the whole of the ranges
