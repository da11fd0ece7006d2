"""Damaged ONNX files, and what may become of them: a diagnostic, or a module that runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from remat_compile.capture.onnx import build_module
from remat_compile.ir.diagnostics import FBError

LARGE_BYTES = 2**28

_INTERESTING = (0, 1, -1, 2, 7, 255, 2**15, 2**31 - 1, -(2**31), 2**31, 2**62, -(2**63))


def seeds() -> list[Any]:
    """Small models that between them use most kinds of fields."""
    return [
        _perceptron(),
        _convolution(),
        _attention(),
        _sequence(),
        _branches(),
        _vendor(),
        _regions(),
    ]


def _model(
    nodes: list[Any],
    inputs: dict[str, list[Any]],
    weights: dict[str, Any],
    *,
    opset: int = 20,
    domains: tuple[str, ...] = (),
    ints: tuple[str, ...] = (),
) -> Any:
    kinds = {n: TensorProto.INT64 if n in ints else TensorProto.FLOAT for n in inputs}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, kinds[n], d) for n, d in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def _weights(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def _perceptron() -> Any:
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], transB=1, alpha=0.5),
        helper.make_node("Clip", ["h"], ["c"], min=0.0, max=6.0),
        helper.make_node("Dropout", ["c"], ["d"], ratio=0.1),
        helper.make_node("MatMul", ["d", "w2"], ["e"]),
        helper.make_node("Softmax", ["e"], ["y"], axis=1),
    ]
    weights = {"w1": _weights(5, 3), "b1": _weights(5), "w2": _weights(5, 2)}
    return _model(nodes, {"x": [4, 3]}, weights, opset=9)


def _convolution() -> Any:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 1]),
        helper.make_node("BatchNormalization", ["c", "s", "t", "m", "v"], ["n"], epsilon=1e-3),
        helper.make_node("MaxPool", ["n"], ["p"], kernel_shape=[2, 2]),
        helper.make_node("Resize", ["p", "", "scales"], ["r"], mode="linear"),
        helper.make_node("Pad", ["r", "pads"], ["q"], mode="reflect"),
        helper.make_node("ReduceMean", ["q", "axes"], ["a"], keepdims=0),
        helper.make_node("Reshape", ["a", "shape"], ["y"]),
    ]
    weights = {
        "w": _weights(2, 3, 3, 3),
        **{n: _weights(2) for n in "bst"},
        "m": _weights(2),
        "v": np.ones(2, np.float32),
        "scales": np.array([1, 1, 2, 1.5], np.float32),
        "pads": np.array([0, 0, 1, 0, 0, 0, 0, 1]),
        "axes": np.array([2, 3]),
        "shape": np.array([-1, 2]),
    }
    return _model(nodes, {"x": ["n", 3, 6, 6]}, weights)


def _attention() -> Any:
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"]),
        helper.make_node("LayerNormalization", ["e", "g", "h"], ["n"], axis=-1),
        helper.make_node("Transpose", ["n"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["n", "t"], ["s"]),
        helper.make_node("Shape", ["s"], ["k"]),
        helper.make_node(
            "ConstantOfShape", ["k"], ["z"], value=helper.make_tensor("v", 1, [1], [2])
        ),
        helper.make_node("Div", ["s", "z"], ["f"]),
        helper.make_node("Slice", ["f", "from", "to", "along"], ["c"]),
        helper.make_node("Split", ["c"], ["l", "r"], axis=2, num_outputs=2),
        helper.make_node("Concat", ["l", "r"], ["y"], axis=1),
    ]
    weights = {
        "table": _weights(9, 4),
        "g": _weights(4),
        "h": _weights(4),
        "from": np.array([0]),
        "to": np.array([4]),
        "along": np.array([2]),
    }
    return _model(nodes, {"ids": [2, 5]}, weights, ints=("ids",))


def _sequence() -> Any:
    step = helper.make_graph(
        [
            helper.make_node("Identity", ["on"], ["keep"]),
            helper.make_node("MatMul", ["state", "wl"], ["next"]),
            helper.make_node("Identity", ["next"], ["out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, 3]),
        ],
        [
            helper.make_tensor_value_info("keep", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, [2, 3]),
            helper.make_tensor_value_info("out", TensorProto.FLOAT, [2, 3]),
        ],
    )
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["", "h"], hidden_size=3),
        helper.make_node("Squeeze", ["h", "zero"], ["s"]),
        helper.make_node("Loop", ["trips", "", "s"], ["last", "all"], body=step),
        helper.make_node("ReduceSum", ["all"], ["y"]),
    ]
    weights = {
        "w": _weights(1, 12, 4),
        "r": _weights(1, 12, 3),
        "zero": np.array([0]),
        "trips": np.array(3),
        "wl": _weights(3, 3),
    }
    return _model(nodes, {"x": [5, 2, 4]}, weights)


def _branches() -> Any:
    def branch(op: str) -> Any:
        out = helper.make_tensor_value_info("r", TensorProto.FLOAT, [])
        return helper.make_graph([helper.make_node(op, ["a"], ["r"])], op, [], [out])

    nodes = [
        helper.make_node("Einsum", ["x", "w"], ["a"], equation="ij,jk->ik"),
        helper.make_node(
            "If", ["yes"], ["p"], then_branch=branch("Relu"), else_branch=branch("Neg")
        ),
        helper.make_node("TopK", ["p", "two"], ["v", "at"], axis=1),
        helper.make_node("QuantizeLinear", ["q", "scale", "point"], ["i"]),
        helper.make_node("DequantizeLinear", ["i", "scale", "point"], ["f"]),
        helper.make_node("Mul", ["v", "f"], ["y"]),
    ]
    weights = {
        "w": _weights(3, 4),
        "yes": np.array(True),
        "two": np.array([2]),
        "q": _weights(2),
        "scale": np.array(0.5, np.float32),
        "point": np.array(3, np.uint8),
    }
    model = _model(nodes, {"x": [2, 3]}, weights)
    model.metadata_props.add(key="remat_compile.straight_through", value="yes")
    return model


def _vendor() -> Any:
    domain = "com.microsoft"
    nodes = [
        helper.make_node("FusedMatMul", ["x", "w"], ["a"], domain=domain, transB=1, alpha=0.5),
        helper.make_node("SkipLayerNormalization", ["a", "x", "g", "b"], ["n"], domain=domain),
        helper.make_node("Attention", ["n", "qkv", "bias"], ["t"], domain=domain, num_heads=2),
        helper.make_node("BiasGelu", ["t", "b"], ["y"], domain=domain),
    ]
    weights = {
        "w": _weights(4, 4),
        "g": _weights(4),
        "b": _weights(4),
        "qkv": _weights(4, 12),
        "bias": _weights(12),
    }
    return _model(nodes, {"x": [2, 3, 4]}, weights, domains=(domain,))


def _regions() -> Any:
    heads = {"q_num_heads": 2, "kv_num_heads": 1}
    nodes = [
        helper.make_node("DeformConv", ["x", "w", "offset", "b"], ["c"], pads=[1, 1, 0, 0]),
        helper.make_node("RoiAlign", ["c", "rois", "at"], ["r"], output_height=2, output_width=2),
        helper.make_node("Reshape", ["r", "shape"], ["q"]),
        helper.make_node("LinearAttention", ["q", "k", "k", "", "g", "g"], ["a", "s"], **heads),
        helper.make_node("Col2Im", ["a", "image", "block"], ["y"], pads=[0, 1, 0, 0]),
    ]
    weights = {
        "w": _weights(2, 2, 2, 2),
        "offset": _weights(1, 8, 4, 4),
        "b": _weights(2),
        "rois": np.array([[0, 0, 3, 2], [1, 1, 4, 4]], np.float32),
        "at": np.array([0, 0]),
        "shape": np.array([1, 4, 4]),
        "k": _weights(1, 4, 2),
        "g": -np.abs(_weights(1, 4, 1)),
        "image": np.array([2, 3]),
        "block": np.array([2, 1]),
    }
    return _model(nodes, {"x": [1, 2, 4, 4]}, weights, opset=27)


def mutants(seed: int, start: int, count: int) -> Iterator[bytes]:
    """Damaged files number `start` to `start + count`; the same for the same numbers."""
    models = seeds()
    for number in range(start, start + count):
        rng = random.Random(f"{seed}/{number}")
        model = onnx.ModelProto()
        model.CopyFrom(rng.choice(models))
        if rng.random() < 0.3:
            yield _bytes(rng, model.SerializeToString())
            continue
        for _ in range(rng.randint(1, 3)):
            rng.choice(_CHANGES)(rng, model)
        yield model.SerializeToString()


def _bytes(rng: random.Random, data: bytes) -> bytes:
    """Bytes changed, cut out, doubled, or cut off at the end."""
    content = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(content))
        match rng.randrange(4):
            case 0:
                content[at] ^= 1 << rng.randrange(8)
            case 1:
                content[at] = rng.randrange(256)
            case 2:
                del content[at : at + rng.randint(1, 9)]
            case _:
                content[at:at] = content[at : at + rng.randint(1, 9)]
        if not content:
            break
    return bytes(content[: rng.randrange(len(content) + 1)] if rng.random() < 0.1 else content)


def _nodes(model: Any) -> list[Any]:
    inner = [a.g for n in model.graph.node for a in n.attribute if a.HasField("g")]
    return [n for graph in (model.graph, *inner) for n in graph.node]


def _rewire(rng: random.Random, model: Any) -> None:
    nodes = _nodes(model)
    node = rng.choice(nodes)
    names = [n for other in nodes for n in (*other.input, *other.output)] + ["", "nowhere"]
    where = node.input if node.input and rng.random() < 0.7 else node.output
    if where:
        where[rng.randrange(len(where))] = rng.choice(names)


def _operator(rng: random.Random, model: Any) -> None:
    nodes = _nodes(model)
    known = [schema.name for schema in onnx.defs.get_all_schemas()]
    rng.choice(nodes).op_type = rng.choice([rng.choice(nodes).op_type, rng.choice(known)])


def _attribute(rng: random.Random, model: Any) -> None:
    attributes = [a for n in _nodes(model) for a in n.attribute]
    one = rng.choice(attributes)
    match rng.randrange(6):
        case 0:
            one.i = rng.choice(_INTERESTING)
        case 1:
            one.f = rng.choice([0.0, -1.0, float("inf"), float("nan"), 1e30])
        case 2 if one.ints:
            one.ints[rng.randrange(len(one.ints))] = rng.choice(_INTERESTING)
        case 3 if one.ints:
            del one.ints[rng.randrange(len(one.ints))]
        case 4:
            one.s = rng.choice([b"", b"\xff\xfe", b"linear", b"NOTSET", b"SAME_UPPER", b"mul"])
        case _:
            one.type = rng.randrange(15)


def _tensor(rng: random.Random, model: Any) -> None:
    tensors = [*model.graph.initializer]
    tensors += [a.t for n in _nodes(model) for a in n.attribute if a.HasField("t")]
    one = rng.choice(tensors)
    match rng.randrange(5):
        case 0 if one.dims:
            one.dims[rng.randrange(len(one.dims))] = rng.choice(_INTERESTING)
        case 1:
            one.dims.append(rng.choice(_INTERESTING))
        case 2:
            one.data_type = rng.randrange(26)
        case 3 if one.raw_data:
            one.raw_data = bytes(rng.choices(range(256), k=len(one.raw_data)))
        case _:
            one.name = rng.choice(["", "x", "y", "h", rng.choice(tensors).name])


def _integers(rng: random.Random, model: Any) -> None:
    """Values of a tensor that describes a shape."""
    whole = [t for t in model.graph.initializer if t.data_type == TensorProto.INT64]
    if whole:
        one = rng.choice(whole)
        whole_numbers = len(one.raw_data) // 8  # `dims` may have been damaged before
        array = np.frombuffer(one.raw_data[: 8 * whole_numbers], np.int64).copy()
        array = array if array.size else np.zeros(1, np.int64)
        array[rng.randrange(array.size)] = rng.choice(_INTERESTING)
        one.raw_data = array.tobytes()


def _declared(rng: random.Random, model: Any) -> None:
    value = rng.choice([*model.graph.input, *model.graph.output])
    tensor = value.type.tensor_type
    match rng.randrange(4):
        case 0 if tensor.shape.dim:
            rng.choice(tensor.shape.dim).dim_value = rng.choice(_INTERESTING)
        case 1:
            tensor.elem_type = rng.randrange(26)
        case 2:
            tensor.shape.dim.add().dim_value = rng.choice(_INTERESTING)
        case _:
            value.name = rng.choice(["", "w", "y", "other"])


def _versions(rng: random.Random, model: Any) -> None:
    one = rng.choice(model.opset_import)
    match rng.randrange(3):
        case 0:
            one.version = rng.choice([*_INTERESTING, 6, 9, 11, 13, 18])
        case 1:
            one.domain = rng.choice(["", "ai.onnx.ml", "com.microsoft", "\x00"])
        case _:
            model.ir_version = rng.choice(_INTERESTING)


def _drop(rng: random.Random, model: Any) -> None:
    where = rng.choice([model.graph.node, model.graph.initializer, model.graph.input])
    if where:
        del where[rng.randrange(len(where))]


def _repeat(rng: random.Random, model: Any) -> None:
    where = rng.choice([model.graph.node, model.graph.initializer, model.graph.input])
    if where:
        where.append(rng.choice(where))


_CHANGES: tuple[Callable[[random.Random, Any], None], ...] = (
    _rewire,
    _operator,
    _attribute,
    _attribute,
    _tensor,
    _tensor,
    _integers,
    _integers,
    _declared,
    _versions,
    _drop,
    _repeat,
)


def check(data: bytes, folder: Path) -> str:
    """`built`, `large`, or the code of the refusal. Anything else is raised.

    A module is `large`, and not run, where one step of it gives more than `LARGE_BYTES`: a sound
    file may ask for so much.
    """
    file = folder / "m.onnx"
    file.write_bytes(data)
    try:
        ending = _ending(file, {"n": 2})
        return _ending(file, {}) if ending == "FB0609" else ending
    finally:
        assert [p.name for p in folder.iterdir()] == ["m.onnx"], "a file was written"


def _ending(file: Path, dims: dict[str, int]) -> str:
    try:
        built = build_module(file, dims=dims)
    except FBError as error:
        return error.diagnostics[0].code
    with FakeTensorMode(allow_non_fake_inputs=True) as fake, _Largest() as largest:
        built.module(*(fake.from_tensor(value) for value in built.args))
    if largest.size_bytes > LARGE_BYTES:
        return "large"
    built.module(*built.args)
    return "built"


class _Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The bytes of the largest result inside it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.size_bytes = max(self.size_bytes, leaf.nbytes)
        return result
