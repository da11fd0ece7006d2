"""Names of one parameter or buffer (tied weights), looked at before every step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

__all__ = ["Slot", "Ties"]

Slot = tuple[dict[str, Any], str, str]
"""A tensor of a module: its dictionary, its key there, and its path."""


class Ties:
    """Which names of a model are one tensor: a step was made for those. `slots` are the tensors
    that it reads."""

    def __init__(self, model: nn.Module, slots: Sequence[Slot]):
        names: dict[int, list[Slot]] = {}
        for path, module in model.named_modules():
            for held in (module._parameters, module._buffers):
                for key, tensor in held.items():
                    if isinstance(tensor, Tensor):
                        name = f"{path}.{key}" if path else key
                        names.setdefault(id(tensor), []).append((held, key, name))
        self._tied = [(first, other) for first, *others in names.values() for other in others]
        self._slots = slots
        self._joined = dict(self._one_tensor())

    def are_same(self) -> bool:
        """Whether each is still one tensor. KeyError where one is gone."""
        return all(one[at] is other[key] for (one, at, _), (other, key, _) in self._tied)

    def changes(self) -> Iterator[str]:
        """In words, with paths: what is no longer one tensor, and what is one now."""
        for (one, at, path), (other, key, its_path) in self._tied:
            if one.get(at) is not other.get(key):
                yield f"{path} and {its_path} are no longer one tensor, as at capture"
        for path, first in self._one_tensor():
            if self._joined.get(path) != first:
                yield f"{first} and {path} are one tensor now, unlike at capture"

    def _one_tensor(self) -> Iterator[tuple[str, str]]:
        """Paths of slots that hold what an earlier one holds, with the path of that."""
        seen: dict[int, str] = {}
        for held, key, path in self._slots:
            if (tensor := held.get(key)) is not None:
                first = seen.setdefault(id(tensor), path)
                if first != path:
                    yield path, first
