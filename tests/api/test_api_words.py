"""What users of Python read: their keywords, not options of the command line."""

from __future__ import annotations

import ast
import copy
import inspect
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import remat_compile
from helpers.cli import chain_text
from helpers.paths import ROOT
from remat_compile import FBError
from remat_compile.ir.diagnostics import Diagnostic, Note
from remat_compile.ir.wording import Worded, on_command_line, worded
from remat_compile.plans.options import PlanKeywords
from remat_compile.verifier import ProvenPlan, Refuted

SOURCE = ROOT / "src" / "remat_compile"
OPTION = re.compile(r"(^|[\s(])--[a-z]")


@pytest.fixture
def chain(tmp_path: Path) -> Path:
    path = tmp_path / "chain.fbir"
    path.write_text(chain_text())
    return path


def refused(call: Callable[[], object]) -> FBError:
    with pytest.raises(FBError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize(
    ("function", "wrong", "right"),
    [
        ("plan", "buget", "budget"),
        ("compile", "activation_buget", "activation_budget"),
        ("sweep", "planer", "planners"),
        ("import_plan", "time_limit", "time_limit_s"),
        ("load", "trust_sorce", "trust_source"),
        ("jax_step", "styl", "style"),
    ],
)
def test_a_wrong_keyword_names_the_nearest(function: str, wrong: str, right: str) -> None:
    error = refused(lambda: getattr(remat_compile, function)("net.onnx", **{wrong: 1}))
    (diagnostic,) = error.diagnostics
    assert (diagnostic.code, error.usage) == ("FB0723", True)
    assert diagnostic.message == f'{function} takes no keyword {wrong}. Did you mean "{right}"?'
    assert right in (diagnostic.hint or "")


def test_wrong_keywords_come_together() -> None:
    error = refused(lambda: remat_compile.plan("net.onnx", a=1, b=2))  # type: ignore[call-arg]
    assert [d.code for d in error.diagnostics] == ["FB0723", "FB0723"]


def test_help_shows_every_option_with_its_default_and_meaning() -> None:
    for function in (remat_compile.plan, remat_compile.compile):
        parameters = inspect.signature(function).parameters
        assert PlanKeywords.__annotations__.keys() <= parameters.keys()
        assert parameters["planner"].default == "auto"
        assert parameters["time_limit_s"].default == 60.0
        for option in PlanKeywords.__annotations__:
            assert f"\n{option}: " in (inspect.getdoc(function) or "")


def test_a_budget_that_cannot_be_met_is_advised_in_the_words_of_who_asks(
    chain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from remat_compile.cli import main

    error = refused(lambda: remat_compile.plan(chain, activation_budget="5%", planner="dtr"))
    assert 'help: give activation_budget="4000B" or more' in str(error)
    assert "--" not in str(error)
    assert main([str(chain), "--activation-budget", "5%", "--planner", "dtr", "-q"]) == 1
    assert "help: give --activation-budget 4000B or more" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keywords", "hint"),
    [
        ({"budget": "8GiB", "activation_budget": 1}, "give budget or activation_budget"),
        ({"costs": "measured", "device": "h200"}, 'use costs="roofline" with device'),
        ({"costs": "measured"}, "leave costs away to keep those in the file"),
    ],
)
def test_advice_on_options_names_keywords(
    chain: Path, keywords: dict[str, object], hint: str
) -> None:
    error = refused(lambda: remat_compile.plan(chain, **keywords))  # type: ignore[arg-type]
    assert hint in str(error)
    assert "--" not in str(error)


def test_a_value_of_another_type_is_one_message(chain: Path) -> None:
    for keywords in ({"time_limit_s": "60"}, {"planner": 3}):
        error = refused(lambda k=keywords: remat_compile.plan(chain, **k))  # type: ignore[misc]
        assert [d.code for d in error.diagnostics] == ["FB0707"]


def test_a_text_is_planned_again_with_its_own_costs(chain: Path) -> None:
    made = remat_compile.plan(str(chain), activation_budget="70%", planner="dtr")
    assert made.proven is not None
    assert made.activation_peak_bytes <= 7000
    made.save(chain.with_name("plan.fbir"))
    again = remat_compile.plan(chain.with_name("plan.fbir"), planner="store-all")
    assert [s.planner for s in again.program.schedules] == ["store-all"]
    assert again.time_s == again.baseline.time_ns / 1e9


def test_a_text_is_not_compiled(chain: Path) -> None:
    error = refused(lambda: remat_compile.compile(chain))
    (diagnostic,) = error.diagnostics
    assert (diagnostic.code, error.usage) == ("FB0702", True)
    assert "bind(model, args)" in (diagnostic.hint or "")


def test_a_plan_is_verified_within_a_budget_as_people_write_it(chain: Path) -> None:
    made = remat_compile.plan(chain, activation_budget="70%", planner="dtr")
    for enough in ("8GiB", 8 << 30, "100%", f"{made.peak_bytes}B"):
        assert isinstance(made.verify(enough), ProvenPlan)
    for little in ("1B", made.peak_bytes - 1):
        answer = made.verify(little)
        assert isinstance(answer, Refuted)
        assert answer.diagnostics[0].code == "FB0820"
    assert refused(lambda: made.verify("8")).diagnostics[0].code == "FB0450"
    wrong = refused(lambda: made.verify(scop="range"))  # type: ignore[call-arg]
    assert 'Did you mean "scope"?' in wrong.diagnostics[0].message
    verdict, scripts = made.verify_with_scripts("8GiB", time_limit_s=30)
    assert isinstance(verdict, ProvenPlan)
    assert scripts


def test_a_plan_is_shown_in_one_short_line(chain: Path) -> None:
    made = remat_compile.plan(chain, activation_budget="70%", planner="dtr")
    shown = repr(made)
    assert shown.startswith("Plan(@")
    assert "by dtr" in shown
    assert "17 computations" in shown
    assert "proven <= " in shown
    made.save(chain.with_name("plan.fbir"))
    assert "recorded as proven <= " in repr(remat_compile.load(chain.with_name("plan.fbir")))
    text = chain.with_name("plan.fbir").read_text()
    for name in ("a" * 5000, "\\u001b[31m"):
        hostile = chain.with_name("hostile.fbir")
        hostile.write_text(text.replace('by "dtr"', f'by "{name}"'))
        assert name in hostile.read_text()
        shown = repr(remat_compile.load(hostile))
        assert len(shown) < 250
        assert shown.isprintable()


def test_the_package_is_a_command() -> None:
    command = [sys.executable, "-m", "remat_compile", "--version"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == f"remat-compile {remat_compile.__version__}\n"
    assert subprocess.run([*command[:3], "nix"], capture_output=True, check=False).returncode == 2


def test_a_style_that_is_none_is_refused(chain: Path) -> None:
    made = remat_compile.plan(chain, planner="store-all")
    error = refused(lambda: made.emit("jax", jax_style="explicitly"))  # type: ignore[arg-type]
    assert [d.code for d in error.diagnostics] == ["FB0707"]
    assert 'Did you mean "explicit"?' in str(error)
    error = refused(lambda: made.emit("torhc"))  # type: ignore[arg-type]
    assert [d.code for d in error.diagnostics] == ["FB0707"]


def test_both_wordings_survive_copies() -> None:
    advice = worded("give {budget} or {time_limit_s}", budget="{8B}")
    for same in (advice, copy.deepcopy(advice), pickle.loads(pickle.dumps(advice))):
        assert same == 'give budget="{8B}" or time_limit_s'
        assert same.for_command_line == "give --budget {8B} or --time-limit"
    own = Worded("python", "command line")
    shown = on_command_line(Diagnostic("FB0000", own, notes=(Note(own), Note("x")), hint=own))
    texts = (shown.message, *(note.message for note in shown.notes), shown.hint)
    assert texts == ("command line", "command line", "x", "command line")


def texts_with_options(path: Path) -> Iterator[str]:
    """Literal texts that name an option of the command line, but for those that are `Worded`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[int] = set()
    for node in ast.walk(tree):
        named = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Worded"
        if named or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            skipped |= {id(inner) for inner in ast.walk(node)}
        elif id(node) not in skipped and isinstance(node, ast.Constant):
            yield from (text for text in (str(node.value),) if OPTION.search(text))


def test_no_message_names_an_option_to_users_of_python() -> None:
    """Only the command line writes `--options` by itself; elsewhere `worded` does."""
    own = {
        # Options of ONNX files, which Python does not take.
        "plans/options.py",
        "plans/source.py",
        "capture/onnx/build.py",
        "capture/onnx/dims.py",
        "capture/onnx/inputs.py",
        "capture/onnx/warn.py",
        # Only `verify --require-certificate` and `--proofs` come here.
        "verifier/certificate.py",
        "verifier/proofs.py",
    }
    texts_of = {
        name: list(texts_with_options(path))
        for path in SOURCE.rglob("*.py")
        if not (name := str(path.relative_to(SOURCE))).startswith("cli/")
    }
    assert {name for name, texts in texts_of.items() if texts} == own
