"""The roles of initialisers: parameter, running statistic or constant.

The rule, in this order:

1. patterns given by the caller (`trainable=`) decide alone, among floating-point initialisers;
2. mean and variance of a `BatchNormalization` are statistics (buffers);
3. where `torch.onnx.export` recorded it, a PARAMETER is trained, and a BUFFER or constant is not;
   a parameter that `export_trainable` recorded as frozen stays one, without gradient;
4. in a file that records it, an initialiser without record was computed by the exporter from
   others: it is trained only if a node that reads it as a weight (`WEIGHT_INPUTS`) comes from
   a PyTorch call on a parameter that is gone from the file;
5. otherwise a floating-point initialiser is trained, unless it is 0-dimensional, holds an
   infinity or NaN (a mask), or is used only as a setting (`SETTING_INPUTS`).

Integers and booleans are never trained; for `Constant` nodes see `constants`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

from ...ir.diagnostics import Diagnostic, FBError, nearest
from .exporter.record import FX_NODE, TrainingRecord
from .file.convert import metadata
from .file.load import all_nodes

KEPT = "remat_compile.weights_kept"
"""Model metadata written by `export_trainable`: no weight was folded."""

FLOATS = (1, 10, 11, 16)
_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"


def _places(inputs: Mapping[str, Sequence[int]]) -> frozenset[tuple[str, int]]:
    return frozenset((op, position) for op, positions in inputs.items() for position in positions)


SETTING_INPUTS = _places(
    {
        "Clip": (1, 2),
        "Dropout": (1,),
        "NegativeLogLikelihoodLoss": (2,),
        "OneHot": (2,),
        "Pad": (2,),
        "Range": (0, 1, 2),
        "Resize": (1, 2),
        "RoiAlign": (1,),
        "SoftmaxCrossEntropyLoss": (2,),
        "Upsample": (1,),
    }
)
_SCALE_AND_BIAS = ("BatchNormalization", "GroupNormalization", "InstanceNormalization")
WEIGHT_INPUTS = _places(
    {
        **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "LayerNormalization"), (1, 2)),
        **dict.fromkeys(_SCALE_AND_BIAS, (1, 2)),
        **dict.fromkeys(("MatMul", "PRelu", "RMSNormalization"), (1,)),
        "DeformConv": (1, 3),
        "Gather": (0,),
    }
)
STATISTICS = _places({"BatchNormalization": (3, 4)})


class Role(Enum):
    """Role of an initialiser: a parameter with or without gradient, a persistent buffer, or a
    constant."""

    TRAINED = "trained"
    FROZEN = "frozen"
    STATISTIC = "statistic"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class TorchRecord:
    """Record of `torch.onnx.export` about the original module's parameters and buffers."""

    kinds: dict[str, str]
    """ONNX name -> PARAMETER, BUFFER, CONSTANT_TENSOR."""
    parameters: dict[str, str]
    """Name in the exported program (`p_fc_weight`) -> original name (`fc.weight`)."""


def torch_record(model: Any) -> TorchRecord | None:
    """The exporter's record, or None where another tool wrote the file or dropped it."""
    signature = metadata(model.graph, _SIGNATURE)
    if signature is None:
        return None
    lines = re.findall(
        r"^(\S+): (PARAMETER|BUFFER|CONSTANT_TENSOR) target='([^']+)'", signature, re.M
    )
    kinds = {target: kind for _, kind, target in lines}
    for value in (*model.graph.value_info, *model.graph.input):
        kind = metadata(value, _KIND)
        if kind is not None:
            kinds.setdefault(value.name, kind)
    parameters = {short: target for short, kind, target in lines if kind == "PARAMETER"}
    return TorchRecord(kinds, parameters)


def uses_of(graph: Any) -> dict[str, list[tuple[Any, int]]]:
    """Every (node, input position) that reads a name."""
    uses: dict[str, list[tuple[Any, int]]] = {}
    for node in all_nodes(graph):
        for position, name in enumerate(node.input):
            uses.setdefault(name, []).append((node, position))
    return uses


def classify(
    model: Any,
    record: TorchRecord | None,
    patterns: Sequence[str] | None,
    missing: Sequence[str] = (),
    *,
    training: TrainingRecord | None = None,
    others: Sequence[str] = (),
) -> dict[str, Role]:
    """The role of every initialiser; `missing` are parameters that the file lost, `others`
    names that patterns may match besides.

    Raises FB0615 for a pattern that matches none.
    """
    frozen = () if training is None or patterns is not None else training.frozen
    graph = model.graph
    floating = [t for t in graph.initializer if t.data_type in FLOATS]
    if patterns is not None:
        _check_patterns([*(t.name for t in floating), *others], patterns)
    uses = uses_of(graph)
    roles = {tensor.name: Role.CONSTANT for tensor in graph.initializer}
    for tensor in floating:
        readers = uses.get(tensor.name, [])
        places = {(node.op_type, position) for node, position in readers}
        role = _role(tensor, places, record, patterns)
        if role is None:
            role = Role.TRAINED if _replaces(readers, record, missing) else Role.CONSTANT
        is_frozen = role is Role.TRAINED and tensor.name in frozen
        roles[tensor.name] = Role.FROZEN if is_frozen else role
    return roles


def _role(
    tensor: Any,
    places: set[tuple[str, int]],
    record: TorchRecord | None,
    patterns: Sequence[str] | None,
) -> Role | None:
    """The role by the rules other than 4; None where that one decides."""
    if places and places <= STATISTICS:
        return Role.STATISTIC
    if patterns is not None:
        chosen = any(fnmatchcase(tensor.name, pattern) for pattern in patterns)
        return Role.TRAINED if chosen else Role.CONSTANT
    if record is not None:
        kind = record.kinds.get(tensor.name)
        if kind is None:
            return None
        return Role.TRAINED if kind == "PARAMETER" else Role.CONSTANT
    setting = bool(places) and places <= SETTING_INPUTS
    if not tensor.dims or setting or not is_finite(tensor):
        return Role.CONSTANT
    return Role.TRAINED


def _replaces(
    readers: list[tuple[Any, int]], record: TorchRecord | None, missing: Sequence[str]
) -> bool:
    """Return whether a computed initialiser stands where a lost parameter stood (rule 4)."""
    assert record is not None
    for node, position in readers:
        named = re.findall(r"%(p_\w+)", metadata(node, FX_NODE) or "")
        lost = any(record.parameters.get(short) in missing for short in named)
        if lost and (node.op_type, position) in WEIGHT_INPUTS:
            return True
    return False


def is_finite(tensor: Any) -> bool:
    """Return whether a stored tensor holds no infinity or NaN, as masks do; external ones pass."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return True
    array = onnx.numpy_helper.to_array(tensor)
    return bool(np.isfinite(array.astype(np.float64, copy=False)).all())


def _check_patterns(names: list[str], patterns: Sequence[str]) -> None:
    problems = [
        Diagnostic("FB0615", f'no float initialiser is named "{pattern}".{nearest(pattern, names)}')
        for pattern in patterns
        if not any(fnmatchcase(name, pattern) for name in names)
    ]
    if problems:
        raise FBError(problems, usage=True)
