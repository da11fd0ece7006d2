"""The device of these tests. They have a process of their own, as `make check` runs them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from helpers.accelerator import Accelerator, TooLateError, accelerator, missing_tools


@pytest.fixture
def queued() -> Iterator[Accelerator]:
    why = missing_tools()
    if why is not None:
        pytest.skip(why)
    try:
        made = accelerator()
    except TooLateError:
        pytest.skip("other tests ran backward before: run tests/accelerator alone")
    made.starve()
    yield made
    made.starve()
