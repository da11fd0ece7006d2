"""Rewrites of the joint graph that the IR's rules ask for, done before it is read.

Each rewrite keeps the values: batch-norm backward drops the running statistics it
ignores in training; gradients and new buffer contents become whole, dense storages of
their own; a backward that reads a buffer's old contents reads a copy made in forward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch._functorch._aot_autograd.descriptors import (
    BufferAOTInput,
    GradAOTOutput,
    InputMutationAOTOutput,
    IntermediateBaseAOTOutput,
    PlainAOTOutput,
)

__all__ = ["is_backward", "output_descs", "output_nodes", "prepare"]

aten = torch.ops.aten


def is_backward(node: fx.Node) -> bool:
    return node.meta.get("partitioner_tag") == "is_backward"


def output_nodes(graph: fx.Graph) -> list[fx.Node | None]:
    """The flat results of the joint graph; None for a gradient that does not exist."""
    flat: list[fx.Node | None] = list(graph.output_node().args[0])  # type: ignore[arg-type]
    return flat


def output_descs(graph: fx.Graph) -> list[Any]:
    return list(graph.output_node().meta["desc"])


def prepare(graph_module: fx.GraphModule) -> None:
    """Applies every rewrite in place."""
    graph = graph_module.graph
    _drop_running_statistics(graph)
    _own_storage_for_results(graph)
    _copy_old_buffers(graph)
    graph.eliminate_dead_code()
    graph_module.recompile()


def _drop_running_statistics(graph: fx.Graph) -> None:
    # In training the kernel reads save_mean and save_invstd only (arguments 3 and 4 are
    # the running statistics, 7 is `train`).
    for node in graph.find_nodes(
        op="call_function", target=aten.native_batch_norm_backward.default
    ):
        if node.args[7] is True:
            node.args = (*node.args[:3], None, None, *node.args[5:])


def _own_storage_for_results(graph: fx.Graph) -> None:
    """Clones gradients and new buffer contents that are not whole storages of their own."""
    taken: set[int] = {
        _storage(node)
        for node in graph.nodes
        if node.op in ("placeholder", "get_attr") and isinstance(node.meta.get("val"), Tensor)
    }
    forward: set[int] = set()
    for node in graph.nodes:
        if node.op == "call_function" and not is_backward(node):
            for value in _tensors(node):
                forward.add(value.untyped_storage()._cdata)
    nodes, descs = output_nodes(graph), output_descs(graph)
    for node, desc in zip(nodes, descs, strict=True):
        if isinstance(node, fx.Node) and isinstance(
            desc, PlainAOTOutput | IntermediateBaseAOTOutput
        ):
            taken.add(_storage(node))
    for index, (node, desc) in enumerate(zip(nodes, descs, strict=True)):
        if node is None or not isinstance(desc, GradAOTOutput | InputMutationAOTOutput):
            continue
        is_grad = isinstance(desc, GradAOTOutput)
        if _storage(node) in taken or (is_grad and _storage(node) in forward) or not _whole(node):
            node = nodes[index] = _clone(graph, node, graph.output_node(), backward=is_grad)
        taken.add(_storage(node))
    graph.output_node().args = (tuple(nodes),)


def _copy_old_buffers(graph: fx.Graph) -> None:
    """A forward copy of each updated buffer for the backward nodes that read it."""
    updated = {
        desc.mutated_input.target
        for desc in output_descs(graph)
        if isinstance(desc, InputMutationAOTOutput)
        and isinstance(desc.mutated_input, BufferAOTInput)
    }
    for node in graph.find_nodes(op="placeholder"):
        desc = node.meta.get("desc")
        if not isinstance(desc, BufferAOTInput) or desc.target not in updated:
            continue
        readers = [user for user in node.users if is_backward(user)]
        if readers:
            first = next(n for n in graph.nodes if n.op == "call_function")
            copy = _clone(graph, node, first, backward=False)
            for reader in readers:
                reader.replace_input_with(node, copy)


def _clone(graph: fx.Graph, node: fx.Node, before: fx.Node, *, backward: bool) -> fx.Node:
    value = node.meta["val"]
    with graph.inserting_before(before):
        copy = graph.call_function(aten.clone.default, (node,))
    with value.fake_mode:
        copy.meta["val"] = aten.clone.default(value)
    copy.meta["partitioner_tag"] = "is_backward" if backward else "is_forward"
    for key in ("stack_trace", "nn_module_stack", "fwd_nn_module_stack"):
        if key in node.meta:
            copy.meta[key] = node.meta[key]
    return copy


def _storage(node: fx.Node) -> int:
    return int(node.meta["val"].untyped_storage()._cdata)


def _whole(node: fx.Node) -> bool:
    """Whether the value covers its storage exactly once."""
    value = node.meta["val"]
    nbytes = value.untyped_storage().nbytes()
    return bool(
        torch._prims_common.is_non_overlapping_and_dense_or_false(value)
        and value.numel() * value.element_size() == nbytes
    )


def _tensors(node: fx.Node) -> list[Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    return [v for v in values if isinstance(v, Tensor)]
