"""Rewrites of the joint graph that the IR's rules ask for, done before it is read.

Each rewrite keeps the values: batch-norm backward drops the running statistics it
ignores in training; dropout multiplies by what eager multiplies by; gradients and new
buffer contents become whole, dense storages of their own; a backward that reads a
buffer's old contents reads a copy made in forward.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, fx

from ....ir.diagnostics import fail
from ....operators.instances import plain_mode
from ....operators.overloads import OpOverload
from ...trace.descriptors import (
    BufferAOTInput,
    GradAOTOutput,
    InputMutationAOTOutput,
    IntermediateBaseAOTOutput,
    PlainAOTOutput,
)
from ..places import BY_REGIONS, place_of

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
    _one_value_of_constants(graph_module)
    for node in graph.find_nodes(op="call_function", target=aten._conj.default):
        if isinstance(node.args[0], complex):  # of a number, which its readers take as one
            for reader in list(node.users):
                number = node.args[0].conjugate()
                reader.args = tuple(number if arg is node else arg for arg in reader.args)
    check_dense(
        (f"what {n.target} gives" + (f" ({at})" if (at := place_of(n)) else ""), t)
        for n in graph.nodes
        for t in tensors_of(n)
    )
    _drop_running_statistics(graph)
    _batch_norm_as_in_eager(graph)
    _dropout_as_in_eager(graph)
    _own_storage_for_results(graph)
    _copy_old_buffers(graph)
    graph.eliminate_dead_code()
    graph_module.recompile()


def _one_value_of_constants(graph_module: fx.GraphModule) -> None:
    """Gives each tensor that the model holds beside parameters and buffers one fake value, which
    views of it share."""
    first: dict[int, fx.Node] = {}
    follow: set[Any] = set()
    for node in graph_module.graph.nodes:
        if node.op == "get_attr":
            known = first.setdefault(id(getattr(graph_module, node.target)), node)
            node.replace_all_uses_with(known)
            follow.add(known)
        elif _is_view(node.target) and node.args[0] in follow:
            args = fx.map_arg(node.args, lambda n: n.meta["val"])
            with torch._guards.detect_fake_mode(args) or nullcontext():
                node.meta["val"] = node.target(*args, **node.kwargs)
            follow.add(node)


def _is_view(target: Any) -> bool:
    if not isinstance(target, OpOverload):
        return target is operator.getitem
    return any(returned.alias_info for returned in target._schema.returns)


def check_dense(tensors: Iterable[tuple[str, Tensor]]) -> None:
    """FB0902 for the first, by name, that is not dense but sparse, nested or quantized."""
    for name, tensor in tensors:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            kind = "quantized" if tensor.is_quantized else str(tensor.layout).removeprefix("torch.")
            hint = f"make it dense (to_dense(), sparse=False, padding), or {BY_REGIONS}"
            fail("FB0902", f"{name} is a {kind} tensor: a plan has dense ones", hint=hint)


def _drop_running_statistics(graph: fx.Graph) -> None:
    # In training the kernel reads save_mean and save_invstd only (arguments 3 and 4 are
    # the running statistics, 7 is `train`).
    for node in graph.find_nodes(
        op="call_function", target=aten.native_batch_norm_backward.default
    ):
        if node.args[7] is True:
            node.args = (*node.args[:3], None, None, *node.args[5:])


def _batch_norm_as_in_eager(graph: fx.Graph) -> None:
    """cuDNN's kernels where eager takes them; tracing puts PyTorch's own in their place."""
    for node in graph.find_nodes(
        op="call_function", target=aten._native_batch_norm_legit_functional.default
    ):
        x, weight, bias, mean, variance, training, momentum, eps = node.args
        if not training or not _is_of_cudnn(x, weight, bias, mean, variance, eps):
            continue
        args = (x, weight, bias, mean, variance, momentum, eps)
        new = _insert(graph, aten._batch_norm_with_update_functional.default, args, {}, node)
        new.meta.update({key: value for key, value in node.meta.items() if key != "val"})
        reserve = _part(graph, new, 3, node)
        for part in list(node.users):
            index = part.args[1]
            part.args = (new, index if index < 3 else index + 1)
            part.meta["val"] = new.meta["val"][part.args[1]]
            for reader in list(part.users):
                if reader.target is aten.native_batch_norm_backward.default and index == 1:
                    given = (*reader.args, reserve)
                    made = _insert(
                        graph, aten.batch_norm_backward.default, given, {}, reader, like=reader
                    )
                    reader.replace_all_uses_with(made)


def _is_of_cudnn(x: fx.Node, weight: Any, bias: Any, mean: Any, variance: Any, eps: float) -> bool:
    nodes = (x, weight, bias, mean, variance)
    if x.meta["val"].device.type != "cuda" or None in nodes:  # without weights it is never cuDNN's
        return False
    given = [node.meta["val"] for node in nodes]
    backend = torch._C._select_batch_norm_backend(*given, True, eps)
    return bool(backend == torch._C._BatchNormBackend.Cudnn)  # type: ignore[attr-defined]


def _part(graph: fx.Graph, node: fx.Node, index: int, before: fx.Node) -> fx.Node:
    """One of several results of a call."""
    with graph.inserting_before(before):
        part = graph.call_function(operator.getitem, (node, index))
    part.meta.update(node.meta, val=node.meta["val"][index])
    return part


def _dropout_as_in_eager(graph: fx.Graph) -> None:
    """Multiplies by `mask / (1 - p)` in the dtype of the input, where the fused kernel does not.

    On a CPU eager rounds 1 / (1 - p) to that dtype; the kernel that tracing puts in its place
    multiplies by a wider one. Both are the same for p = 0.5, for 0.15 in float32 they are not.
    """
    for node in graph.find_nodes(op="call_function", target=aten.native_dropout.default):
        x, p, train = node.args
        value = x.meta["val"]
        if value.device.type != "cpu" or train is False or _has_exact_scale(p, value.dtype):
            continue
        parts = {user.args[1]: user for user in node.users if user.target is operator.getitem}
        mask, made = parts.get(1), parts.get(0)
        readers = [] if mask is None else list(mask.users)
        if mask is None:
            with graph.inserting_after(node):
                mask = graph.call_function(operator.getitem, (node, 1))
            mask.meta.update(node.meta, val=node.meta["val"][1])
        last = mask if made is None or made < mask else made
        kept = _insert(graph, aten._to_copy.default, (mask,), {"dtype": value.dtype}, last.next)
        noise = _insert(graph, aten.div.Tensor, (kept, 1.0 - p), {}, kept.next)
        products = [(made, x, noise.next)] if made is not None else []
        for reader in readers:
            if reader.target is aten.native_dropout_backward.default:
                products.append((reader, reader.args[0], reader))
        for old, factor, before in products:
            new = _insert(graph, aten.mul.Tensor, (factor, noise), {}, before, like=old)
            new.meta["val"] = old.meta["val"]  # with the storage that views of it have
            old.replace_all_uses_with(new)


def _has_exact_scale(p: float, dtype: torch.dtype) -> bool:
    if p == 1.0:
        return True
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    with plain_mode(torch.device("cpu")):
        fused = torch.tensor(1.0 / (1.0 - p), dtype=wide)
        return float(torch.ones((), dtype=dtype).div(1.0 - p)) == float(fused)


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
            for value in tensors_of(node):
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
    copy = _insert(graph, aten.clone.default, (node,), {}, before, like=node)
    copy.meta["partitioner_tag"] = "is_backward" if backward else "is_forward"
    copy.meta.pop("seq_nr", None)
    return copy


def _insert(
    graph: fx.Graph,
    op: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    before: fx.Node,
    *,
    like: fx.Node | None = None,
) -> fx.Node:
    """A new call that stands at the place in the model of its first argument, or of `like`."""
    with graph.inserting_before(before):
        node = graph.call_function(op, args, kwargs)
    given = [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args]
    with given[0].fake_mode:
        node.meta["val"] = op(*given, **kwargs)
    source = args[0] if like is None else like
    keys = ("partitioner_tag", "seq_nr", "stack_trace", "nn_module_stack", "fwd_nn_module_stack")
    node.meta.update({key: source.meta[key] for key in keys if key in source.meta})
    return node


def _storage(node: fx.Node) -> int:
    return int(node.meta["val"].untyped_storage()._cdata)


def _whole(node: fx.Node) -> bool:
    """Return whether the value covers its storage exactly once."""
    value = node.meta["val"]
    nbytes = value.untyped_storage().nbytes()
    return bool(
        torch._prims_common.is_non_overlapping_and_dense_or_false(value)
        and value.numel() * value.element_size() == nbytes
    )


def tensors_of(node: fx.Node) -> list[Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, list | tuple) else [value]
    return [v for v in values if isinstance(v, Tensor)]
