"""ONNX file to module: the one entry point."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...ir.diagnostics import Diagnostic, FBError
from .builder import ModuleBuilder
from .dims import bind_dims, dims_of
from .exporter.record import STRAIGHT_THROUGH, TrainingRecord, training_record
from .file.constants import NodeWeights, float_results, node_weights
from .file.convert import metadata
from .file.load import all_nodes, read
from .file.parse import reason_of
from .file.repair import repair
from .inputs import declared_inputs, fixed_inputs, read_sample, sample_inputs
from .warn import warnings_of
from .weights import Role, classify, torch_record, uses_of


@dataclass(frozen=True, slots=True, eq=False)
class OnnxModel:
    """The module and the sample made from an ONNX file. `module(*args)` gives the outputs (a tuple
    if several).

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
    inputs: Mapping[str, str | float] | None = None,
    sample: str | os.PathLike[str] | None = None,
    train_bn: bool = False,
    trainable: Sequence[str] | None = None,
    planned: Sequence[Sequence[int]] = (),
) -> OnnxModel:
    """Read an ONNX file as a trainable module.

    `dims` gives sizes to dynamic dimensions; `inputs` fixes inputs to values, so that the module
    does not take them; `sample` is an `.npz` with one array per input (else inputs are made from
    the declared types); `train_bn` makes every BatchNormalization use and update batch statistics;
    `trainable` are patterns (`*`, `?`) of the initialisers to train, where the rule of `weights`
    does not suit; `planned` are the shapes of a plan's arguments. Raises `FBError` (FB06xx).
    """
    try:
        return _built(path, dims or {}, inputs or {}, sample, train_bn, trainable, planned)
    except FBError:
        raise
    except Exception as error:  # whatever a malformed file leads to has a code
        message = f'"{os.fspath(path)}" is malformed: {reason_of(error)}'
        refusal = FBError(Diagnostic("FB0620", message, hint="export or copy the file again"))
    raise refusal


def _built(
    path: str | os.PathLike[str],
    dims: Mapping[str, str | int],
    fixed: Mapping[str, str | float],
    sample: str | os.PathLike[str] | None,
    train_bn: bool,
    trainable: Sequence[str] | None,
    planned: Sequence[Sequence[int]],
) -> OnnxModel:
    source = read(path)
    graph, base = source.model.graph, source.path.parent
    arrays = None if sample is None else read_sample(sample)
    asked = {name: of_one for name, of_one in dims_of(graph).items() if name not in fixed}
    if planned and len(planned) != len(asked):
        message = f"the plan takes {len(planned)} of the file's inputs, and here are {len(asked)}"
        hint = "fix the inputs that were fixed when it was made: --input NAME=VALUE"
        raise FBError(Diagnostic("FB0621", message, hint=hint), usage=True)
    bound = bind_dims(dims_of(graph), dims, arrays, dict(zip(asked, planned, strict=False)))
    graph.initializer.extend(fixed_inputs(graph, fixed, bound))
    inputs = declared_inputs(graph)
    args = sample_inputs(inputs, bound, arrays)
    record, training = torch_record(source.model), training_record(source.model)
    ties = _tie(graph, training)
    mended = repair(source.model, record, base) if record is not None else None
    gone = [] if mended is None else [*mended.missing, *mended.absent]
    _give_own_statistics(graph)
    inner = NodeWeights() if record is not None else node_weights(graph, trainable)
    others = float_results(graph) if trainable is not None else ()
    roles = classify(source.model, record, trainable, gone, training=training, others=others)
    roles |= dict.fromkeys(fixed, Role.CONSTANT)
    builder = ModuleBuilder(
        source.opset,
        base,
        train_bn,
        opsets=source.opsets,
        promoted=inner.roles,
        straight_through=metadata(source.model, STRAIGHT_THROUGH) == "yes",
    )
    names = tuple(item.name for item in inputs)
    outputs = tuple(value.name for value in graph.output)
    for name, value in zip(names, args, strict=True):
        builder.add_input(name, value)
    _add_initialisers(builder, graph, roles)
    for name, stored in ties.items():
        builder.add_tie(name, stored)
    with torch.enable_grad():
        builder.run(graph, set(outputs))
    module = builder.finish(names, outputs)
    _check_trains(os.fspath(path), builder, outputs)
    inner = inner.among(builder.values)
    warnings = warnings_of(
        source.model, roles, mended, builder.batch_norms, train_bn, inner=inner, training=training
    )
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


def _tie(graph: Any, training: TrainingRecord | None) -> dict[str, str]:
    """Let nodes read one copy of each tied parameter; the ties whose parameter is stored."""
    if training is None:
        return {}
    tensors = {tensor.name for tensor in graph.initializer}
    ties = {a: b for a, b in training.ties.items() if b in tensors and a != b}
    for node in all_nodes(graph):
        node.input[:] = [ties.get(name, name) for name in node.input]
    read_names = {name for node in all_nodes(graph) for name in node.input}
    return {a: b for a, b in ties.items() if b in read_names}


def _give_own_statistics(graph: Any) -> None:
    """Exporters store tensors that were equal once; statistics of batches move apart."""
    tensors, uses = {tensor.name: tensor for tensor in graph.initializer}, uses_of(graph)
    same = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "Identity"}
    for node in all_nodes(graph):
        for i in (3, 4) if node.op_type == "BatchNormalization" else ():
            name = node.input[i]
            while name in same:
                name = same[name]
            if name in tensors and (name != node.input[i] or len(uses[name]) > 1):
                own = graph.initializer.add()
                own.CopyFrom(tensors[name])
                own.name = node.input[i] = f"{node.input[i]}_{len(graph.initializer)}"


def _add_initialisers(builder: ModuleBuilder, graph: Any, roles: Mapping[str, Role]) -> None:
    """Enter those that are read, freeing each from the file's copy once it is converted."""
    used = {name for node in all_nodes(graph) for name in node.input}
    used |= {value.name for value in graph.output}
    for tensor in graph.initializer:
        if tensor.name in used:
            builder.add_initialiser(tensor, roles[tensor.name])
            tensor.ClearField("raw_data")


def _check_trains(path: str, builder: ModuleBuilder, outputs: tuple[str, ...]) -> None:
    hint = "export with the parameters kept (docs/reference/onnx.md), or name them: trainable="
    if not builder.parameters:
        raise FBError(Diagnostic("FB0611", f'"{path}" has no trainable parameter', hint=hint))
    results = [builder.values[name] for name in outputs]
    if not any(isinstance(value, Tensor) and value.requires_grad for value in results):
        message = f'no output of "{path}" depends on a trainable parameter in a differentiable way'
        raise FBError(Diagnostic("FB0616", message))
