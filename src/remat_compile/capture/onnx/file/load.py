"""Read an ONNX file, with every way it can be broken turned into one diagnostic."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx.checker
import onnx.defs
import onnx.helper
import onnx.inliner
import onnx.version_converter
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_tensor

from ....ir.diagnostics import Diagnostic, FBError
from ..call import MICROSOFT, ML
from ..table import lowering_of, own_operators
from .machine_learning import SPREAD, spread_machine_learning
from .parse import parse, reason_of
from .sparse import spread_sparse

OLDEST_OPSET = 1

_BROADCASTING = 7
"""The first opset with today's broadcasting; older files are converted to it."""

_CONTROL = frozenset({"If", "Loop", "Scan"})
"""Operators that the builder handles itself."""


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """A checked model in which every operator has a lowering."""

    path: Path
    sha256: str
    model: Any
    opset: int
    opsets: Mapping[str, int]
    """The version of every other domain."""


def read(path: str | os.PathLike[str]) -> CheckedModel:
    """Read, check and inline. Raises FB0601 to FB0607; weights stay on disk."""
    file = Path(path)
    data, model = parse(file)
    opset = _check_opset(file, model)
    _check_external(file, model)
    _check_operators(file, model, opset)
    try:
        onnx.checker.check_model(str(file))
    except Exception as error:
        reason = reason_of(error)
        raise FBError(Diagnostic("FB0606", f'"{file}" is not a valid model: {reason}')) from None
    model = _converted(file, model, opset) if opset < _BROADCASTING else model
    opset = max(opset, _BROADCASTING)
    model = _inline(model)
    _check_operators(file, model, opset)
    spread_machine_learning(model)
    spread_sparse(model)
    others = {o.domain: int(o.version) for o in model.opset_import if o.domain}
    return CheckedModel(file, hashlib.sha256(data).hexdigest(), model, opset, others)


def _converted(file: Path, model: Any, opset: int) -> Any:
    """A file from before today's broadcasting, as one of the first opset with it."""
    for tensor in all_tensors(model):
        load_weights(tensor, file.parent)
    try:
        converted = onnx.version_converter.convert_version(model, _BROADCASTING)
    except Exception as error:  # the converter is C++ and says RuntimeError, or worse
        reason = reason_of(error)
        message = f'"{file}" uses opset {opset}, which cannot be converted: {reason}'
        hint = "export it with a newer opset_version"
        raise FBError(Diagnostic("FB0604", message, hint=hint)) from None
    for node in all_nodes(converted.graph):
        if node.op_type == "PRelu":  # the converter leaves the slopes of channels as they were
            node.attribute.append(onnx.helper.make_attribute("per_channel", 1))
    return converted


def _check_opset(file: Path, model: Any) -> int:
    versions = [int(o.version) for o in model.opset_import if o.domain in ("", "ai.onnx")]
    newest = int(onnx.defs.onnx_opset_version())
    if not versions and model.opset_import and all(node.domain for node in model.graph.node):
        return newest  # nothing of ONNX's own in it
    if not versions:
        raise FBError(Diagnostic("FB0604", f'"{file}" names no ONNX opset'))
    version = max(versions)
    if OLDEST_OPSET <= version <= newest:
        return version
    hint = (
        "install a newer onnx, or export with an older opset_version"
        if version > newest
        else "convert it with onnx.version_converter"
    )
    message = f'"{file}" uses opset {version}; opsets {OLDEST_OPSET} to {newest} are supported'
    raise FBError(Diagnostic("FB0604", message, hint=hint))


def all_nodes(graph: Any) -> Iterator[Any]:
    """The nodes of a graph and of the graphs inside them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from all_nodes(attribute.g)


def _check_external(file: Path, model: Any) -> None:
    base = file.resolve().parent
    external = (t for t in all_tensors(model) if t.data_location == onnx.TensorProto.EXTERNAL)
    problems = [(t.name, reason) for t in external if (reason := _why_not_read(base, t))]
    if not problems:
        return
    name, reason = problems[0]
    others = f" ({len(problems) - 1} other tensors likewise)" if len(problems) > 1 else ""
    message = f'external weights of "{name}": {reason}{others}'
    raise FBError(Diagnostic("FB0605", message, hint="copy the weights next to the model file"))


def _why_not_read(base: Path, tensor: Any) -> str | None:
    """Return the fault in the place of an external tensor, or None."""
    try:
        info = ExternalDataInfo(tensor)
        target = (base / info.location).resolve()
    except (ValueError, OSError, RuntimeError) as error:  # no number, no name, a link to itself
        return f"its place cannot be read: {error}"
    if Path(info.location).is_absolute() or not target.is_relative_to(base):
        return f'"{info.location}" lies outside the model\'s folder'
    if not target.is_file():
        return f'"{info.location}" does not exist'
    start, length = info.offset or 0, info.length or 0
    if start < 0 or length < 0:
        return f'"{info.location}" is to be read from byte {start}, {length} bytes'
    return f'"{info.location}" is too short' if start + length > target.stat().st_size else None


def all_tensors(model: Any) -> Iterator[Any]:
    """Every stored tensor: initialisers and attributes, of subgraphs and functions too."""
    yield from _tensors_of_graph(model.graph)
    for function in model.functions:
        yield from _tensors_of_nodes(function.node)


def external_files(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """The files in which a model keeps weights; none where it cannot be read as a model."""
    file, model = Path(path), onnx.ModelProto()
    try:
        model.ParseFromString(file.read_bytes())
        external = [t for t in all_tensors(model) if t.data_location == onnx.TensorProto.EXTERNAL]
        places = dict.fromkeys(ExternalDataInfo(tensor).location for tensor in external)
    except Exception:  # protobuf raises its own DecodeError, not exported by onnx
        return ()
    return tuple(file.parent / place for place in places if "\0" not in place)


def _tensors_of_graph(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _tensors_of_nodes(graph.node)


def _tensors_of_nodes(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        for attribute in node.attribute:
            yield from attribute.tensors
            if attribute.HasField("t"):
                yield attribute.t
            sparse = [*attribute.sparse_tensors]
            sparse += [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
            for one in sparse:
                yield from (one.values, one.indices)
            for graph in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
                yield from _tensors_of_graph(graph)


def load_weights(tensor: Any, base: Path) -> None:
    """Read an external tensor into memory, in place (paths were checked by `read`)."""
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        load_external_data_for_tensor(tensor, str(base.resolve()))


def _expandable(node: Any, versions: Mapping[str, int]) -> bool:
    """Return whether ONNX itself defines the operator by others."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    if domain not in versions or not onnx.defs.has(node.op_type, domain):
        return False
    try:
        schema = onnx.defs.get_schema(node.op_type, versions[domain], domain)
    except Exception:  # no version of the operator is that old
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


def _check_operators(file: Path, model: Any, opset: int) -> None:
    local = {(f.domain, f.name) for f in model.functions}
    unsupported: dict[tuple[str, str], list[Any]] = {}
    versions = {o.domain: int(o.version) for o in model.opset_import} | {"": opset}
    for node in all_nodes(model.graph):
        key = (node.domain, node.op_type)
        known = lowering_of(*key) or key in local or node.op_type in _CONTROL
        known = known or (node.domain == ML and node.op_type in SPREAD)
        if not known and not _expandable(node, versions):
            unsupported.setdefault(key, []).append(node)
    if not unsupported:
        return
    lines = []
    for (domain, op), nodes in sorted(unsupported.items()):
        name = f"{domain}.{op}" if domain else op
        first = nodes[0].name or (nodes[0].output[0] if nodes[0].output else "?")
        more = f" and {len(nodes) - 1} other nodes" if len(nodes) > 1 else ""
        lines.append(f'{name} (opset {versions.get(domain, "?")}) at node "{first}"{more}')
    count = f"{len(lines)} operators are" if len(lines) > 1 else "one operator is"
    message = f'"{file}": {count} not supported: ' + "; ".join(lines)
    hint = "docs/reference/onnx.md lists what is supported"
    raise FBError(Diagnostic("FB0607", message, hint=hint))


def _inline(model: Any) -> Any:
    """Expand the model's own functions, and operators that have no lowering of their own."""
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    own = {("", op) for op in (*own_operators(), *_CONTROL)}
    own |= {(domain, op) for domain in (MICROSOFT, ML) for op in own_operators(domain)}
    own |= {(ML, op) for op in SPREAD}
    used = {("" if n.domain == "ai.onnx" else n.domain, n.op_type) for n in all_nodes(model.graph)}
    if used <= own:
        return model
    try:
        return onnx.inliner.inline_selected_functions(
            model, sorted(own), exclude=True, inline_schema_functions=True
        )
    except RuntimeError as error:
        names = ", ".join(sorted(op for _, op in used - own))
        message = f"operators that ONNX cannot expand here: {names}"
        hint = "docs/reference/onnx.md lists them"
        raise FBError(Diagnostic("FB0607", message, hint=hint)) from error
