"""`Loop` and `Scan` with a trip count that is known when the module is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
import onnx.helper
import torch

from .call import Call, Known, Value, known
from .file.convert import attributes_of, name_of

_MOST_TRIPS = 1024


class GraphRunner(Protocol):
    """Interface of the builder that runs the graph."""

    opset: int
    base: Path
    values: dict[str, Value]

    def run(self, graph: Any, needed: set[str]) -> None:
        """Evaluate or record what leads to the needed names."""

    def run_inner(self, graph: Any) -> list[Value]:
        """The results of a graph inside a node."""


def unroll(builder: GraphRunner, node: Any) -> None:
    """Run the body once for every trip. Raises FB0613 where their number is not known,
    FB0618 where there are too many."""
    attributes = attributes_of(node, builder.base)
    call = Call(node.op_type, name_of(node), "", builder.opset, attributes, tuple(node.output))
    if node.op_type == "Loop":
        _loop(builder, node, call)
    elif builder.opset < 9:
        call.refuse("Scan before opset 9 is not supported", "FB0607")
    else:
        _scan(builder, node, call)


def _loop(builder: GraphRunner, node: Any, call: Call) -> None:
    body = call.attributes["body"]
    limit, condition, *state = [builder.values[n] if n else None for n in node.input]
    trips = _MOST_TRIPS + 1 if limit is None else int(call.scalar(limit, "the trip count"))
    if condition is None and limit is not None:
        _count(call, trips - 1)
    going = call.scalar(condition, "the condition", True)
    names = [value.name for value in body.input]
    collected: list[list[Value]] = [[] for _ in range(len(body.output) - 1 - len(state))]
    trip = 0
    while going and trip < trips:
        _count(call, trip)
        builder.values[names[0]] = known(f"{call.name}.trip{trip}", torch.tensor(trip))
        builder.values[names[1]] = known(f"{call.name}.going", torch.tensor(True))
        builder.values.update(zip(names[2:], state, strict=True))
        keep, *results = builder.run_inner(body)
        state = results[: len(state)]
        for column, value in zip(collected, results[len(state) :], strict=True):
            column.append(value)
        if condition is not None or limit is None:
            going = call.scalar(keep, "the condition after a trip")
        trip += 1
    _finish(builder, node, call, state, collected, [0] * len(collected))


def _scan(builder: GraphRunner, node: Any, call: Call) -> None:
    body, count = call.attributes["body"], call.integer("num_scan_inputs", 1)
    values = [builder.values[name] for name in node.input]
    state, sequences = values[: len(values) - count], node.input[len(values) - count :]
    ranks = [_shape(builder.values[name]) for name in sequences]
    axes = call.integers("scan_input_axes", [0] * count)
    backwards = call.integers("scan_input_directions", [0] * count)
    lengths = {shape[axis] for shape, axis in zip(ranks, axes, strict=True)}
    if len(lengths) != 1:
        call.refuse(f"the scanned inputs have different lengths: {sorted(lengths)}", "FB0606")
    (trips,) = lengths
    _count(call, trips - 1)
    collected: list[list[Value]] = [[] for _ in range(len(body.output) - len(state))]
    names = [value.name for value in body.input]
    for trip in range(trips):
        parts = []
        for name, axis, back in zip(sequences, axes, backwards, strict=True):
            place = trips - 1 - trip if back else trip
            parts.append(_run(builder, call, "Gather", [name, np.array(place)], axis=axis))
        builder.values.update(zip(names, [*state, *parts], strict=True))
        results = builder.run_inner(body)
        state = results[: len(state)]
        for column, value in zip(collected, results[len(state) :], strict=True):
            column.append(value)
    turned = call.integers("scan_output_directions", [0] * len(collected))
    collected = [c[::-1] if back else c for c, back in zip(collected, turned, strict=True)]
    places = call.integers("scan_output_axes", [0] * len(collected))
    _finish(builder, node, call, state, collected, places)


def _finish(
    builder: GraphRunner,
    node: Any,
    call: Call,
    state: list[Value],
    collected: list[list[Value]],
    axes: list[int],
) -> None:
    """The last state, then what each trip gave, stacked along an axis."""
    results = list(state)
    for values, axis in zip(collected, axes, strict=True):
        if not values:
            call.refuse("a result collected over no trips has no known shape", "FB0613")
        results.append(_run(builder, call, "ConcatFromSequence", [values], axis=axis, new_axis=1))
    for name, value in zip(node.output, results, strict=False):
        if name:
            builder.values[name] = value


def _run(builder: GraphRunner, call: Call, op: str, inputs: list[Any], **attributes: int) -> Value:
    """One more node of the graph; inputs are names, arrays or values."""
    number = len(builder.values)
    result = f"{call.name}.{op}{number}"
    names = []
    for i, value in enumerate(inputs):
        name = value if isinstance(value, str) else f"{result}.{i}"
        if isinstance(value, np.ndarray):
            value = known(name, torch.from_numpy(value))
        if name is not value:
            builder.values[name] = value
        names.append(name)
    made = onnx.helper.make_node(op, names, [result], name=result, **attributes)
    builder.run(onnx.helper.make_graph([made], "step", [], []), {result})
    return builder.values[result]


def _shape(value: Value) -> tuple[int, ...]:
    data = value.data if isinstance(value, Known) else value
    assert isinstance(data, torch.Tensor)
    return tuple(data.shape)


def _count(call: Call, trip: int) -> None:
    if trip >= _MOST_TRIPS:
        call.refuse(f"more than {_MOST_TRIPS} trips", "FB0618")
