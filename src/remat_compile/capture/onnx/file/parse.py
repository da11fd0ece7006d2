"""The protobuf message in an ONNX file. Needs no PyTorch, so that a broken file is told at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from ....ir.diagnostics import Diagnostic, FBError


def parse(file: Path) -> tuple[bytes, Any]:
    """The bytes of the file and its `ModelProto`. Raises FB0601 to FB0603."""
    data = _bytes_of(file)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf raises its own DecodeError, not exported by onnx
        raise _broken(file, reason_of(error)) from None
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise _broken(file, "it holds no graph")
    return data, model


def reason_of(error: Exception) -> str:
    """The first line of what an exception says; its kind where that says nothing by itself."""
    lines = str(error).strip().splitlines() or [""]
    plain = isinstance(error, RuntimeError | ValueError | TypeError | IndexError) and lines[0]
    return lines[0] if plain else f"{type(error).__name__} {lines[0]}".strip()


def _bytes_of(file: Path) -> bytes:
    try:
        data = file.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise FBError(Diagnostic("FB0601", f'cannot read "{file}": {reason}')) from error
    if not data:
        raise FBError(Diagnostic("FB0602", f'"{file}" is empty'))
    return data


def _broken(file: Path, reason: str) -> FBError:
    message = f'"{file}" is not an ONNX model, or is cut short: {reason}'
    return FBError(Diagnostic("FB0603", message, hint="export or copy the file again"))
