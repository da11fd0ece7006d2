"""The folder in which plans are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from remat_compile.plans.files.store import VARIABLE


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "plans"))
    return tmp_path / "plans"
