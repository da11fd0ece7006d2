"""The stored tests of ONNX releases: a model with inputs and outputs each, and what becomes of it.

A release is a wheel of the package `onnx` (read as a zip file, never installed), or the installed
package itself.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

from remat_compile.capture.onnx.builder import ModuleBuilder
from remat_compile.capture.onnx.file.load import read
from remat_compile.capture.onnx.inputs import declared_inputs
from remat_compile.capture.onnx.weights import Role
from remat_compile.ir.diagnostics import FBError

FLOATS = (1, 10, 11, 16)
DRAWN = re.compile("bernoulli|training_dropout|train|batchnorm_.*training")
"""Tests whose numbers depend on a random generator: only shapes and types are compared."""
SIZES = ("depth", "roi", "scales")
"""Float inputs that say how large a result is: known when the module is built."""
FIXED = ("mean", "var", "w", "weight")
"""Statistics and class weights, with respect to which PyTorch has no gradient."""
FLAT = ("Binarizer", "Hardmax")
"""Operators whose float result has no gradient."""
KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted")
_FILE = re.compile(rf"onnx/backend/test/data/({'|'.join(KINDS)})/(test_[^/]+)/(.+)")


class Ending(Enum):
    """What became of a case."""

    PASSED = "passed"
    REFUSED = "refused"
    WRONG = "wrong"
    CRASHED = "crashed"


@dataclass(frozen=True)
class Outcome:
    """An ending, with the code and message or the difference."""

    ending: Ending
    code: str = ""
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Case:
    """One stored test. `sets` gives its pairs of input and output protos."""

    name: str
    model: bytes
    digest: str
    sets: Callable[[], list[tuple[list[bytes], list[bytes]]]]

    @property
    def is_float(self) -> bool:
        """Whether it has a floating-point input and output: what training passes through."""
        graph = onnx.ModelProto.FromString(self.model).graph
        stored = {tensor.name for tensor in graph.initializer}
        given = [v for v in graph.input if v.name not in stored]
        return any(map(_is_float, given)) and any(map(_is_float, graph.output))


def _is_float(value: Any) -> bool:
    kind = value.type.WhichOneof("value")
    return kind == "tensor_type" and value.type.tensor_type.elem_type in FLOATS


def of_wheel(path: Path) -> Iterator[Case]:
    """The cases in a wheel; those of operators written out as functions are left out."""
    archive = zipfile.ZipFile(path)
    by_case: dict[str, dict[str, str]] = defaultdict(dict)
    for entry in archive.namelist():
        match = _FILE.fullmatch(entry)
        if match and "_expanded" not in match[2]:
            by_case[f"{match[1]}/{match[2]}"][match[3]] = entry
    yield from _cases(by_case, archive.read)


def of_folder(data: Path) -> Iterator[Case]:
    """The cases in an unpacked data folder."""
    by_case: dict[str, dict[str, str]] = defaultdict(dict)
    for file in sorted(data.rglob("*.*")):
        match = _FILE.fullmatch("onnx/backend/test/data/" + file.relative_to(data).as_posix())
        if match and "_expanded" not in match[2]:
            by_case[f"{match[1]}/{match[2]}"][match[3]] = str(file)
    yield from _cases(by_case, lambda place: Path(place).read_bytes())


def _cases(by_case: dict[str, dict[str, str]], content: Callable[[str], bytes]) -> Iterator[Case]:
    for name, files in sorted(by_case.items()):
        if "model.onnx" not in files:
            continue
        model = content(files["model.onnx"])
        data = {n: content(e) for n, e in sorted(files.items()) if n.endswith(".pb")}
        digest = hashlib.sha256(model)
        for part in data.values():
            digest.update(part)
        yield Case(name, model, digest.hexdigest(), partial(_sets, data))


def _sets(data: dict[str, bytes]) -> list[tuple[list[bytes], list[bytes]]]:
    folders = sorted({name.rpartition("/")[0] for name in data})

    def column(folder: str, what: str) -> list[bytes]:
        names = [n for n in data if n.startswith(f"{folder}/{what}_")]
        return [data[n] for n in sorted(names, key=lambda n: int(re.findall(r"\d+", n)[-1]))]

    return [(column(folder, "input"), column(folder, "output")) for folder in folders]


def of_installed_nodes() -> Iterator[Case]:
    """The node tests that the installed package makes."""
    for test in load_model_tests(kind="node"):
        if "_expanded" in test.name or not all(_are_tensors(pair) for pair in test.data_sets):
            continue
        sets = [([_proto(i) for i in a], [_proto(o) for o in b]) for a, b in test.data_sets]
        model = test.model.SerializeToString()
        digest = hashlib.sha256(model + b"".join(p for pair in sets for s in pair for p in s))
        yield Case(f"node/{test.name}", model, digest.hexdigest(), partial(list, sets))


def of_installed() -> Iterator[Case]:
    """The node tests that the installed package makes, and those that it stores."""
    yield from of_installed_nodes()
    yield from of_folder(Path(onnx.__file__).parent / "backend" / "test" / "data")


def _are_tensors(pair: Any) -> bool:
    return all(
        isinstance(item, onnx.TensorProto | np.ndarray | np.generic) for s in pair for item in s
    )


def _proto(item: Any) -> bytes:
    tensor = (
        item if isinstance(item, onnx.TensorProto) else numpy_helper.from_array(np.asarray(item))
    )
    return bytes(tensor.SerializeToString())


def run(case: Case, *, trained: bool = False) -> Outcome:
    """Read, build and run a case, and compare every output.

    Float inputs with dimensions are fed, with a gradient that must reach a result where they are
    `trained`; everything else is known when the module is built, as
    sizes are in a training step.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "m.onnx").write_bytes(case.model)
            for inputs, outputs in case.sets():
                difference = _compared(case, Path(folder) / "m.onnx", inputs, outputs, trained)
                if difference:
                    return Outcome(Ending.WRONG, "", difference)
    except FBError as error:
        first = error.diagnostics[0]
        return Outcome(Ending.REFUSED, first.code, re.sub(r'"[^"]*m\.onnx"', "it", first.message))
    except Exception as error:
        return Outcome(Ending.CRASHED, "", f"{type(error).__name__}: {error}"[:200])
    return Outcome(Ending.PASSED)


def _compared(
    case: Case, file: Path, inputs: Sequence[bytes], outputs: Sequence[bytes], trained: bool
) -> str:
    source = read(file)
    declared = declared_inputs(source.model.graph)
    builder = ModuleBuilder(source.opset, file.parent, train_bn=False, opsets=source.opsets)
    feeds = []
    for item, content in zip(declared, inputs, strict=True):
        proto = onnx.TensorProto.FromString(content)
        if item.dtype == torch.bfloat16:  # older releases store the bits as uint16
            proto.data_type = onnx.TensorProto.BFLOAT16
        proto.name = item.name
        if item.dtype.is_floating_point and proto.dims and item.name not in SIZES:
            is_trained = trained and item.name not in FIXED
            feeds.append(tensor_of(numpy_helper.to_array(proto)).requires_grad_(is_trained))
            builder.add_input(item.name, feeds[-1])
        else:
            builder.add_initialiser(proto, Role.CONSTANT)
    for tensor in source.model.graph.initializer:
        builder.add_initialiser(tensor, Role.CONSTANT)
    names = tuple(value.name for value in source.model.graph.output)
    builder.run(source.model.graph, set(names))
    fed = {item.name for item in declared} & set(builder.keys.values())
    order = tuple(item.name for item in declared if item.name in fed)
    result = builder.finish(order, names)(*feeds)
    results = list(result) if isinstance(result, tuple) else [result]
    flows = source.model.graph.node[-1].op_type in FLAT or any(t.requires_grad for t in results)
    if any(feed.requires_grad and feed.numel() for feed in feeds) and not flows:
        return "no gradient"
    for tensor, content in zip(results, outputs, strict=True):
        difference = _difference(case.name, tensor.detach(), onnx.TensorProto.FromString(content))
        if difference:
            return difference
    return ""


def _difference(name: str, got: torch.Tensor, proto: Any) -> str:
    if got.dtype == torch.bfloat16:
        proto.data_type = onnx.TensorProto.BFLOAT16
    wanted = np.asarray(numpy_helper.to_array(proto))
    if tuple(got.shape) != wanted.shape:
        return f"shape {tuple(got.shape)} instead of {wanted.shape}"
    small = wanted.dtype.itemsize < 4
    if got.dtype == torch.bfloat16:
        got, wanted = got.float(), wanted.astype(np.float32)
    if got.numpy().dtype != wanted.dtype:
        return f"type {got.dtype} instead of {wanted.dtype}"
    if DRAWN.search(name):
        return ""
    rtol, atol = (2e-2, 4e-3) if small else (1e-3, 1e-6)
    try:
        np.testing.assert_allclose(got.numpy(), wanted, rtol=rtol, atol=atol)
    except AssertionError as error:
        return " ".join(str(error).split())[:160]
    return ""


def tensor_of(array: Any) -> torch.Tensor:
    """An array as a tensor of its own storage, bfloat16 included."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array, copy=True))
