"""ONNX file to module: the one entry point."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...ir.diagnostics import Diagnostic, FBError
from .builder import Builder
from .inputs import bind_dims, declared_inputs, read_sample, sample_inputs
from .load import all_nodes, read
from .repair import repair
from .warn import warnings_of
from .weights import Role, classify, torch_record

__all__ = ["OnnxModel", "build_module"]


@dataclass(frozen=True, slots=True, eq=False)
class OnnxModel:
    """What an ONNX file became. `module(*args)` gives the outputs (a tuple if several).

    `sha256` is of the model file; external weights are not part of it.
    """

    module: nn.Module
    args: tuple[Tensor, ...]
    warnings: tuple[Diagnostic, ...]
    sha256: str
    name: str
    arg_names: tuple[str, ...]
    output_names: tuple[str, ...]
    dims: Mapping[str, int]


def build_module(
    path: str | os.PathLike[str],
    *,
    dims: Mapping[str, str | int] | None = None,
    sample: str | os.PathLike[str] | None = None,
    train_bn: bool = False,
    trainable: Sequence[str] | None = None,
) -> OnnxModel:
    """Read an ONNX file as a trainable module.

    `dims` gives sizes to dynamic dimensions; `sample` is an `.npz` with one array per input
    (else inputs are made from the declared types); `train_bn` makes every BatchNormalization
    use and update batch statistics; `trainable` are patterns (`*`, `?`) of the initialisers
    to train, where the rule of `weights` does not suit. Raises `FBError` (FB06xx).
    """
    source = read(path)
    inputs = declared_inputs(source.model.graph)
    arrays = None if sample is None else read_sample(sample)
    bound = bind_dims(inputs, dims or {}, arrays or {})
    args = sample_inputs(inputs, bound, arrays)
    record = torch_record(source.model)
    base = source.path.parent
    mended = repair(source.model, record, base) if record is not None else None
    gone = [] if mended is None else [*mended.missing, *mended.absent]
    roles = classify(source.model, record, trainable, gone)
    builder = Builder(source.opset, base, train_bn)
    names = tuple(item.name for item in inputs)
    outputs = tuple(value.name for value in source.model.graph.output)
    for name, value in zip(names, args, strict=True):
        builder.add_input(name, value)
    _add_initialisers(builder, source.model.graph, roles)
    with torch.enable_grad():
        builder.run(source.model.graph, set(outputs))
    module = builder.finish(names, outputs)
    _check_trains(os.fspath(path), builder, outputs)
    warnings = warnings_of(source.model, roles, mended, builder.batch_norms, train_bn)
    return OnnxModel(
        module=module,
        args=args,
        warnings=warnings,
        sha256=source.sha256,
        name=source.path.name,
        arg_names=names,
        output_names=outputs,
        dims=bound,
    )


def _add_initialisers(builder: Builder, graph: Any, roles: Mapping[str, Role]) -> None:
    """Enter those that are read, freeing each from the file's copy once it is converted."""
    used = {name for node in all_nodes(graph) for name in node.input}
    used |= {value.name for value in graph.output}
    for tensor in graph.initializer:
        if tensor.name in used:
            builder.add_initialiser(tensor, roles[tensor.name])
            tensor.ClearField("raw_data")


def _check_trains(path: str, builder: Builder, outputs: tuple[str, ...]) -> None:
    hint = "export the model with its parameters kept (docs/onnx.md), or name them: trainable="
    if not builder.parameters:
        raise FBError(Diagnostic("FB0611", f'"{path}" has no trainable parameter', hint=hint))
    results = [builder.values[name] for name in outputs]
    if not any(isinstance(value, Tensor) and value.requires_grad for value in results):
        message = f'no output of "{path}" depends on a trainable parameter in a differentiable way'
        raise FBError(Diagnostic("FB0616", message))
