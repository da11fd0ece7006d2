"""The map from cNodes and storages to nodes of the joint graph."""

from __future__ import annotations

import operator

from torch import Tensor, fx

from ..lowered import Lowered


def cnode_of_node(lowered: Lowered) -> dict[str, str]:
    """The cNode that a node of the joint graph became, by the node's name. Views and nodes
    whose results nobody uses are left out."""
    cnode_of: dict[str, str] = {}
    for c in lowered.program.graph.cnodes:
        for name in c.results:
            node = lowered.nodes.get(name)
            if node is not None and node.op == "call_function":
                cnode_of[_call(node).name] = c.name
    return cnode_of


def _call(node: fx.Node) -> fx.Node:
    """The operator behind one of its results."""
    if node.target is operator.getitem:
        call = node.args[0]
        assert isinstance(call, fx.Node)
        return call
    return node


def storage_of_node(lowered: Lowered) -> dict[str, str]:
    """The aNode under the value of every node that is one tensor, views included."""
    holder: dict[int, str] = {}
    graph = lowered.program.graph
    for name, node in lowered.nodes.items():
        value = node.meta.get("val")
        if name in graph.anode and isinstance(value, Tensor):
            holder.setdefault(value.untyped_storage()._cdata, name)
    storage_of: dict[str, str] = {}
    for node in lowered.joint.graph_module.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor):
            held = holder.get(value.untyped_storage()._cdata)
            if held is not None:
                storage_of[node.name] = held
    return storage_of
