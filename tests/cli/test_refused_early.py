"""A refusal that needs no model loads no planner, no proof and no array: it comes at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOADED = """
import sys
from remat_compile.cli import main
code = main(sys.argv[1:])
heavy = ("torch", "onnx", "remat_compile.plans.make", "remat_compile.verifier")
print(code, *(name for name in (*heavy, "numpy") if name in sys.modules))
"""
WORDS = {
    "planner": ("net.py:make --planner nope", "2"),
    "missing": ("missing.onnx", "2 numpy"),
    "fit": ("fit missing.onnx", "2 numpy"),
    "dim": ("net.py:make --dim batch=3..1", "2 numpy"),
    "no model": ("bad.pt2", "1 numpy"),
    "show": ("show bad.fbir", "1"),
}
"""What is asked, its exit code, and what is loaded for it (`auto` needs numpy)."""


@pytest.mark.parametrize("case", WORDS)
def test_what_is_refused_early_loads_little(case: str, tmp_path: Path) -> None:
    for name in ("net.py", "bad.pt2", "bad.fbir"):
        (tmp_path / name).write_text("garbage\n")
    words, expected = WORDS[case]
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *words.split()], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.strip() == expected, done.stderr
