"""Random operators of a step in a call that runs, and while it is recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from ....device.devices import generator_module, get_rng_state
from .recorder import GraphRecorder

Function = Callable[..., Any]
_GETTING = threading.RLock()
"""Lock around the exchange of a function that takes states of the generator."""


class RandomCalls:
    """Calls by which generated code takes and sets states of the generator, run or recorded.

    `in_forward` and `in_backward` are the numbers of the states that each draws from again, once
    for each time; they are noted until the first backward has ended, since all steps draw alike.
    """

    def __init__(self, space: dict[str, Any], recorder: GraphRecorder) -> None:
        self.in_forward: list[int] = []
        self.in_backward: list[int] = []
        self._recorder = recorder
        self._of_state: dict[bytes, int] = {}
        self._forward_takes: list[int] = []
        self._backward_takes: list[int] = []
        self._is_noted = False
        self._here = threading.local()
        self._replay = space.get("replay")
        module = generator_module(recorder.device.type)
        self._module = torch if module == "torch" else torch.get_device_module(recorder.device)
        if self._replay is not None:
            space["replay"] = self._again

    @property
    def taken_in_forward(self) -> int:
        """Return the number of states that a forward takes: the backward's have numbers from there
        on."""
        return len(self._forward_takes)

    @contextmanager
    def noting_forward(self) -> Iterator[None]:
        """A forward that runs: the states that it takes, and those that it draws from."""
        if self._replay is None or self._is_noted:
            yield
            return
        with self._noting(0) as (self._forward_takes, self.in_forward):
            yield

    @contextmanager
    def noting_backward(self) -> Iterator[None]:
        """A backward that runs, likewise: some operators there count as random."""
        if self._replay is None or self._is_noted:
            yield
            return
        with self._noting(self.taken_in_forward) as (self._backward_takes, self.in_backward):
            yield
        self._is_noted = True
        self._of_state.clear()

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Both functions, while they are recorded: a state is its number."""
        if self._replay is None:
            yield
            return
        takes = iter([*self._forward_takes, *self._backward_takes])

        def numbered(*_: Any) -> Tensor:
            number = next(takes)
            self._recorder.take_state(number)
            return torch.tensor(number)

        def drawn(state: Tensor, op: Function, *args: Any, **kwargs: Any) -> Any:
            with self._recorder.drawing(int(state)):
                return op(*args, **kwargs)

        with self._getting(numbered), self._replaying(drawn):
            yield

    @contextmanager
    def _noting(self, first: int) -> Iterator[tuple[list[int], list[int]]]:
        """Numbers, from `first` on, of the states that a function takes, in its order, and of those
        that it draws from."""
        takes, draws = list[int](), list[int]()
        before, states = get_rng_state(self._recorder.device), list[Tensor]()
        get = self._module.get_rng_state
        of_state: dict[bytes, int] = {}

        def taken(*args: Any) -> Tensor:
            state: Tensor = get(*args)
            if not self._is_replaying():  # which takes the state to put it back
                # Where nothing was drawn between two states, both are the first one.
                takes.append(of_state.setdefault(_key(state), first + len(states)))
                self._of_state[_key(state)] = takes[-1]
                states.append(state)
            return state

        def drawn(state: Tensor, op: Function, *args: Any, **kwargs: Any) -> Any:
            draws.append(self._of_state[_key(state)])
            assert self._replay is not None
            self._here.is_replaying = True
            try:
                return self._replay(state, op, *args, **kwargs)
            finally:
                self._here.is_replaying = False

        with self._getting(taken), self._replaying(drawn):
            yield takes, draws
        self._recorder.noted(first, before, states)

    def _is_replaying(self) -> bool:
        return getattr(self._here, "is_replaying", False)

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


def _key(state: Tensor) -> bytes:
    return bytes(state.tolist())
