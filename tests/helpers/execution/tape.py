"""Graphs of a device without a device: what a call does is written down and done again.

As a graph, a tape repeats the same operators on the same memory, whatever lies there by then, and
knows nothing of Python. After a backward all memory of the tape but the gradients is filled with
what no step gives, as the next step on a GPU would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from remat_compile.backends.torch.graphs import GraphRecorder, Recording
from remat_compile.backends.torch.runtime.engine import storage_bytes

T = TypeVar("T")
MEMORY_ONLY = ("aten::empty", "aten::new_empty", "aten::set_", "aten::detach")
"""They compute nothing that a graph would do again."""


def storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def tensors(made: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]


@dataclass
class Call:
    """An operator with the tensors it was given and those that it gave."""

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    made: list[Tensor]

    def again(self) -> None:
        own = {storage(t) for t in tensors((self.args, self.kwargs))}
        for old, new in zip(self.made, tensors(self.op(*self.args, **self.kwargs)), strict=True):
            if storage(old) not in own:
                old.copy_(new)


class Writing(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, calls: list[Callable[[], None]], made: dict[int, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls, self.made = calls, made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        own = {storage(t) for t in tensors((args, kwargs))}
        if not func._schema.name.startswith(MEMORY_ONLY):
            self.calls.append(Call(func, args, kwargs or {}, tensors(made)).again)
        self.made.update({storage(t): t for t in tensors(made) if storage(t) not in own})
        return made


@dataclass
class Tape(GraphRecorder):
    """`taken` counts the states that a forward took, `drawn` what was drawn from them again."""

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    refuses: bool = False
    records: int = 0
    taken: int = 0
    drawn: int = 0
    _left: list[int] = field(default_factory=list)
    _states: dict[int, Tensor] = field(default_factory=dict)
    _calls: list[Callable[[], None]] = field(default_factory=list)
    _made: dict[int, Tensor] = field(default_factory=dict)

    def record(self, run: Callable[[], T], draws: Sequence[int]) -> tuple[T, Recording]:
        if self.refuses:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        self.records += 1
        is_backward, self._left = self.records % 2 == 0, [*draws]
        calls = self._calls = []
        before = torch.default_generator.get_state()
        with Writing(calls, self._made):
            made = run()
        assert not self._left, "what was to be drawn again was not"
        torch.default_generator.set_state(before)
        kept = {storage(t) for t in tensors(made)}

        def replay() -> None:
            with torch.no_grad():
                for call in calls:
                    call()
                for at, tensor in self._made.items():
                    if is_backward and at not in kept and tensor.is_floating_point():
                        storage_bytes(tensor).fill_(171)

        return made, replay

    def take_state(self, number: int) -> None:
        self.taken += 1

        def take() -> None:
            self._states[number] = torch.default_generator.get_state()

        self._calls.append(take)

    @contextmanager
    def drawing(self, number: int) -> Iterator[None]:
        self.drawn += 1
        self._left.remove(number)  # a graph of CUDA has a generator for each
        before: list[Tensor] = []

        def go_back() -> None:
            before.append(torch.default_generator.get_state())
            torch.default_generator.set_state(self._states[number])

        self._calls.append(go_back)
        yield

        def come_back() -> None:
            torch.default_generator.set_state(before.pop())

        self._calls.append(come_back)

    def noted(self, first: int, before: Tensor, states: Sequence[Tensor]) -> None:
        """Nothing: the tape takes the states itself."""

    def begin(self, first: int) -> None:
        """Nothing, likewise."""

    def held_bytes(self) -> int:
        return sum(t.untyped_storage().nbytes() for t in self._made.values())
