"""Random operators of a step in a call that runs, and while it is recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from ...._torch.devices import generator_module, get_rng_state
from .recorder import GraphRecorder

__all__ = ["RandomCalls"]

Function = Callable[..., Any]
_GETTING = threading.RLock()
"""Held while a function that takes states of the generator is another."""


class RandomCalls:
    """What generated code does with states of the generator, in a call that runs and in a record.

    `in_forward` and `in_backward` are the numbers of the states that each draws from again; they
    are noted until the first backward has ended, since all steps draw alike.
    """

    def __init__(self, space: dict[str, Any], recorder: GraphRecorder) -> None:
        self.in_forward: set[int] = set()
        self.in_backward: set[int] = set()
        self._recorder = recorder
        self._of_state: dict[bytes, int] = {}
        self._stand_ins: list[Tensor] = []
        self._is_noted = False
        self._here = threading.local()
        self._replay = space.get("replay")
        module = generator_module(recorder.device.type)
        self._module = torch if module == "torch" else torch.get_device_module(recorder.device)
        if self._replay is not None:
            space["replay"] = self._again

    @contextmanager
    def noting_forward(self) -> Iterator[None]:
        """A forward that runs: the states that it takes."""
        if self._replay is None or self._is_noted:
            yield
            return
        before, states = get_rng_state(self._recorder.device), list[Tensor]()
        get = self._module.get_rng_state

        def noted(*args: Any) -> Tensor:
            states.append(get(*args))
            self._of_state[bytes(states[-1].tolist())] = len(states) - 1
            return states[-1]

        with self._getting(noted), self._noting(self.in_forward):
            yield
        self._recorder.noted(before, states)
        self._stand_ins = [torch.tensor(number) for number in range(len(states))]

    @contextmanager
    def noting_backward(self) -> Iterator[None]:
        """A backward that runs: the states that it draws from."""
        if self._replay is None or self._is_noted:
            yield
            return
        with self._noting(self.in_backward):
            yield
        self._is_noted = True
        self._of_state.clear()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Both functions, while they are recorded: a state is its number."""
        if self._replay is None:
            yield
            return
        stand_ins = iter(self._stand_ins)

        def numbered(*_: Any) -> Tensor:
            stand_in = next(stand_ins)
            self._recorder.take_state(int(stand_in))
            return stand_in

        def drawn(state: Tensor, op: Function, *args: Any, **kwargs: Any) -> Any:
            with self._recorder.drawing(int(state)):
                return op(*args, **kwargs)

        with self._getting(numbered), self._replaying(drawn):
            yield

    @contextmanager
    def _noting(self, numbers: set[int]) -> Iterator[None]:
        def noted(state: Tensor, op: Function, *args: Any, **kwargs: Any) -> Any:
            numbers.add(self._of_state[bytes(state.tolist())])
            assert self._replay is not None
            return self._replay(state, op, *args, **kwargs)

        with self._replaying(noted):
            yield

    @contextmanager
    def _replaying(self, way: Function) -> Iterator[None]:
        self._here.way = way
        try:
            yield
        finally:
            self._here.way = None

    def _again(self, state: Tensor, op: Function, *args: Any, **kwargs: Any) -> Any:
        way = getattr(self._here, "way", None) or self._replay
        assert way is not None
        return way(state, op, *args, **kwargs)

    @contextmanager
    def _getting(self, way: Function) -> Iterator[None]:
        """On this thread the generator's state is taken in another way."""
        owner, get = threading.get_ident(), self._module.get_rng_state

        def here(*args: Any, **kwargs: Any) -> Tensor:
            state: Tensor = (way if threading.get_ident() == owner else get)(*args, **kwargs)
            return state

        with _GETTING, mock.patch.object(self._module, "get_rng_state", here):
            yield
