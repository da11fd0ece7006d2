"""The decision of PyTorch's min-cut partitioner under `activation_memory_budget`.

The partitioner splits the joint graph into a forward and a backward module. What the
first returns beyond the results is saved; forward nodes that stand in the second run again
there, in its order. Nodes keep their names, so that both are told in cNodes.
"""

from __future__ import annotations

import copy
from typing import Any

import torch._functorch.config
from torch import fx
from torch._functorch.partitioners import (
    _size_of,
    classify_nodes,
    min_cut_rematerialization_partition,
)

from ...ir.diagnostics import fail
from ...ir.graph import CALLER_KINDS
from ...ir.wording import worded
from ..lowered import Lowered
from .decision import Decision
from .ties import cnode_of_node, storage_of_node


def decide_partitioner(lowered: Lowered, memory_budget: float, solver: str = "dp") -> Decision:
    """Return the decision of the partitioner at `memory_budget` (0: recompute all, 1: its own
    optimum).

    It is run as `torch.compile` runs it, save that equal computations are not merged, so that
    each keeps its name; `solver` is its `activation_memory_budget_solver`. A random operator
    that it runs again draws again: it keeps no state (pytorch#190758). FB0484 where it fails.
    """
    forward, backward = _partition(lowered, memory_budget, solver)
    limit = None
    if memory_budget < 1:
        optimum, _ = _partition(lowered, 1.0, solver)
        limit = _limit(lowered, memory_budget, _counted(_handed(lowered, optimum)))
    ties = cnode_of_node(lowered)

    def order(half: fx.GraphModule) -> list[str]:
        # What is saved stands in the backward under its name too, as a placeholder.
        calls = (n.name for n in half.graph.nodes if n.op == "call_function")
        return [ties[name] for name in calls if name in ties]

    return Decision(
        by=f"partitioner{{memory_budget={memory_budget:g}, solver={solver}}}",
        saved=frozenset(_saved(lowered, forward)),
        forward=_with_unread(lowered, order(forward)),
        backward=tuple(order(backward)),
        keeps_random_state=False,
        claimed_bytes=_counted(_handed(lowered, forward)),
        limit_bytes=limit,
        counts_inputs=True,
    )


def _partition(
    lowered: Lowered, memory_budget: float, solver: str
) -> tuple[fx.GraphModule, fx.GraphModule]:
    config: Any = torch._functorch.config
    settings = config.patch(
        cse=False,
        activation_memory_budget=memory_budget,
        activation_memory_budget_solver=solver,
        activation_memory_budget_runtime_estimator="flops",
    )
    try:
        with settings:
            halves: tuple[fx.GraphModule, fx.GraphModule] = min_cut_rematerialization_partition(
                _copy(lowered.joint.graph_module),
                None,
                num_fwd_outputs=len(lowered.forward_outputs),
                static_lifetime_input_indices=_static(lowered),
            )
            return halves
    except Exception as error:  # whatever the partitioner or its solver raises
        line = (str(error).strip() or type(error).__name__).splitlines()[0]
        message = f"PyTorch's partitioner fails at a memory budget of {memory_budget:g}: {line}"
        fail("FB0484", message, hint=worded("try another {solver}"))


def _copy(module: fx.GraphModule) -> fx.GraphModule:
    """The partitioner changes what it gets. Names and metadata of the nodes are kept."""
    graph = fx.Graph()
    result = graph.graph_copy(module.graph, {})
    graph.output(result)
    graph.output_node().meta = copy.copy(module.graph.output_node().meta)
    return fx.GraphModule(module, graph)


def _static(lowered: Lowered) -> list[int]:
    """The inputs that outlive the step: parameters and buffers."""
    anode = lowered.program.graph.anode
    kinds = [None if name is None else anode[name].kind for name in lowered.placeholders]
    return [index for index, kind in enumerate(kinds) if kind in ("param", "buffer")]


def _handed(lowered: Lowered, forward: fx.GraphModule) -> list[fx.Node]:
    """Return the values that the forward module hands to the backward, inputs included."""
    values: Any = forward.graph.output_node().args[0]
    return [v for v in values[len(lowered.forward_outputs) :] if isinstance(v, fx.Node)]


def _saved(lowered: Lowered, forward: fx.GraphModule) -> set[str]:
    """The storages handed to the backward, the caller's left out."""
    anode, storage = lowered.program.graph.anode, storage_of_node(lowered)
    storages = {storage[v.name] for v in _handed(lowered, forward) if v.name in storage}
    return {name for name in storages if anode[name].kind not in CALLER_KINDS}


def _counted(values: list[fx.Node]) -> int:
    """Bytes as the partitioner counts them, inputs included."""
    return sum(_size_of(v) for v in values)


def _limit(lowered: Lowered, memory_budget: float, optimum_bytes: int) -> int:
    """A share of what lies between saving the inputs and the partitioner's own optimum."""
    nodes = classify_nodes(
        _copy(lowered.joint.graph_module), _static(lowered), len(lowered.forward_outputs)
    )
    inputs = _counted(nodes.inputs)
    return inputs + int(memory_budget * max(0, optimum_bytes - inputs))


def _with_unread(lowered: Lowered, order: list[str]) -> tuple[str, ...]:
    """Random operators of which nothing is read have no name in the partition; they draw all
    the same, each before the next that was captured after it."""
    graph = lowered.program.graph
    place = {c.name: index for index, c in enumerate(graph.cnodes)}
    for c in graph.in_phase("fwd"):
        if c.token is not None and not c.results:
            later = (i for i, name in enumerate(order) if place[name] > place[c.name])
            order.insert(next(later, len(order)), c.name)
    return tuple(order)
