"""The verifier is a second opinion: it shares data with the rest, and no analysis."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import remat_compile.verifier
from helpers.programs.strategies import random_program, random_schedule
from remat_compile.ir.graph import CNode, Graph
from remat_compile.verifier.agreement import written

ALLOWED = {"ir.diagnostics", "ir.expr", "ir.graph", "ir.program", "ir.schedule", "ir.span"}
ALLOWED |= {"ir.codecs", "ir.pipeline", "ir.wording", "operators"}
"""Modules of the package that the verifier may import from, its own aside. Three
are tables of words: codecs, options in hints, and what operators do."""

EXPR_DATA = {"Add", "CeilDiv", "Const", "Expr", "FloorDiv", "Max", "Mul", "RoundUp", "Sym"}
"""Of `ir.expr` only the data: it evaluates expressions itself."""

CODEC_DATA = {
    "FLOATS",
    "EXPAND",
    "INDEX_AXES",
    "NAMESPACE",
    "PACKS",
    "READS",
    "SAME_ELEMENTS",
    "UNPACKS",
    "Codec",
}

GRAPH_DATA = {"ACCUMULATE_OP", "CALLER_KINDS", "DTYPE_BYTES", "FUSED_OP", "LOSS_OP"} | {
    "UPDATE_OP",
    *("ANode", "Arg", "Atom", "CNode", "Call", "Graph", "Ref", "View"),
}

SHARED_ANALYSES = {
    *("reads", "readers", "storage", "in_phase", "loss"),  # of Graph
    *("is_loss", "is_accumulate", "call_at", "results_at"),  # of CNode
    *("workspace_at", "time_ns_at", "refs"),  # of CNode and Call
    *("may_read", "unpack"),  # of Codec
}
"""Attributes by which the core offers what the verifier must work out itself."""

FOLDER = Path(remat_compile.verifier.__file__).parent
SOURCES = sorted(FOLDER.rglob("*.py"))


def _imports(
    tree: ast.AST, package: tuple[str, ...] = ("verifier",)
) -> list[tuple[str, list[str]]]:
    """What a module of the verifier imports from the package, relative names resolved.

    `package` is the folder that the module lies in."""
    modules = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
            module = node.module or ""
            if node.level == 0 and module.split(".")[0] == "remat_compile":
                modules.append((module.removeprefix("remat_compile").lstrip("."), names))
            elif node.level > 0:
                base = package[: len(package) - node.level + 1]
                modules.append((".".join((*base, *([module] if module else []))), names))
        elif isinstance(node, ast.Import):
            own = [a.name for a in node.names if a.name.split(".")[0] == "remat_compile"]
            modules += [(name.removeprefix("remat_compile").lstrip("."), []) for name in own]
    return modules


def _package(source: Path) -> tuple[str, ...]:
    return ("verifier", *source.relative_to(FOLDER).parts[:-1])


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_imports_only_data(source: Path) -> None:
    tree = ast.parse(source.read_text(encoding="utf-8"))
    for module, names in _imports(tree, _package(source)):
        if module == "verifier" or module.startswith("verifier."):
            continue
        if (source.stem, module, names) == ("certificate", "ir.text.printer", ["graph_sha256"]):
            continue
        if (source.stem, module, names) == ("agreement", "ir.text.printer", ["format_program"]):
            continue  # the text that the independent checker reads
        assert module in ALLOWED, f"{source.name} imports {module}"
        if module == "ir.expr":
            assert set(names) <= EXPR_DATA
        if module == "ir.graph":
            assert set(names) <= GRAPH_DATA
        if module == "ir.codecs":
            assert set(names) <= CODEC_DATA


@pytest.mark.parametrize(
    "source", [p for p in SOURCES if "check" not in _package(p)], ids=lambda path: path.stem
)
def test_uses_no_shared_analysis(source: Path) -> None:
    tree = ast.parse(source.read_text(encoding="utf-8"))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not used & SHARED_ANALYSES


def test_the_import_rules_see_what_they_forbid() -> None:
    tree = ast.parse(
        "from ..ir.semantics.simulate import simulate\n"
        "from remat_compile.ir.analysis.order import x\n"
        "import remat_compile.planners\nfrom .. import planners"
    )
    modules = [module for module, _ in _imports(tree)]
    assert modules == ["ir.semantics.simulate", "ir.analysis.order", "planners", ""]
    assert not set(modules) & ALLOWED


def test_runs_without_the_analyses_of_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cached look-up of Graph and every derived property of CNode raises here."""
    from random import Random

    programs = []
    for seed in range(10):
        rng = Random(seed)
        program = random_program(rng)
        schedule = random_schedule(rng, program)
        programs.append((program, schedule, written(program, schedule)))

    def forbidden(self: object, *args: object) -> None:
        raise AssertionError("the verifier used an analysis of the core")

    for name in ("anode", "view", "cnode", "writer", "loss", "storage", "_reads", "readers"):
        monkeypatch.setattr(Graph, name, property(forbidden))
    monkeypatch.setattr(Graph, "reads", forbidden)
    for name in ("is_loss", "is_accumulate", "results"):
        monkeypatch.setattr(CNode, name, property(forbidden))
    for name in ("call_at", "results_at", "workspace_at", "time_ns_at"):
        monkeypatch.setattr(CNode, name, forbidden)
    monkeypatch.setattr(
        "remat_compile.verifier.plan_proof.certificate_sha256", lambda program, schedule: ""
    )
    for program, schedule, text in programs:
        verdict = remat_compile.verifier.verify(program, schedule, text=text)
        assert isinstance(verdict, remat_compile.verifier.ProvenPlan)


def test_importing_the_verifier_loads_no_solver() -> None:
    code = "import sys, remat_compile.verifier; sys.exit(bool({'z3', 'cvc5'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
