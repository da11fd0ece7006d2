"""Captures leave the garbage collector's full collections out, and put them back."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from helpers.models import MODELS
from remat_compile import FBError
from remat_compile.frontends.torch_export import export, lower


@pytest.fixture(autouse=True)
def _thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 2, 2)
    yield
    gc.set_threshold(*before)


def test_a_trace_starts_no_full_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    model, args, kwargs = MODELS["mlp"](torch.float32)
    inner = torch.export.export
    full = []

    def traced(*given: Any, **named: Any) -> Any:
        gc.callbacks.append(count)
        try:
            return inner(*given, **named)
        finally:
            gc.callbacks.remove(count)

    def count(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            full.append(info["generation"] == 2)

    monkeypatch.setattr(torch.export, "export", traced)
    with lower(export(model, args, kwargs)):
        pass
    assert full
    assert not any(full)
    assert gc.get_threshold() == (700, 2, 2)


def test_thresholds_are_put_back_behind_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    model, args, kwargs = MODELS["mlp"](torch.float32)

    def refused(*_: Any, **__: Any) -> Any:
        raise RuntimeError

    monkeypatch.setattr(torch.export, "export", refused)
    with pytest.raises(FBError):
        export(model, args, kwargs)
    assert gc.get_threshold() == (700, 2, 2)
