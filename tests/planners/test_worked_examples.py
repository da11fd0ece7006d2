"""The worked examples in the docstrings of planners are run as they stand."""

from __future__ import annotations

from doctest import DocTestFinder, DocTestRunner
from importlib import import_module

import pytest

from helpers.planners.exhaustive_chains import ThesisChain, counter_example
from helpers.planners.graphs import chain, towers
from remat_compile.ir.analysis.treewidth import separator_tree, tree_decomposition
from remat_compile.planners.chains.chain import chain_of_program
from remat_compile.planners.chains.recurrences.persistent import Persistent
from remat_compile.planners.chains.stages import save_all
from remat_compile.planners.instance import Instance
from remat_compile.planners.programs.events import all_events, useful_pairs
from remat_compile.planners.solvers import MilpSolver

EQUAL = ThesisChain(
    [1, 1, 1, 0], [0, 3, 3, 0], [1, 1, 1, 0], [10, 10, 0], [20, 20, 0], [0] * 3, [0] * 3
)
"""Two stages and the loss: values of 1 byte, 3 saved, 10 ns forward and 20 ns backward."""

GIVEN = {
    "step": Instance.of(chain(4), "activation"),
    "three_towers": Instance.of(towers((2, 4, 5)), "activation"),
    "stages": EQUAL.stages(),
    "figure_2_3": counter_example(6).stages(),
    "MilpSolver": MilpSolver,
    "Persistent": Persistent,
    "all_events": all_events,
    "chain_of_program": chain_of_program,
    "save_all": save_all,
    "separator_tree": separator_tree,
    "tree_decomposition": tree_decomposition,
    "useful_pairs": useful_pairs,
}


@pytest.mark.parametrize(
    "module",
    [
        "bounds.moments",
        "chains.chain",
        "chains.choices",
        "chains.recurrences.floating",
        "chains.recurrences.homogeneous",
        "chains.recurrences.persistent",
        "chains.stages",
        "chains.towers",
        "eviction.keep",
        "eviction.segments",
        "eviction.separator_order",
        "offmate.blocks.instance",
        "offmate.blocks.rounding",
        "pipeline.layers",
        "pipeline.pattern",
        "programs.checkmate_rows",
        "programs.compact",
        "programs.events",
        "programs.rk_checkmate_rows",
    ],
)
def test_worked_examples(module: str) -> None:
    loaded = import_module(f"remat_compile.planners.{module}")
    runner = DocTestRunner(verbose=False)
    for example in DocTestFinder(recurse=False).find(loaded, extraglobs=GIVEN):
        report: list[str] = []
        runner.run(example, out=report.append)
        assert not runner.failures, "".join(report)
    assert runner.tries > 0
