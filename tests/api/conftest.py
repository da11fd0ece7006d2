"""Where plans are kept, and how often a model is captured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remat_compile import api
from remat_compile.driver.plan_cache import VARIABLE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "plans"))
    return tmp_path / "plans"


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Models that were captured."""
    captured: list[object] = []
    inner: Callable[..., Any] = api._source

    def counted(model: object, *rest: Any) -> Any:
        captured.append(model)
        return inner(model, *rest)

    monkeypatch.setattr(api, "_source", counted)
    return captured
