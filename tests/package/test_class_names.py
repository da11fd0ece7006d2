"""One name for one thing: who reads `Machine` knows which."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "src" / "remat_compile"

CHECKER = "the independent checker imports nothing of ours, and speaks of the same things"
SHARED = {
    "Call": "a node of an ONNX file, and a call in our graph: what the one is lowered to",
    "Function": "reads back what its backend emits: the same part of two backends",
    "Machine": CHECKER,
    "Program": CHECKER,
    "Search": CHECKER,
    "Sizes": "the verifier shares none with the simulator, and proves of the same",
    "Span": CHECKER,
    "Undecided": CHECKER,
}
"""Names of several classes, and why that helps a reader."""


def test_no_two_classes_share_a_name() -> None:
    places = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    several = {name: paths for name, paths in places.items() if len(paths) > 1}
    assert {n: paths for n, paths in several.items() if n not in SHARED} == {}
    assert SHARED.keys() - several.keys() == set(), "listed, and no longer shared"
