"""What all tests share: golden files, solvers' processes, the ONNX exporter's operators, patience,
and Hypothesis without time limits per example."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from helpers.clock import patient
from helpers.onnx.operators_once import operators_read_once
from helpers.planners.kept_processes import kept_processes

for profile, examples in (("shared-machine", 25), ("breadth", 100)):
    settings.register_profile(
        profile,
        deadline=None,
        max_examples=examples,
        suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
    )
settings.load_profile("shared-machine")  # `make check` has the other

# Of this process and of those that it starts: no test takes a plan that an earlier run has made.
os.environ["REMAT_COMPILE_CACHE"] = "off"
# XLA makes its machine code without optimising it: a fifth less for all tests of JAX. What they
# look at (executions, bytes, values) is decided before that. The slow tests have XLA as it is.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what the tests produce over the golden files instead of comparing",
    )


def pytest_collection_finish() -> None:
    """The collector looks rarely, and never at what the frameworks hold: that took a tenth of the
    time. Graphs of PyTorch and JAX are many small objects that stay."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """What a file of tests leaves behind stays, and is not looked at again: every `gc.collect` of a
    later test, of the package's measurements and of `torch._dynamo.reset` took half a second."""
    done = yield
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()
    return done


@pytest.fixture(scope="session", autouse=True)
def _shared() -> Iterator[None]:
    with kept_processes(), operators_read_once(), patient():
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """`golden(path, text)` asserts that the file holds `text`, or writes it there."""

    def check(path: Path, text: str) -> None:
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        assert path.exists(), f"{path} is missing; run pytest --update-golden"
        assert text == path.read_text(encoding="utf-8")

    return check
