"""The example plug-in is installed once, and takes part as any other planner."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.planners.plugin import install
from remat_compile.planners.solvers import MilpSolver


@pytest.fixture(scope="session")
def site_of_drop_largest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the example plug-in is installed."""
    return install(tmp_path_factory.mktemp("plugin"))


@pytest.fixture(scope="module")
def drop_largest(site_of_drop_largest: Path) -> Iterator[None]:
    """While it holds, `drop-largest` is registered by its entry point."""
    sys.path.insert(0, str(site_of_drop_largest))
    yield
    sys.path.remove(str(site_of_drop_largest))
    sys.modules.pop("my_planner", None)


@pytest.fixture(scope="session")
def solver() -> Iterator[MilpSolver]:
    with MilpSolver() as running:
        yield running
