"""Partial evaluation of an ONNX graph on fake tensors: constants are computed, calls recorded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...device.fake_tensors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from ...ir.diagnostics import Diagnostic, FBError
from ..trace.lock import unlogged
from .call import Call, Known, Lowering, Value, known, literals_of
from .exporter.record import FX_NODE, origin_of
from .file.convert import attributes_of, clean, metadata, name_of, path_of, place_of, to_tensor
from .file.limits import LARGEST_BYTES, Allowance, bytes_of, check_bytes
from .file.parse import reason_of
from .file.signatures import check_types
from .module import OnnxModule, Slot, Step, as_outputs, last_uses, node_module, reserve
from .table import RANDOM, lowering_of
from .unroll import unroll
from .weights import Role

_LOOKED_AT = {"Shape": {0}, "Size": {0}, "EyeLike": {0}, "CastLike": {1}}
"""Inputs of which only shape or type matter, both known at build time."""


class ModuleBuilder:
    """Builds an `OnnxModule`. `values` maps ONNX names to what they are at build time."""

    def __init__(
        self,
        opset: int,
        base: Path,
        train_bn: bool,
        *,
        opsets: Mapping[str, int] | None = None,
        limit_bytes: int = LARGEST_BYTES,
        promoted: Mapping[str, Role] | None = None,
        straight_through: bool = False,
    ):
        """`promoted` are results of nodes that are stored like initialisers."""
        self.opset = opset
        self.opsets = opsets or {}
        self.promoted = promoted or {}
        self.straight_through = straight_through
        self.base = base
        self.train_bn = train_bn
        self.root = OnnxModule()
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.values: dict[str, Value] = {}
        self.keys: dict[int, str] = {}
        self.steps: list[Step] = []
        self.parameters: set[str] = set()
        self.statistics: set[str] = set()
        self.batch_norms: dict[str, bool] = {}
        """Every BatchNormalization, and whether it uses batch statistics."""
        self.allowance = Allowance(self.mode, limit_bytes)
        self._contents: dict[tuple[Any, ...], str] = {}
        self._taken: set[str] = set()
        self._paths: dict[int, str] = {}
        self._alive: list[Any] = []  # `keys` goes by identity: nothing may be collected

    def add_input(self, name: str, sample: Tensor) -> None:
        self._enter(name, self.mode.from_tensor(sample))

    def add_initialiser(self, proto: Any, role: Role) -> None:
        """Store an initialiser under its own (dotted) name."""
        self._store(proto.name, to_tensor(proto, self.base), role)

    def add_tie(self, name: str, stored: str) -> None:
        """Let a stored parameter be found under a second name too."""
        place, leaf = reserve(self.root, [clean(part) for part in name.split(".")])
        place.register_parameter(leaf, self.root.get_parameter(self.root.stored[stored]))

    def _store(self, name: str, data: Tensor, role: Role) -> None:
        if role is Role.CONSTANT:
            self.values[name] = known(name, data)
            return
        place, leaf = reserve(self.root, [clean(part) for part in name.split(".")])
        if role in (Role.TRAINED, Role.FROZEN):
            data = nn.Parameter(data, requires_grad=role is Role.TRAINED)
            place.register_parameter(leaf, data)
            if role is Role.TRAINED:
                self.parameters.add(name)
        else:
            place.register_buffer(leaf, data)
            self.statistics.add(name)
        self._enter(name, self.mode.from_tensor(data))
        self._remember(self.keys[id(self.values[name])], place, leaf)

    def run(self, graph: Any, needed: set[str]) -> None:
        """Evaluate or record every node that leads to a name in `needed`."""
        for node in _useful(graph, needed):
            match node.op_type:
                case "If":
                    self._branch(node)
                case "Loop" | "Scan":
                    unroll(self, node)
                case _:
                    self._node(node)

    def finish(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> OnnxModule:
        self.root.input_names = inputs
        for name in outputs:
            if isinstance(self.values[name], list):
                message = f'output "{name}" is a sequence'
                raise FBError(Diagnostic("FB0614", message))
        self.root.output_keys = tuple(self._key_of(name, self.values[name]) for name in outputs)
        keep = (*self.root.output_keys, *inputs)
        self.root.steps = last_uses(self.steps, keep, self.root.stored)
        return self.root

    def _enter(self, name: str, value: Tensor) -> None:
        self.values[name] = value
        self._alive.append(value)
        self.keys[id(value)] = self._fresh(name)

    def _remember(self, name: str, place: nn.Module, leaf: str) -> None:
        prefix = self._path(place)
        self.root.stored[name] = f"{prefix}.{leaf}" if prefix else leaf
        self.root.onnx_names[self.root.stored[name]] = name

    def run_inner(self, graph: Any) -> list[Value]:
        """The results of a graph inside a node; its inputs stand in `values`."""
        for tensor in graph.initializer:
            self.values[tensor.name] = known(tensor.name, to_tensor(tensor, self.base))
        self.run(graph, {value.name for value in graph.output})
        return [self.values[value.name] for value in graph.output]

    def _branch(self, node: Any) -> None:
        condition = self.values[node.input[0]]
        call = Call("If", name_of(node), "", self.opset, {}, tuple(node.output))
        chosen = "then_branch" if call.scalar(condition, "the condition") else "else_branch"
        graph = next(a.g for a in node.attribute if a.name == chosen)
        self.values.update(zip(node.output, self.run_inner(graph), strict=True))

    def _node(self, node: Any) -> None:
        lowering = lowering_of(node.domain, node.op_type)
        assert lowering is not None
        call = Call(
            node.op_type,
            name_of(node),
            "",
            self.opsets.get(node.domain, self.opset),
            attributes_of(node, self.base),
            tuple(node.output),
            train_bn=self.train_bn,
            literals=_literals(node) if node.op_type in ("Cast", "CastLike") else (),
            trained=frozenset(i for i, n in enumerate(node.input) if n in self.parameters),
            statistics=frozenset(i for i, n in enumerate(node.input) if n in self.statistics),
            origin=origin_of(node),
            straight_through=self.straight_through,
        )
        inputs = [self.values[name] if name else None for name in node.input]
        if self._is_known(node.op_type, inputs):
            results = self._evaluate(call, lowering, inputs)
            for name, result in zip(node.output, results, strict=False):
                if name in self.promoted:
                    self._store(name, result.detach().clone(), self.promoted[name])
                elif name:
                    self.values[name] = _as_known(name, result)
            return
        if node.op_type == "BatchNormalization":
            self.batch_norms[call.name] = self.train_bn or call.flag("training_mode")
        if not self.straight_through:  # there, integers travel as floats
            check_types(call, node.domain, inputs)
        results = self._evaluate(call, lowering, self._faked(inputs))
        self._record(node, call, lowering, inputs, results)

    def _is_known(self, op: str, inputs: list[Value]) -> bool:
        if op in RANDOM:
            return False
        looked_at = _LOOKED_AT.get(op, set())
        return all(_known(value) or i in looked_at for i, value in enumerate(inputs))

    def _faked(self, inputs: list[Value]) -> list[Value]:
        return [self._fake(value) for value in inputs]

    def _fake(self, value: Value) -> Value:
        if isinstance(value, Known):
            return value.with_data(self.mode.from_tensor(value.data))
        return [self._fake(item) for item in value] if isinstance(value, list) else value

    def _evaluate(self, call: Call, lowering: Lowering, inputs: list[Value]) -> tuple[Any, ...]:
        self.allowance.node = f'node "{call.name}" ({call.op})'
        try:
            with self.allowance, unlogged():  # fake tensors log before they raise
                results = as_outputs(lowering(call, *inputs))
            for result in results:
                if isinstance(result, Tensor) and not isinstance(result, FakeTensor):
                    check_bytes(self.allowance.node, bytes_of(result), self.allowance.left_bytes)
            return results
        except FBError:
            raise
        except (DataDependentOutputException, DynamicOutputShapeException):
            refusal = call.refusal(
                "the size of a result depends on the values of the inputs", "FB0613"
            )
        except Exception as error:  # a lowering is given whatever the file holds
            refusal = call.refusal(reason_of(error), "FB0606")
        raise refusal  # outside the handlers: torch's own traceback tells users nothing

    def _record(
        self,
        node: Any,
        call: Call,
        lowering: Lowering,
        inputs: list[Value],
        results: tuple[Any, ...],
    ) -> None:
        wanted = list(zip(node.output, results, strict=False))
        if all(self._is_same(result) for name, result in wanted if name and result is not None):
            for name, result in wanted:  # an identity: another name for what is there
                if name and result is not None:
                    self.values[name] = result
            return
        reads: list[str] = []
        template = [
            self._entry(value, name, call, reads)
            for value, name in zip(inputs, node.input, strict=True)
        ]
        place, leaf = reserve(self.root, path_of(node))
        module = node_module(call, lowering, template)
        module.remat_compile_place = place_of(node, call.opset)
        place.add_module(leaf, module)
        prefix = self._path(place)
        call.path = f"{prefix}.{leaf}" if prefix else leaf
        writes: list[str | None] = []
        for name, result in wanted:
            if name and result is not None:
                self._enter_result(name, result)
                writes.append(self.keys[id(result)])
            else:
                writes.append(None)
        self.steps.append(Step(call.path, tuple(reads), tuple(writes)))

    def _path(self, place: nn.Module) -> str:
        """Where a container stands; all are looked up again only for one that is new."""
        if id(place) not in self._paths:
            self._paths = {id(module): path for path, module in self.root.named_modules()}
        return self._paths[id(place)]

    def _fresh(self, name: str) -> str:
        """A run-time name; branches of `If` may use the same ONNX name again."""
        while name in self._taken:
            name += "'"
        self._taken.add(name)
        return name

    def _is_same(self, result: Any) -> bool:
        return isinstance(result, Tensor) and id(result) in self.keys

    def _enter_result(self, name: str, result: Any) -> None:
        self.values[name] = result
        self._alive.append(result)
        if not isinstance(result, Tensor) or id(result) not in self.keys:
            self.keys[id(result)] = self._fresh(name)

    def _entry(self, value: Value, name: str, call: Call, reads: list[str]) -> Any:
        """Return the entry of the template: a slot for a tensor, the value itself if known."""
        if isinstance(value, list) and id(value) not in self.keys:
            return [self._entry(item, name, call, reads) for item in value]
        if value is None or (isinstance(value, Known) and value.name not in call.touched):
            return value
        reads.append(self._key_of(name, value))
        return Slot(len(reads) - 1, value if isinstance(value, Known) else None)

    def _key_of(self, name: str, value: Value) -> str:
        """The run-time name of a value; a known one becomes a buffer, once per content."""
        if not isinstance(value, Known):
            return self.keys.get(id(value), name)
        content = _content(value.data)
        if content not in self._contents:
            place, leaf = reserve(self.root, [clean(part) for part in value.name.split(".")])
            place.register_buffer(leaf, value.data, persistent=False)
            self._contents[content] = self._fresh(value.name)
            self._remember(self._contents[content], place, leaf)
        return self._contents[content]


def _known(value: Value) -> bool:
    if isinstance(value, list):
        return all(_known(item) for item in value)
    return value is None or isinstance(value, Known)


def _as_known(name: str, result: Any) -> Value:
    if isinstance(result, list):
        return [_as_known(f"{name}.{i}", item) for i, item in enumerate(result)]
    if isinstance(result, Known) or result is None:
        return result
    return known(name, result.detach())


def _content(data: Tensor) -> tuple[Any, ...]:
    """Equal for tensors that hold the same; the bytes are hashed once, at build time."""
    flat = data.contiguous().reshape(-1).view(torch.uint8) if data.numel() else data.reshape(-1)
    digest = hashlib.sha256(flat.numpy().tobytes()).digest()
    return (data.dtype, tuple(data.shape), digest)


def _literals(node: Any) -> tuple[float, ...]:
    return literals_of(metadata(node, FX_NODE) or "")


def _useful(graph: Any, needed: set[str]) -> list[Any]:
    """The nodes that lead to a needed name, in order (also through subgraphs)."""
    wanted = set(needed)
    kept = []
    for node in reversed(graph.node):
        if wanted.isdisjoint(node.output):
            continue
        kept.append(node)
        wanted.update(_reads(node))
    return kept[::-1]


def _reads(node: Any) -> set[str]:
    names = {name for name in node.input if name}
    for attribute in node.attribute:
        for inner in attribute.g.node:
            names |= _reads(inner)
        names |= {value.name for value in attribute.g.output}
    return names
