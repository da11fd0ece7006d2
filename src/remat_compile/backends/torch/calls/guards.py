"""Guards of a planned step: conditions of its capture, checked before every step.

A step repeats operators and runs none of the Python that chose them. TorchDynamo's guards say
whether that Python would choose the same; where it has none, the contract of `torch.export` and
`jax.jit` holds (`contract`). Settings of the process that operators depend on count in any case.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ....capture.guards.call_guards import CallGuards, LocalNames, guards_of_call
from ....capture.lowered import Exported
from ....capture.trace.autocast import Autocast
from ....capture.trace.lock import capturing, exchanging
from ....capture.trace.module import unchanged
from .contract import Contract, changed_ties, ties_of


class StepGuards:
    """Guards of one step: they tell a call that it was made for from others."""

    def __init__(self, exported: Exported):
        self._guards = exported.guards or _guards_of(exported)
        model = exported.original
        with exchanging():
            needs_contract = self._guards.needs_contract
            self._contract = Contract(model, exported.changing) if needs_contract else None
        self._ties = ties_of(model)
        self._settings = exported.settings
        self._autocast = exported.autocast
        self._of_model = vars(model)
        self._first = dict(vars(model))

    def changes(self, owner: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        """Return the changes since the capture, by the user's names."""
        changes = [*self._settings.changes()]
        is_off = not torch.is_autocast_enabled(self._autocast.device_type)
        if not (is_off and self._autocast.dtype is None):
            autocast = Autocast.now(self._autocast.device_type)
            if autocast != self._autocast:
                changes.append(f"autocast is {autocast}; at capture it was {self._autocast}")
        if self._contract is not None:
            changes += self._contract.changes(owner)
        by_dynamo, names = self._guards.by_dynamo, self._guards.names
        if by_dynamo is None:
            return changes
        for attributes in self._attributes(owner):
            try:
                local = names.of(attributes, args, kwargs)
                if not by_dynamo.hold(local):
                    # TorchDynamo has no names for what is one tensor.
                    ties = changed_ties(ties_of(owner), self._ties)
                    changes += ties or [by_dynamo.reason(local)]
                    break
            except Exception as error:  # of Python that a guard compares with (`__eq__`)
                said = " ".join(str(error).split())
                changes.append(f"a guard cannot be asked ({type(error).__name__}: {said})")
                break
        return changes

    def _attributes(self, owner: nn.Module) -> list[dict[str, Any]]:
        """Return the attributes of the drop-in; and those of the model itself, where they changed
        by themselves."""
        now, first = self._of_model, self._first
        if len(now) == len(first) and all(now.get(key) is then for key, then in first.items()):
            return [vars(owner)]
        return [vars(owner), {**now, "training": owner.training}]


def _guards_of(exported: Exported) -> CallGuards:
    """Return guards of a model that was captured without them (a plan that is bound), as it is now.
    One of a file (.pt2) has no Python of its own."""
    if not exported.is_live:
        return CallGuards(LocalNames(exported.original), None, exported.changing)
    with capturing(), unchanged(exported.original):
        return guards_of_call(exported.original, exported.args, exported.kwargs, exported.changing)
