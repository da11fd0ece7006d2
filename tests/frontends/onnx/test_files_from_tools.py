"""Files as converters of other frameworks write them, made small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import remat_compile
from helpers.onnx_files import linear, refusal, write
from helpers.slow import default_only
from remat_compile.capture.onnx import build_module
from remat_compile.capture.torch import check_against_eager, export, lower
from remat_compile.ir.program import Program
from remat_compile.ir.text.printer import format_program

pytestmark = pytest.mark.filterwarnings("ignore")
node = helper.make_node


def random(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def lowered(path: Path, **options: Any) -> Program:
    """The program of a file, checked against its module in eager."""
    built = build_module(path, **options)
    exported = export(built.module, built.args)
    with lower(exported) as result:
        pass
    check_against_eager(exported, result.program, result.values())
    return result.program


# -- places and names --------------------------------------------------------------------


def test_computations_stand_at_the_nodes_of_the_file(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="/encoder/layer.0/MatMul"),
        node("Add", ["h", "b"], ["a"]),
        node("Relu", ["a"], ["y"], name='odd\n"name"'),
    ]
    program = lowered(
        write(tmp_path / "m.onnx", nodes, {"x": [2, 3]}, {"w": random(3, 4), "b": random(4)})
    )
    places = {c.call.op: c.loc for c in program.graph.in_phase("fwd")}
    assert {op: (loc.file, loc.module) for op, loc in places.items() if loc is not None} == {
        "aten.mm.default": ("", "/encoder/layer.0/MatMul (MatMul, opset 20)"),
        "aten.add.Tensor": ("", "a (Add, opset 20)"),
        "aten.relu.default": ("", 'odd_"name" (Relu, opset 20)'),
    }
    assert all(c.loc is not None for c in program.graph.in_phase("bwd"))
    assert "contextlib" not in format_program(program)
    (first, *_) = program.graph.in_phase("fwd")
    assert first.loc is not None
    assert first.loc.modules == ("encoder", "layer", "0", "MatMul")


def test_names_of_keras_are_short_in_the_text(tmp_path: Path) -> None:
    start = "StatefulPartitionedCall/model/block/conv/Conv2D;" * 6
    names = [f"{start}{i}/kernel" for i in range(3)]
    chain = ["x", *(f"{start}{i}/out" for i in range(2)), "y"]
    nodes = [
        node("MatMul", [chain[i], names[i]], [chain[i + 1]], name=f"{start}{i}/MatMul")
        for i in range(3)
    ]
    weights = {name: random(4, 4) for name in names}
    text = format_program(lowered(write(tmp_path / "m.onnx", nodes, {"x": [2, 4]}, weights)))
    graph, binding = text.split("bind {")
    assert max(map(len, graph.split("\n"))) < 250
    for line in binding.split("\n"):
        if "param " in line:
            assert len(line.split('"')[1]) > 250
            assert len(line.split('"')[2]) < 120
    assert all(
        graph.count(f"%{line.split('%')[1].split()[0]} ")
        for line in binding.split("\n")
        if "param " in line
    )


def test_a_part_of_a_model_may_be_called_model(tmp_path: Path) -> None:
    """Anchors of YOLO are constants under `_model.22`; a module of ours had an attribute of that
    name (FB0511)."""
    anchors = helper.make_tensor("t", TensorProto.FLOAT, [1, 2, 16], random(32).tolist())
    nodes = [
        node("Conv", ["x", "w"], ["c"], name="/model.0/Conv"),
        node("Reshape", ["c", "shape"], ["flat"], name="/model.22/Reshape"),
        node("Constant", [], ["/model.22/Constant_output_0"], value=anchors),
        node("Sub", ["/model.22/Constant_output_0", "flat"], ["d"], name="/model.22/Sub"),
        node("Add", ["/model.22/Constant_output_0", "flat"], ["e"], name="/model.22/Add"),
        node("Concat", ["d", "e"], ["y"], axis=1),
    ]
    weights = {"w": random(2, 3, 1, 1), "shape": np.array([1, 2, 16])}
    program = lowered(write(tmp_path / "m.onnx", nodes, {"x": [1, 3, 4, 4]}, weights))
    assert [b.names for b in program.binding.buffers] == [("_model.22_Constant_output_0",)]


def test_a_module_of_pytorch_may_be_called_so_too() -> None:
    class Wrapper(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self._model = torch.nn.Linear(3, 3)
            self._ties, self._results = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
            self._model.register_buffer("anchors", torch.randn(3))

        def forward(self, x: torch.Tensor) -> Any:
            return self._results(self._ties(self._model(x) - self._model.anchors))

    model, x = Wrapper(), torch.randn(2, 3)
    planned = remat_compile.compile(model, (x,), planner="store-all")
    assert torch.equal(planned(x), model(x))


# -- sizes and values of inputs ----------------------------------------------------------


@pytest.mark.parametrize("name", ["?", "", None, -1, "-1"])
def test_dimensions_without_a_usable_name_are_given_by_place(tmp_path: Path, name: Any) -> None:
    file = linear(tmp_path / "m.onnx", batch=name)
    missing = refusal(lambda: build_module(file))
    assert (missing.code, missing.hint) == ("FB0608", 'give --dim "x[0]"=N')
    assert build_module(file, dims={"x[0]": "48"}).args[0].shape == (48, 3)


def test_a_name_that_stands_twice_is_given_for_one_place(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("MatMul", ["h", "z"], ["y"])]
    inputs = {"x": ["N", 3], "z": [4, "N"]}
    file = write(tmp_path / "m.onnx", nodes, inputs, {"w": random(3, 4)})
    hint = refusal(lambda: build_module(file)).hint
    assert hint == 'give --dim N=N; one of several places by itself: --dim "x[0]"=N'
    shapes = [a.shape for a in build_module(file, dims={"N": 5, "z[1]": 2}).args]
    assert shapes == [(5, 3), (4, 2)]
    assert build_module(file, dims={"x[0]": 6, "z[1]": 2}).args[0].shape == (6, 3)
    wrong = refusal(lambda: build_module(file, dims={"N": 5, "x[1]": 2}))
    assert wrong.code == "FB0609"
    assert '"x[1]"' in wrong.message


def test_a_missing_size_is_found_before_pytorch_is_imported(tmp_path: Path) -> None:
    file = linear(tmp_path / "m.onnx", batch="?")
    code = (
        "import sys; from remat_compile.cli import main; code = main(sys.argv[1:]); "
        "print(code, 'torch' in sys.modules)"
    )
    for words in ([], ["--dim", "y=3"]):
        done = subprocess.run(
            [sys.executable, "-c", code, str(file), *words], capture_output=True, text=True
        )
        assert done.stdout.split() == ["2", "False"], done.stderr
        assert ("FB0609" if words else "FB0608") in done.stderr


def voice(path: Path) -> Path:
    """As silero-vad: other weights for each rate, `If` on a number that is an input."""

    def branch(rate: int, size: int) -> Any:
        weight = numpy_helper.from_array(random(2, 1, size), f"encoder.{rate}.weight")
        nodes = [
            node("Constant", [], [weight.name], value=weight),
            node("Conv", ["x", weight.name], [f"out{rate}"], name=f"conv{rate}"),
        ]
        out = helper.make_tensor_value_info(f"out{rate}", TensorProto.FLOAT, [])
        return helper.make_graph(nodes, f"at{rate}", [], [out])

    nodes = [
        node("Equal", ["sr", "rate"], ["is16"]),
        node("If", ["is16"], ["y"], then_branch=branch(16, 5), else_branch=branch(8, 3)),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 1, None]),
        helper.make_tensor_value_info("sr", TensorProto.INT64, []),
    ]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
    rate = numpy_helper.from_array(np.array(16000), "rate")
    graph = helper.make_graph(nodes, "g", inputs, [out], [rate])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def test_an_input_fixed_to_a_value_decides_a_branch(tmp_path: Path) -> None:
    file, dims = voice(tmp_path / "m.onnx"), {"x[0]": 2, "x[2]": 16}
    assert refusal(lambda: build_module(file, dims=dims)).code == "FB0613"
    for rate, size in ((16000, 5), (8000, 3)):
        built = build_module(file, dims=dims, inputs={"sr": rate})
        (parameter,) = built.module.parameters()
        assert parameter.shape == (2, 1, size)
        assert built.arg_names == ("x",)
        (message,) = [w.message for w in built.warnings if w.code == "FB0630"]
        assert f"encoder.{rate // 1000}.weight" in message
        assert f"encoder.{24 - rate // 1000}.weight" not in message
    lowered(file, dims=dims, inputs={"sr": "16000"})
    with pytest.raises(remat_compile.FBError, match="FB0615"):
        build_module(file, dims=dims, inputs={"sr": 16000}, trainable=["nothing"])
    chosen = build_module(file, dims=dims, inputs={"sr": 16000}, trainable=["encoder.16.*"])
    assert [p.shape[-1] for p in chosen.module.parameters()] == [5]


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"rs": "1"}, 'no input "rs"'),
        ({"sr": "fast"}, "INT64[]"),
        ({"sr": "1.5"}, "INT64[]"),
        ({"sr": "[1,2]"}, "INT64[]"),
        ({"sr": '"16000"'}, "INT64[]"),
    ],
)
def test_values_that_an_input_cannot_have(tmp_path: Path, given: Any, word: str) -> None:
    file = voice(tmp_path / "m.onnx")
    wrong = refusal(lambda: build_module(file, dims={"x[0]": 2, "x[2]": 16}, inputs=given))
    assert wrong.code == "FB0621"
    assert word in wrong.message


def test_a_plan_of_fixed_inputs_says_so_when_they_are_not(tmp_path: Path) -> None:
    file = voice(tmp_path / "m.onnx")
    wrong = refusal(lambda: build_module(file, planned=[(2, 1, 16)]))
    assert (wrong.code, "--input" in str(wrong.hint)) == ("FB0621", True)
    built = build_module(file, planned=[(2, 1, 16)], inputs={"sr": 16000})
    assert built.args[0].shape == (2, 1, 16)


# -- batch normalisation -----------------------------------------------------------------

STATISTICS = {"g": random(3) + 1, "b": random(3), "m": random(3), "v": random(3) ** 2 + 0.5}


@pytest.mark.parametrize("outputs", [("y",), ("y", "m2", "v2")])
@pytest.mark.parametrize("momentum", default_only([0.9, 0.3], [0.3]))
def test_running_statistics_move_as_onnx_says(
    tmp_path: Path, outputs: tuple[str, ...], momentum: float
) -> None:
    """Over several steps of the planned module, beside the reference of ONNX."""
    nodes = [
        node(
            "BatchNormalization",
            ["x", "g", "b", "m", "v"],
            ["y", "m2", "v2"],
            training_mode=1,
            momentum=momentum,
        )
    ]
    file = write(tmp_path / "m.onnx", nodes, {"x": [4, 3, 2]}, STATISTICS, outputs=outputs)
    built = build_module(file)
    planned = remat_compile.compile(built.module, built.args, planner="store-all")
    state = {k: STATISTICS[k] for k in ("m", "v")}
    reference = ReferenceEvaluator(onnx.load(file).graph.node[0])
    for step in range(3):
        x = random(4, 3, 2) * (step + 1) + step
        made = planned(torch.from_numpy(x))
        y = made if isinstance(made, torch.Tensor) else made[0]
        y.square().sum().backward()
        values = {"x": x, "g": STATISTICS["g"], "b": STATISTICS["b"], **state}
        expected, *moved = reference.run(None, values)
        state = dict(zip(("m", "v"), moved, strict=True))
        torch.testing.assert_close(y.detach(), torch.from_numpy(expected), rtol=1e-4, atol=1e-5)
        for name in ("m", "v"):
            buffer = planned.get_buffer(name)
            torch.testing.assert_close(buffer, torch.from_numpy(state[name]), rtol=1e-5, atol=1e-6)
        if len(outputs) == 3:
            torch.testing.assert_close(made[1], planned.get_buffer("m"))


def test_statistics_that_an_exporter_merged_move_apart(tmp_path: Path) -> None:
    """`torch.onnx.export` stores equal tensors once, the others are `Identity` of it."""
    zero, one = np.zeros(3, np.float32), np.ones(3, np.float32)
    nodes = [
        node("Identity", ["zero"], ["first.mean"]),
        node("Identity", ["one"], ["first.var"]),
        node(
            "BatchNormalization",
            ["x", "one", "zero", "first.mean", "first.var"],
            ["h", "a", "c"],
            training_mode=1,
        ),
        node("Exp", ["h"], ["e"]),
        node(
            "BatchNormalization",
            ["e", "one", "zero", "zero", "one"],
            ["y", "d", "f"],
            training_mode=1,
        ),
    ]
    file = write(tmp_path / "m.onnx", nodes, {"x": [8, 3]}, {"zero": zero, "one": one})
    for train_bn in (False, True):
        built = build_module(file, train_bn=train_bn)
        assert {n for n, _ in built.module.named_parameters()} == {"zero", "one"}
        x = torch.randn(8, 3) + 2
        out = built.module(x)
        out.sum().backward()
        means = [b for n, b in built.module.named_buffers() if "zero" in n or "mean" in n]
        first = 0.1 * x.mean(0)
        second = 0.1 * F.batch_norm(x, None, None, training=True).exp().mean(0)
        for wanted in (first, second):
            assert any(torch.allclose(wanted, mean, rtol=1e-4) for mean in means)


def test_statistics_that_are_inputs_are_not_written(tmp_path: Path) -> None:
    nodes = [
        node("Mul", ["m", "w"], ["mw"]),
        node("BatchNormalization", ["x", "g", "b", "mw", "v"], ["y", "m2", "v2"], training_mode=1),
        node("Add", ["m2", "mw"], ["z"]),
    ]
    weights = {"g": STATISTICS["g"], "b": STATISTICS["b"], "v": STATISTICS["v"], "w": random(3)}
    inputs = {"x": [4, 3], "m": [3]}
    file = write(tmp_path / "m.onnx", nodes, inputs, weights, outputs=("y", "z"))
    built = build_module(file)
    x, m = (a.clone() for a in built.args)
    z = built.module(x, m)[1]
    mw = m * torch.from_numpy(weights["w"])
    torch.testing.assert_close(z, mw * 0.9 + 0.1 * x.mean(0) + mw)
    assert torch.equal(m, built.args[1])


# -- quantised files ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "domain"), [("ConvInteger", ""), ("DynamicQuantizeLSTM", "com.microsoft")]
)
def test_quantised_files_are_refused_by_their_operators(
    tmp_path: Path, op: str, domain: str
) -> None:
    made = node(op, ["x", "w"], ["y"], name="quantised", domain=domain)
    file = write(tmp_path / "m.onnx", [made], {"x": [1, 1, 4]}, {"w": random(1, 1, 3)})
    wrong = refusal(lambda: build_module(file))
    assert wrong.code == "FB0607"
    assert op in wrong.message
    assert '"quantised"' in wrong.message
