"""The example plug-in is installed once, and takes part as any other planner."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from helpers.planners.plugin import install
from remat_compile.planners.solvers import MilpSolver


@pytest.fixture(scope="session")
def drop_largest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """While it holds, `drop-largest` is registered by its entry point."""
    site = str(install(tmp_path_factory.mktemp("plugin")))
    sys.path.insert(0, site)
    yield
    sys.path.remove(site)
    sys.modules.pop("my_planner", None)


@pytest.fixture(scope="session")
def solver() -> Iterator[MilpSolver]:
    with MilpSolver() as running:
        yield running
