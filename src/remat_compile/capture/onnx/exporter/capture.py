"""Capture a module for export with every place that stops a gradient in the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

_REGION = torch.ops.higher_order.wrap_with_set_grad_enabled


def captured(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> torch.export.ExportedProgram | None:
    """The program that `torch.onnx.export` would capture, with what a `torch.no_grad()` region
    gives passed through `detach`: the exporter forgets the region, and keeps the `detach`.

    None where PyTorch cannot capture the module so, or where gradients are switched on again
    inside such a region.
    """
    try:
        # As torch.onnx.export itself captures, but where gradients are on to begin with.
        patch = torch.fx.experimental._config.patch  # type: ignore[attr-defined]
        with torch.enable_grad(), patch(backed_size_oblivious=True):
            program = torch.export.export(
                module,
                tuple(args),
                kwargs=dict(kwargs) if kwargs else None,
                dynamic_shapes=dynamic_shapes,
                strict=False,
                prefer_deferred_runtime_asserts_over_guards=True,
            )
    except Exception:  # torch.onnx.export has other ways to capture, and tells why none works
        return None
    graphs = [m for m in program.graph_module.modules() if isinstance(m, fx.GraphModule)]
    regions = [(g, n) for g in graphs for n in g.graph.nodes if n.target is _REGION]
    if any(node.args[0] for _, node in regions):
        return None
    for graph, node in regions:
        _cut(graph, node)
    return program


def _cut(module: fx.GraphModule, region: fx.Node) -> None:
    """Detach each floating-point result of a region."""
    for result in list(region.users):
        value = result.meta.get("val")
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            continue
        with module.graph.inserting_after(result):
            made = module.graph.call_function(torch.ops.aten.detach.default, (result,))
        made.meta = dict(result.meta)
        result.replace_all_uses_with(made)
        made.args = (result,)
    module.recompile()
