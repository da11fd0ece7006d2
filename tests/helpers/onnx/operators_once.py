"""PyTorch's ONNX exporter with its table of operators made once: it parses the source of 500
functions anew for each export, which is more than half of what a small model takes."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

import pytest


@contextmanager
def operators_read_once() -> Iterator[None]:
    """Inside, all exports have the same table; without PyTorch, nothing."""
    if "torch" not in sys.modules:
        yield
        return
    import torch

    export = torch.onnx.export
    with pytest.MonkeyPatch.context() as patch:
        share = cache(lambda: _share_tables(patch))

        def export_with_table(*args: Any, **kwargs: Any) -> Any:
            share()  # the exporter is loaded by the first export: that takes seconds too
            return export(*args, **kwargs)

        patch.setattr(torch.onnx, "export", export_with_table)
        yield


def _share_tables(patch: pytest.MonkeyPatch) -> None:
    with suppress(ImportError, AttributeError):  # a release that keeps it elsewhere is slower
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        made = cache(ONNXRegistry.from_torchlib)

        def from_torchlib(_: type[ONNXRegistry], *args: Any, **kwargs: Any) -> ONNXRegistry:
            """A table of its own, of the same entries: callers may add theirs."""
            table = copy.copy(made(*args, **kwargs))
            table.functions = {name: [*metas] for name, metas in table.functions.items()}
            return table

        patch.setattr(ONNXRegistry, "from_torchlib", classmethod(from_torchlib))
