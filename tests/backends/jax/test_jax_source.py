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
import torch
from torch import Tensor, nn

from helpers.clock import HANGS_S
from helpers.paths import fbir
from remat_compile.backends.jax.honoured import honoured
from remat_compile.backends.jax.lowerings import FAMILIES, IMPORTS, missing, source_of, table
from remat_compile.backends.jax.support import operators, require_lowerings
from remat_compile.capture.torch import export, lower
from remat_compile.ir.diagnostics import FBError
from remat_compile.ir.text.parser import parse_program
from remat_compile.ir.text.printer import format_program

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


# -- Operators without a lowering ------------------------------------------------------------------


class Exotic(nn.Module):
    """Two operators that no lowering exists for, one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.special.erfcx(self.fc(x).abs() + 1)
        x = torch.linalg.matrix_exp(x @ x.T) @ x
        out: Tensor = torch.special.erfcx(x + 1) + torch.special.erfcx(x + 2)
        return out.cumsum(0)


def test_all_operators_are_named_with_their_lines() -> None:
    with lower(export(Exotic(), (torch.ones(2, 4),))) as lowered:
        program = lowered.program
    with pytest.raises(FBError) as refused:
        require_lowerings(program.graph)
    by_operator = {d.message.split()[0]: d for d in refused.value.diagnostics}
    assert {"aten.special_erfcx.default", "aten.linalg_matrix_exp.default"} <= set(by_operator)
    assert {d.code for d in by_operator.values()} == {"FB0920"}
    erfcx = by_operator["aten.special_erfcx.default"].message
    assert erfcx.count("test_jax_source.py:") == 2  # two lines of the model
    assert all(d.hint and "docs/guide/jax.md" in d.hint for d in by_operator.values())
    assert set(by_operator) < operators(program.graph)


def test_a_file_shows_where_it_is_used() -> None:
    with lower(export(Exotic(), (torch.ones(2, 4),))) as lowered:
        text = format_program(lowered.program)
    with pytest.raises(FBError) as refused:
        require_lowerings(parse_program(text, "exotic.fbir").graph)
    for d in refused.value.diagnostics:
        assert d.span is not None
        assert d.message.split()[0] in text.splitlines()[d.span.line - 1]


def test_many_lines_are_counted() -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.special.erfcx(self.fc(x).abs() + 1)
            x = torch.special.erfcx(x + 1)
            x = torch.special.erfcx(x + 1)
            x = torch.special.erfcx(x + 1)
            return torch.special.erfcx(x + 1)

    with (
        lower(export(Deep(), (torch.ones(2, 4),))) as lowered,
        pytest.raises(FBError, match="and 2 more"),
    ):
        require_lowerings(lowered.program.graph)


CALLS = fbir("backends/jax/texts/support")


@pytest.mark.parametrize(
    ("is_sorted", "created", "code", "line", "words"),
    [
        ("false", "zeros_like.default(%w)", "FB0947", 11, "given sorted=False; in JAX"),
        ("true", "zeros_like.default(%w, layout=layout:sparse_coo)", "FB0947", 13, "sparse_coo"),
        ("true", "zeros_like.default(%w, dtype:f32, device:cpu)", "FB0948", 13, "too many"),
        ("true", "zeros_like.default(%w, colour=1)", "FB0948", 13, "'colour'"),
        ("true", "zeros_like.default(dtype=dtype:f32)", "FB0948", 13, "'x'"),
    ],
)
def test_an_argument_that_a_lowering_does_not_honour(
    is_sorted: str, created: str, code: str, line: int, words: str
) -> None:
    text = CALLS.replace("SORTED", is_sorted).replace("CREATED", created)
    with pytest.raises(FBError) as refused:
        require_lowerings(parse_program(text, "calls.fbir").graph)
    diagnostic = next(d for d in refused.value.diagnostics if d.code == code)
    assert words in diagnostic.message
    assert diagnostic.span is not None
    assert diagnostic.span.line == line
    assert diagnostic.hint


def test_arguments_that_mean_nothing_are_left_out() -> None:
    created = "zeros_like.default(%w, layout=layout:strided, device=device:cpu, pin_memory=false)"
    text = CALLS.replace("SORTED", "true").replace("CREATED", created)
    graph = parse_program(text).graph
    require_lowerings(graph)
    calls = {c.name: honoured(c.call) for c in graph.cnodes}
    assert calls["B1"].kwargs == ()
    assert len(calls["F1"].args) == 4


def test_complex_numbers_are_refused() -> None:
    class Spectrum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.fft(self.fc(x)).abs()

    with (
        lower(export(Spectrum(), (torch.ones(2, 4),))) as lowered,
        pytest.raises(FBError) as refused,
    ):
        require_lowerings(lowered.program.graph)
    assert "FB0921" in {d.code for d in refused.value.diagnostics}
