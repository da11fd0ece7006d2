"""Warnings about exports that change training."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...ir.diagnostics import Diagnostic, listed
from .exporter.record import FX_NODE, TrainingRecord
from .file.constants import NodeWeights
from .file.convert import metadata, name_of, scopes_of
from .file.load import all_nodes
from .file.repair import Repair
from .weights import Role, uses_of

_ADVICE = "export with remat_compile.capture.onnx.export_trainable, or with optimize=False"


def warnings_of(
    model: Any,
    roles: Mapping[str, Role],
    mended: Repair | None,
    batch_norms: Mapping[str, bool],
    train_bn: bool,
    *,
    inner: NodeWeights,
    training: TrainingRecord | None,
) -> tuple[Diagnostic, ...]:
    """FB0650 to FB0657, FB0630 and FB0631; each names what it is about."""
    diagnostics = [
        *_about_repair(mended),
        _renamed(roles),
        _shared(model, roles, mended),
        _batch_norm(batch_norms, train_bn),
        _lost_dropout(model),
        _in_nodes(inner),
        _not_recorded(model, roles, training),
    ]
    return tuple(warning for warning in diagnostics if warning is not None)


def _names(names: Sequence[str], limit: int = 8) -> str:
    return listed([f'"{name}"' for name in names], limit)


def _told(code: str, names: Sequence[str], what: str) -> Diagnostic | None:
    message = f"{len(names)} {what}: {_names(names)}"
    return Diagnostic(code, message, hint=_ADVICE) if names else None


def _about_repair(mended: Repair | None) -> Iterator[Diagnostic | None]:
    if mended is None:
        return
    of_original = "parameters of the original model"
    folded = f"{of_original} were folded away by the exporter and cannot be trained"
    yield _told("FB0650", mended.missing, folded)
    absent = f"{of_original} are not in the file; each was folded away, or is tied to another"
    yield _told("FB0657", mended.absent, absent)
    restored = "parameters that the exporter merged, dropped or transposed were restored"
    yield _told("FB0651", mended.restored, restored)


def _renamed(roles: Mapping[str, Role]) -> Diagnostic | None:
    """Trained values whose name an optimiser made up."""
    made_up = re.compile(r"val_\d+|onnx::\w+|[\w/]*_(transposed|folded|fused)\w*|\d+")
    names = [n for n, r in roles.items() if r is Role.TRAINED and made_up.fullmatch(n)]
    what = (
        "trained weights have names that an optimiser made up; they may be transposed, or products "
        "of several original parameters"
    )
    return _told("FB0652", names, what)


def _shared(model: Any, roles: Mapping[str, Role], mended: Repair | None) -> Diagnostic | None:
    """Scales and biases that several nodes read: models tie matrices, hardly ever vectors."""
    if mended is not None:
        return None  # the exporter's record says what is tied
    uses = uses_of(model.graph)
    dims = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    names = [
        name
        for name, role in roles.items()
        if role is Role.TRAINED and dims[name] == 1 and len(uses.get(name, [])) > 1
    ]
    what = (
        "vectors are read by several nodes and are trained as one parameter each; an optimiser may "
        "have merged equal ones"
    )
    return _told("FB0653", names, what)


def _batch_norm(batch_norms: Mapping[str, bool], train_bn: bool) -> Diagnostic | None:
    if train_bn and not batch_norms:
        message = "--train-bn was given, but the model has no BatchNormalization"
        return Diagnostic("FB0655", message, hint="the exporter may have folded it; " + _ADVICE)
    fixed = [name for name, training in batch_norms.items() if not training]
    if not fixed:
        return None
    message = (
        f"{len(fixed)} BatchNormalization nodes run with fixed statistics, as exported: "
        f"{_names(fixed, 3)}"
    )
    return Diagnostic("FB0654", message, hint="--train-bn uses and updates batch statistics")


def _lost_dropout(model: Any) -> Diagnostic | None:
    """PyTorch attention calls with dropout of which the exporter wrote no `Dropout`."""
    nodes = list(all_nodes(model.graph))
    scopes = [_scope(node) for node in nodes if node.op_type == "Dropout"]
    lost: dict[tuple[str, ...], str] = {}
    for node in nodes:
        text = metadata(node, FX_NODE) or ""
        match = re.search(
            r"scaled_dot_product_attention\.default\]\(args = \((.*?)\), kwargs = (.*)\)", text
        )
        if match is None or _scope(node) in scopes:
            continue
        args = [arg.strip() for arg in match.group(1).split(",")]
        if (len(args) > 4 and _is_positive(args[4])) or "dropout_p: 0." in match.group(2):
            lost.setdefault(_scope(node), name_of(node))
    if not lost:
        return None
    message = (
        f"the exporter left out the dropout inside attention: {_names(list(lost.values()), 3)}"
    )
    return Diagnostic("FB0656", message, hint="export attention written out, with nn.Dropout")


def _in_nodes(inner: NodeWeights) -> Diagnostic | None:
    """Weights that are written as `Constant` or `ConstantOfShape` nodes."""
    trained = [name for name, role in inner.roles.items() if role is Role.TRAINED]
    parts = []
    if trained:
        parts.append(f"{len(trained)} are read as weights and trained: {_names(trained)}")
    if inner.doubtful:
        count = len(inner.doubtful)
        parts.append(f"{count} may be weights and are not trained: {_names(inner.doubtful)}")
    if not parts:
        return None
    message = "of the tensors in Constant and ConstantOfShape nodes, " + "; ".join(parts)
    return Diagnostic("FB0630", message, hint="trainable= (--trainable) names what is trained")


def _not_recorded(
    model: Any, roles: Mapping[str, Role], training: TrainingRecord | None
) -> Diagnostic | None:
    """Warn of what a file without the record of `export_trainable` cannot say about training."""
    if training is not None and training.cuts:
        return None
    unknown = ["where gradients are cut (detach, no_grad)"]
    if training is None:
        unknown.append("which parameters are frozen")
        tables = [
            node.input[0]
            for node in all_nodes(model.graph)
            if node.op_type == "Gather"
            and roles.get(node.input[0]) is Role.TRAINED
            and metadata(node, FX_NODE) is None
        ]
        if tables:
            unknown.append(f"which rows of {_names(sorted(set(tables)))} are padding")
    message = f"the file does not record {', '.join(unknown)}: everything is trained"
    hint = "export with remat_compile.capture.onnx.export_trainable, or name what is: trainable="
    return Diagnostic("FB0631", message, hint=hint)


def _scope(node: Any) -> tuple[str, ...]:
    text = metadata(node, "pkg.torch.onnx.name_scopes")
    return tuple(scopes_of(text)) if text else ()


def _is_positive(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False
