"""Values of a model from safetensors files: checked as a whole, then taken all at once."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..device.shards import own_rows
from ..ir.diagnostics import Diagnostic, FBError, fail, listed

_SHOWN = 5  # limit: names in one message


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Gives a model the values of a `.safetensors` file, or of all files of an index
    (`model.safetensors.index.json`).

    Tensors on `meta` get memory on the host and stay the same objects, so that an optimizer that
    was made of them goes on; others are written to. FB0712 without the package safetensors, FB0553
    for what cannot be read, FB0554 for a checkpoint of another model; nothing is changed then.
    """
    held: dict[str, Tensor] = {}
    for each in _files(Path(path)):
        held |= _tensors(each)
    targets = _targets(model)
    taken = dict(_taken(targets, held))
    problems = [*_problems(model, targets, held, taken)]
    if problems:
        hint = "give the checkpoint of this model, or build the model of this checkpoint"
        raise FBError(Diagnostic("FB0554", f"{path}: {why}", hint=hint) for why in problems)
    # All memory is there before the first tensor is changed.
    new = [
        (target, value.detach().to(target.dtype, copy=True))
        for target, value in taken.values()
        if target.is_meta
    ]
    for target, value in new:
        made = nn.Parameter(value, target.requires_grad) if _is_parameter(target) else value
        vars(made).update(vars(target))
        torch.utils.swap_tensors(target, made)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for target, value in taken.values():
            own_rows(target).copy_(own_rows(target, of=value))


def _is_parameter(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter)


def _targets(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; a tied one under each of its names."""
    state: dict[str, Any] = model.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _taken(
    targets: dict[str, Tensor], held: dict[str, Tensor]
) -> Iterator[tuple[int, tuple[Tensor, Tensor]]]:
    """The new value of each tensor of the model, by identity: tied ones once."""
    for name, target in reversed(targets.items()):
        if name in held:
            yield id(target), (target, held[name])


def _problems(
    model: nn.Module,
    targets: dict[str, Tensor],
    held: dict[str, Tensor],
    taken: dict[int, tuple[Tensor, Tensor]],
) -> Iterator[str]:
    missing = [name for name, target in targets.items() if id(target) not in taken]
    if missing:
        yield f"no values for {listed(missing, _SHOWN)} of the model"
    extra = [name for name in held if name not in targets]
    if extra:
        yield f"the model has no {listed(extra, _SHOWN)}"
    for name in held.keys() & targets.keys():
        target, value = targets[name], held[name]
        if value.shape != target.shape or not _widens(value.dtype, target.dtype):
            theirs, ours = (f"{t.dtype} {list(t.shape)}" for t in (value, target))
            yield f"{name} is {theirs} there and {ours} in the model"
        elif not torch.equal(value, taken[id(target)][1]):
            yield f"{name} is tied in the model and has other values there"
    known = {id(target) for target in targets.values()}
    empty = [n for n, b in model.named_buffers() if b.is_meta and id(b) not in known]
    if empty:
        yield f"buffer {listed(empty, _SHOWN)} is on meta, and no checkpoint holds it: set it first"
    referred = [n for n, t in targets.items() if t.is_meta and weakref.getweakrefcount(t)]
    if referred:
        yield f"weak references to {listed(referred, _SHOWN)} would be left without values"


def _widens(dtype: torch.dtype, to: torch.dtype) -> bool:
    """Return whether each number of a type is one of the other, too."""
    same_kind = dtype.is_floating_point == to.is_floating_point
    return dtype == to or (same_kind and torch.promote_types(dtype, to) == to)


def _files(path: Path) -> list[Path]:
    """The file itself, or those that an index beside them names."""
    if path.suffix != ".json":
        return [path]
    try:
        names = {str(name) for name in json.loads(path.read_text())["weight_map"].values()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        fail("FB0553", f"{path} is not an index of safetensors files ({error})", hint=_AGAIN)
    if outside := [name for name in names if Path(name).name != name]:
        message = f"{path} names {listed(outside, _SHOWN)}, which is not a file beside it"
        fail("FB0553", message, hint=_AGAIN)
    return [path.parent / name for name in sorted(names)]


_AGAIN = "fetch the checkpoint again, or give its .safetensors or .index.json file"


def _tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, read where they are used."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        hint = 'pip install "remat-compile[weights]"'
        fail("FB0712", f"this needs safetensors, which cannot be imported ({error})", hint=hint)
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, RuntimeError, ValueError) as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        fail("FB0553", f"{path} is not a whole safetensors file: {line}", hint=_AGAIN)
