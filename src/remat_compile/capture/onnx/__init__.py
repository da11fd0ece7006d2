"""ONNX as a training input: an ONNX file becomes an ordinary `torch.nn.Module`.

The module is then lowered like any other PyTorch module. Nothing heavy is imported
before one of the names below is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .build import OnnxModel, build_module
    from .exporter.export import export_trainable

__all__ = ["OnnxModel", "build_module", "export_trainable"]

_HOME = {"OnnxModel": ".build", "build_module": ".build", "export_trainable": ".exporter.export"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name], __name__), name)
