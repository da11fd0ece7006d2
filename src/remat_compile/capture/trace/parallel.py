"""Models spread over processes: the planned part, and refusals."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ...ir.diagnostics import Diagnostic, FBError, listed
from ..lowered import Exported


def replica_of(model: nn.Module) -> nn.Module:
    """The module that each process has of its own: that inside of `DistributedDataParallel`."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def around_replica(exported: Exported, planned: nn.Module) -> nn.Module:
    """The planned replica inside of what was passed for it, with the same state: gradients are
    summed over the processes as before."""
    model = exported.given
    if not isinstance(model, DistributedDataParallel):
        return planned
    made = object.__new__(type(model))
    made.__dict__.update(model.__dict__)
    made.__dict__["_modules"] = {**model._modules, "module": planned}
    return made


def check_not_spread(model: nn.Module, but: Container[str] = ()) -> None:
    """FB0956 where a step of one process does not hold what `model` computes with; modules at the
    paths `but` are not looked at."""
    sharded = [path or "the model itself" for path in _sharded(model) if path not in but]
    inner = [
        p or "the model itself"
        for p, m in model.named_modules()
        if isinstance(m, DistributedDataParallel)
    ]
    if sharded:
        message = (
            f"{listed(sharded, 3)} is sharded (fully_shard), and a plan needs whole parameters"
        )
        hint = "shard the planned module as one: fully_shard(remat_compile.compile(model, ...))"
        raise FBError(Diagnostic("FB0956", message, hint=hint))
    if inner:
        message = f"{listed(inner, 3)} is a DistributedDataParallel inside of the model"
        hint = "compile what is inside of it, or the whole model before it is wrapped"
        raise FBError(Diagnostic("FB0956", message, hint=hint))


def _sharded(model: nn.Module) -> Iterator[str]:
    """Paths of the modules that `torch.distributed.fsdp` shards."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None:
        kinds = (fsdp.FSDPModule, fsdp.FullyShardedDataParallel)
        yield from (path for path, part in model.named_modules() if isinstance(part, kinds))
