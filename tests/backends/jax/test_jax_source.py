"""The text of lowerings: a module of its own that knows only jax and numpy."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from helpers.clock import HANGS_S
from remat_compile.backends.jax.lowerings import FAMILIES, IMPORTS, missing, source_of, table

ROOT = Path(__file__).parents[3]
EVERYTHING = source_of(table())


def functions(text: str) -> list[str]:
    return [n.name for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)]


def test_all_of_it_runs_alone(tmp_path: Path) -> None:
    path = tmp_path / "lowerings.py"
    check = (
        "import sys\n"
        "assert not any(name.split('.')[0] in ('torch', 'remat_compile') for name in sys.modules)\n"
        "print(aten_gelu_default(jnp.ones(2)), aten__softmax_default(jnp.ones(2), 0, False))\n"
    )
    path.write_text(f"{EVERYTHING}\n\n{check}", encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-I", str(path)], capture_output=True, text=True, timeout=HANGS_S
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "[0.8413447 0.8413447] [0.5 0.5]\n"


def test_imports_are_jax_and_numpy() -> None:
    imported = [n for n in ast.walk(ast.parse(EVERYTHING)) if isinstance(n, ast.Import)]
    imported_from = [n for n in ast.walk(ast.parse(EVERYTHING)) if isinstance(n, ast.ImportFrom)]
    names = {a.name for n in imported for a in n.names} | {n.module for n in imported_from}
    assert names == {"jax", "jax.numpy", "jax.typing", "numpy"}
    assert EVERYTHING.startswith(IMPORTS)


def test_each_function_stands_once() -> None:
    assert [name for name, n in Counter(functions(EVERYTHING)).items() if n > 1] == []
    assert set(functions(EVERYTHING)) >= {op.replace(".", "_") for op in table()}
    helpers = [n for family in FAMILIES for n, f in vars(family).items() if is_helper(f, family)]
    assert [name for name, n in Counter(helpers).items() if n > 1] == []


def is_helper(value: object, family: object) -> bool:
    return getattr(value, "__module__", None) == getattr(family, "__name__", "") and callable(value)


@pytest.mark.parametrize("op", sorted(table()))
def test_only_what_is_needed(op: str) -> None:
    """One operator's text defines or imports every name that it reads, before its use."""
    text = source_of([op])
    tree = ast.parse(text)
    known = {a.asname or a.name for n in tree.body if isinstance(n, ast.Import) for a in n.names}
    known |= {a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            reads = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            assert {r for r in reads if r.startswith("_")} - known - bound(node) == set()
            assert not node.decorator_list
            known.add(node.name)
    assert functions(text)[-1] == op.replace(".", "_")
    needed = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
    assert set(functions(text)[:-1]) <= needed


def bound(node: ast.FunctionDef) -> set[str]:
    names = {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    return names | {node.name}


def test_the_order_of_the_request_does_not_matter() -> None:
    ops = ["aten.mm.default", "aten.add.Tensor", "aten.mm.default"]
    assert source_of(ops) == source_of(reversed(ops))
    with pytest.raises(KeyError):
        source_of(["aten.nothing.default"])


def test_missing() -> None:
    ops = ["aten.zzz.default", "aten.mm.default", "aten.aaa.default", "aten.zzz.default"]
    assert missing(ops) == ["aten.aaa.default", "aten.zzz.default"]


def test_the_site_lists_every_operator() -> None:
    spec = spec_from_file_location("docs_site", ROOT / "docs" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    site = module_from_spec(spec)
    spec.loader.exec_module(site)
    listed = re.findall(r"^\* `(.+)`$", site.jax_operators(), re.MULTILINE)
    assert sorted(listed) == sorted(table())
