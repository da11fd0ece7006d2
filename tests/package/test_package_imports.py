"""Limits on imports beside the contracts in `pyproject.toml`, and the cost of importing."""

from __future__ import annotations

import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import PurePosixPath

import grimp
import pytest

from helpers.paths import ROOT

PACKAGE = ROOT / "src" / "remat_compile"
FRAMEWORKS = {"torch", "jax", "onnx", "onnxscript", "z3", "cvc5", "highspy"}
HEAVY = {*FRAMEWORKS, "lark", "numpy", "typer", "rich", "vl_convert"}
LOWERINGS = "remat_compile.backends.jax.lowerings"


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """By module what it imports, inside functions and for types too."""
    graph = grimp.build_graph("remat_compile", include_external_packages=True, cache_dir=None)
    return {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}


def test_imports_have_no_circles(imports: dict[str, set[str]]) -> None:
    assert "jax" in {name for below in imports.values() for name in below}
    TopologicalSorter(imports).prepare()  # CycleError names the modules of a circle


def test_lowerings_know_jax_and_numpy_only(imports: dict[str, set[str]]) -> None:
    below = {
        name for m, names in imports.items() if m.startswith(f"{LOWERINGS}.") for name in names
    }
    assert {
        n for n in below if n.startswith("remat_compile") and not n.startswith(LOWERINGS)
    } == set()
    assert below & FRAMEWORKS == {"jax"}


@pytest.mark.parametrize(
    ("code", "heavy"),
    [
        ("import remat_compile", HEAVY),
        ("import remat_compile.ir", HEAVY),
        ("import remat_compile.operators", HEAVY),
        ("from remat_compile import FBError", HEAVY),
        (
            "from remat_compile.planners.registry import available; available();"
            "from remat_compile.costs import device_names; device_names()",
            FRAMEWORKS,
        ),
        ("from remat_compile.cli import main; main(['--help'])", {*FRAMEWORKS, "numpy"}),
    ],
)
def test_nothing_heavy_is_loaded(code: str, heavy: set[str]) -> None:
    command = [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert heavy & {*ran.stdout.splitlines()[-1].split()} == set()


def test_public_names() -> None:
    import remat_compile

    wanted = {"Budget", "Diagnostic", "FBError", "Plan", "compile", "load", "plan"}
    assert wanted <= {*remat_compile.__all__}
    for name in remat_compile.__all__:
        assert getattr(remat_compile, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nix'"):
        _ = remat_compile.nix


def test_the_page_on_architecture_names_every_room() -> None:
    """No row for what is gone, and a row for each room at the top."""
    page = (ROOT / "docs" / "design" / "architecture.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = {PurePosixPath(name) for row in rows for name in re.findall(r"`([\w/]+)/`", row)}
    rooms = {
        PurePosixPath(path.parent.relative_to(PACKAGE)) for path in PACKAGE.rglob("__init__.py")
    } - {PurePosixPath()}
    explained = named | {parent for room in named for parent in room.parents}
    assert named - rooms == set()
    assert {room for room in rooms - explained if len(room.parts) == 1} == set()
