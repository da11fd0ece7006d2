"""A model as one that lies on a device: shapes and kernels, and no memory.

Traced on `meta` itself a model takes other kernels, and its loss may lose its backward. On fake
tensors of a real device it is traced as it would be there: a model of any size can be planned
where it would never fit. So is one whose parameters are at home elsewhere: on the host of an
accelerator on which its arguments lie, or on all ranks of a group, each of which has some rows.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.passes import move_to_device_pass
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._pytree import tree_leaves, tree_map_only

from ...device.fake_tensors import FakeTensor, FakeTensorMode
from ...device.shards import is_sharded
from ...ir.diagnostics import fail, listed


def on_device(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A copy of a module, and its sample, as fake tensors of `device`.

    Tied tensors stay tied. A sample that lies on another device than `meta` is taken as if
    it lay on `device`.
    """
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    made: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            if is_sharded(tensor):
                form: Any = {"dtype": tensor.dtype, "device": "meta"}
                on_meta = torch.empty_strided(tensor.shape, tensor.stride(), **form)
            else:
                on_meta = tensor.detach().to("meta")
            moved: Tensor = FakeTensor(mode, on_meta, device)
            if isinstance(tensor, nn.Parameter):
                moved = nn.Parameter(moved, tensor.requires_grad)
            made[id(tensor)] = moved.requires_grad_(tensor.requires_grad)
        return made[id(tensor)]

    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        memo[id(tensor)] = fake(tensor)
    twin = copy.deepcopy(module, memo)
    args, kwargs = tree_map_only(Tensor, fake, (args, kwargs))
    return twin, args, kwargs


def device_away(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> torch.device | None:
    """The device of the arguments, where parameters are at home elsewhere; None where they lie
    there. FB0555 for what else does not lie there, FB0556 for shards that are no rows."""
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    parameters = dict(module.named_parameters())
    device = given[0].device if given else torch.device("cpu")
    on_host = device.type not in ("cpu", "meta") and {p.device.type for p in parameters.values()}
    sharded = {name: p for name, p in parameters.items() if is_sharded(p)}
    if not sharded and on_host != {"cpu"}:
        return None
    here = torch.accelerator.current_accelerator()
    if device.type != "cpu" and (here is None or here.type != device.type):
        message = f"the arguments lie on {device}, and PyTorch has no kernels for it here"
        fail("FB0555", message, hint="plan where there is one, or with arguments on the CPU")
    if apart := [name for name, p in parameters.items() if sharded and name not in sharded]:
        message = f"{listed(apart, 3)} is whole on each rank, and others are sharded"
        fail("FB0556", message, hint=BY_ROWS)
    for name, p in sharded.items():
        mesh, (first, *more) = p.device_mesh, p.placements  # type: ignore[attr-defined]
        if more or not first.is_shard(0) or mesh.device_type != "cpu":
            message = f"{name} is spread as {first} over a mesh of {mesh.device_type}"
            fail("FB0556", message, hint=BY_ROWS)
    others = [*module.named_buffers(), *(("an argument", leaf) for leaf in given)]
    if wrong := [name for name, t in others if t.device != device or is_sharded(t)]:
        message = f"the step runs on {device}, and {listed(wrong, 3)} does not lie there"
        fail("FB0555", message, hint=f'move it there; only parameters stay ("{device}")')
    return device


BY_ROWS = (
    "shard every parameter along dimension 0 of one mesh of CPUs (gloo): "
    "distribute_tensor(p, mesh, [Shard(0)])"
)


def file_on_device(program: ExportedProgram, device: torch.device) -> ExportedProgram:
    """A program of a file, all `meta` tensors as fake tensors of `device`; it is changed.

    PyTorch gives all of them one storage and the first one's `requires_grad`: sizes and what is
    trained are read from the graph. Which parameters were tied cannot be read from such a file.
    """
    placeholders = program.graph.find_nodes(op="placeholder")
    (mode, *_) = (v.fake_mode for n in placeholders if isinstance(v := n.meta["val"], FakeTensor))

    def fake(tensor: Tensor) -> Tensor:
        if not tensor.is_meta:
            return tensor
        options: Any = {"dtype": tensor.dtype, "device": "meta"}
        alone = torch.empty_strided(tensor.shape, tensor.stride(), **options)
        moved: Tensor = FakeTensor(mode, alone, device)
        return moved

    named = program.graph_signature.inputs_to_parameters
    trained = {
        named[node.name]: node.meta["val"].requires_grad
        for node in placeholders
        if node.name in named
    }
    for name, tensor in program.state_dict.items():
        moved = fake(tensor)
        if name in trained:
            moved = nn.Parameter(moved, trained[name])
        program.state_dict[name] = moved
    for held in (program.constants, program.tensor_constants):
        held.update(tree_map_only(Tensor, fake, held))
    program.example_inputs = tree_map_only(
        Tensor, lambda t: fake(t).requires_grad_(t.requires_grad), program.example_inputs
    )
    return move_to_device_pass(program, {"meta": str(device)})
