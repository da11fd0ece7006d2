"""In a real kernel: plans, pictures and sweeps show themselves, and nothing else is printed."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_notebook_shows_plans() -> None:
    notebook = nbformat.read(ROOT / "examples/plan.ipynb", 4)
    # What is slow says so under its cell from the beginning.
    slow = "from remat_compile.plans import progress\nprogress.SLOW_S = 0.0"
    notebook.cells.insert(0, nbformat.v4.new_code_cell(slow))
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert {output["output_type"] for output in outputs} <= {"display_data", "execute_result"}
    lines = [o["data"] for o in outputs if o["output_type"] == "display_data"]
    assert len(lines) == 2, "one for the plan and one for the sweep"
    assert all(line == {"text/plain": ""} for line in lines), "each is gone once its work is over"
    plan, picture, size, sweep = (
        o["data"] for o in outputs if o["output_type"] == "execute_result"
    )
    assert "nothing recomputed" in plan["text/html"]
    assert "<svg" in plan["text/html"]
    assert plan["text/plain"].startswith("Plan(@plan by ")
    assert "<svg" in picture["image/svg+xml"]
    assert len(plan["text/html"]) < 150_000 < int(size["text/plain"])
    assert sweep["text/plain"] == "Sweep(3 cells, 3 planned)"
    assert "<svg" in sweep["image/svg+xml"]
