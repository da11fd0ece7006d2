"""What may import what, and what importing costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Container, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path, PurePosixPath

import pytest

from remat_compile.planners.registry import available

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "remat_compile"
HEAVY = (
    "torch",
    "jax",
    "onnx",
    "onnxscript",
    "z3",
    "cvc5",
    "highspy",
    "lark",
    "numpy",
    "typer",
    "rich",
    "vl_convert",
)


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Absolute names of everything a module imports, names of `from` included."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    package = ("remat_compile", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join((*base, *([node.module] if node.module else [])))
            yield from (f"{stem}.{alias.name}" for alias in node.names)


def dotted(path: Path) -> str:
    parts = ("remat_compile", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def module_of(name: str, known: Container[str]) -> str:
    """The module of ours that an imported name lies in; "" for none."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def test_the_reader_of_imports_reads() -> None:
    names = set(imported(PACKAGE / "cli" / "shared" / "verdicts.py"))
    assert "remat_compile.ir.program.Proven" in names
    assert "remat_compile.cli.shared.app.print_warnings" in names
    assert "json" in names


def test_imports_have_no_circles() -> None:
    """Imports inside functions and for types count too."""
    names = {dotted(path): path for path in modules()}
    graph = {
        name: {known for module in imported(path) if (known := module_of(module, names)) != name}
        for name, path in names.items()
    }
    sorter = TopologicalSorter({name: below - {""} for name, below in graph.items()})
    sorter.prepare()  # CycleError names the modules of a circle


def test_planners_and_the_middle_are_not_flat() -> None:
    """One file per planner and what all of them share; nothing loose beside the rooms."""
    loose = {path.name for path in PACKAGE.glob("*.py")} - {
        "__init__.py",
        "__main__.py",
        "api.py",
        "version.py",
    }
    assert loose == set()
    registered = {info.target.split(":")[0].split(".")[-1] for info in available().values()}
    shared = {"__init__", "contract", "instance", "kit", "registry", "results"}
    assert {path.stem for path in (PACKAGE / "planners").glob("*.py")} - shared <= registered


MUTABLE = (ast.Dict, ast.DictComp, ast.List, ast.ListComp, ast.Set, ast.SetComp)
STATEFUL = {"ContextVar", "Lock", "RLock", "dict", "list", "set", "defaultdict", "deque", "local"}
KEEPING = {"cache", "lru_cache"}


def hidden_state(code: str) -> Iterator[str]:
    """What a module keeps between two calls of its functions: tables that can change, context
    variables, remembered results, `global`, handlers at exit. UPPER_CASE tables are constants."""
    tree = ast.parse(code)
    for statement in tree.body:
        for target in _assigned(statement):
            value = statement.value  # type: ignore[attr-defined]
            constant = target.lstrip("_").isupper() and isinstance(value, MUTABLE)
            made = isinstance(value, ast.Call) and _name(value.func) in STATEFUL
            if target != "__all__" and (made or isinstance(value, MUTABLE)) and not constant:
                yield f"line {statement.lineno}: {target}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield f"line {node.lineno}: global {', '.join(node.names)}"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            modules = [node.module] if isinstance(node, ast.ImportFrom) else []
            names = {*modules, *(alias.name for alias in node.names)}
            for name in names & {"atexit", "contextvars"}:
                yield f"line {node.lineno}: import {name}"
        elif isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                called = decorator.func if isinstance(decorator, ast.Call) else decorator
                if _name(called) in KEEPING:
                    yield f"line {node.lineno}: {node.name} remembers"


def _assigned(node: ast.stmt) -> Iterator[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        targets = [node.target]
    yield from (target.id for target in targets if isinstance(target, ast.Name))


def _name(called: ast.expr) -> str:
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


@pytest.mark.parametrize(
    "code",
    [
        "known = {}",
        "known: dict[int, int] = dict()",
        "state = ContextVar('x')",
        "_lock = threading.Lock()",
        "import atexit",
        "from contextvars import ContextVar",
        "def f():\n    global n\n    n = 1",
        "@lru_cache(maxsize=9)\ndef f(): ...",
        "class A:\n    @staticmethod\n    @functools.cache\n    def f(): ...",
    ],
)
def test_hidden_state_is_seen(code: str) -> None:
    assert list(hidden_state(code)) != []


def test_planners_keep_no_state_between_calls() -> None:
    """Tables in capitals are written once: nothing changes them (below)."""
    folder = PACKAGE / "planners"
    states = [
        f"{path.relative_to(PACKAGE)} {what}"
        for path in sorted(folder.rglob("*.py"))
        for what in hidden_state(path.read_text(encoding="utf-8"))
    ]
    assert states == []


CHANGING = {"add", "append", "clear", "extend", "insert", "pop", "remove", "setdefault", "update"}


def test_tables_of_planners_are_never_changed() -> None:
    """No item of a table in capitals is set or deleted, and no method that changes it is called."""
    changes = []
    for path in sorted((PACKAGE / "planners").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Subscript(value=ast.Name(name), ctx=ast.Store() | ast.Del()):
                    changed = name
                case ast.Attribute(value=ast.Name(name), attr=method) if method in CHANGING:
                    changed = name
                case _:
                    continue
            if changed.lstrip("_").isupper():
                changes.append(f"{path.name}:{node.lineno} {changed}")
    assert changes == []


MOST_PRIVATE = 34
"""Names that tests import though they are private: of `_torch`, which all that touches PyTorch
shares, or of the very module that the test is about. Fewer is better."""


def test_tests_use_public_names() -> None:
    private = [
        f"{path.relative_to(ROOT)}: {node.module} {name.name}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if not {"files", "golden"} & set(path.parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("remat_compile")
        for name in node.names
        if any(re.match("_[^_]", part) for part in (*(node.module or "").split("."), name.name))
    ]
    assert len(private) <= MOST_PRIVATE, "\n".join(private)


def test_lowerings_know_jax_and_numpy_only() -> None:
    wrong = [
        f"{path.name} imports {name}"
        for path in (PACKAGE / "backends" / "jax" / "lowerings").glob("[a-z]*.py")
        for name in imported(path)
        if name.split(".")[0] not in ("__future__", "jax", "numpy")
        and not name.startswith("remat_compile.backends.jax.lowerings.")
    ]
    assert wrong == []


def python(code: str) -> str:
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ran.stdout.strip()


@pytest.mark.parametrize(
    "statement",
    [
        "import remat_compile",
        "import remat_compile.ir",
        "import remat_compile.operators",
        "from remat_compile import FBError",
    ],
)
def test_import_loads_nothing_heavy(statement: str) -> None:
    loaded = python(f"import sys; {statement}; print(*sorted(sys.modules))").split()
    assert [name for name in HEAVY if name in loaded] == []


def test_registries_load_nothing_heavy() -> None:
    code = (
        "import sys; from remat_compile.planners.registry import available; available();"
        "from remat_compile.costs import device_names; device_names(); print(*sys.modules)"
    )
    loaded = python(code).split()
    assert [name for name in ("torch", "z3", "highspy", "onnx") if name in loaded] == []


def test_help_loads_no_framework_and_no_solver() -> None:
    code = "import sys; from remat_compile.cli import main; main(['--help']); print(*sys.modules)"
    loaded = python(code).split()
    assert [name for name in ("torch", "z3", "highspy", "onnx", "numpy") if name in loaded] == []


def test_public_names() -> None:
    import remat_compile

    assert {name for name in dir(remat_compile) if not name.startswith("_")} >= {
        "Budget",
        "Diagnostic",
        "FBError",
        "Plan",
        "compile",
        "load",
        "plan",
    }
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
