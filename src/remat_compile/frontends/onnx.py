"""ONNX as a training input, under its documented name."""

from ..capture.onnx import build_module, export_trainable

__all__ = ["build_module", "export_trainable"]
