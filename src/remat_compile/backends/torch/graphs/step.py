"""The choice for each call of a step: replay the recorded graphs, or run without them.

The first call runs as ever: libraries come up, and what random operators draw is noted. The second
records both functions and replays them; each later one copies its arguments to where the record
has them, and hands out copies of results and gradients, since the next replay writes over them.
What the backward needs stays in the memory of the record, which no other call may touch in
between: a forward that comes before the backward of the one before it runs without the record.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ....ir.diagnostics import Diagnostic, FBError, fail, render
from ..runtime import Arena, HostCopies, Tickets
from .hosts import OnDevice
from .memory import Fresh, fill, static_like
from .random import RandomCalls
from .recorder import GraphRecorder

Function = Callable[..., Any]
_MOST_MOVES = 8


class StepGraphs:
    """The two functions of a step with their records; `is_watched` says that a call is measured.

    `own` of the forward's arguments are parameters and buffers, the first `results` of what it
    gives are the caller's. `with_copies` are the calls of a plan that copies to the host: their
    last argument to the forward, and the last before the tangents to the backward.
    """

    def __init__(
        self,
        forward: Function,
        backward: Function,
        recorder: GraphRecorder,
        is_watched: Callable[[], bool],
        *,
        own: int,
        results: int,
        tangents: int,
        with_copies: bool,
    ) -> None:
        self.recorder = recorder
        self.replayed = 0
        self._is_watched = is_watched
        self._own, self._results = own, results
        self._tangents, self._with_copies = tangents, with_copies
        self._random = RandomCalls(forward.__globals__, recorder)
        self._forward, self._backward = forward, backward
        self._is_warm = False
        self._is_off = False
        self._moves = 0
        self._last_key: object = None
        self._record: _Record | None = None
        self._tickets: Tickets[_Record] = Tickets()
        self._no_ticket: Tensor | None = None
        self._tangents_like: list[Tensor] = []

    def forward(self, args: list[Any], constants: tuple[Tensor, ...]) -> tuple[Any, ...]:
        """Return the results of the forward, and behind them a ticket for its backward."""
        record = self._record_for(args, constants)
        if record is None:
            with self._random.noting_forward():
                made = self._forward(args, constants)
            if self._no_ticket is None:
                self._no_ticket = torch.zeros(1, dtype=torch.int64)
            return (*made, self._no_ticket)
        made = record.forward(args)
        args.clear()
        self.replayed += 1
        return (*made, self._tickets.issue(record))

    def backward(self, args: list[Any], constants: tuple[Tensor, ...]) -> Any:
        """The gradients. FB0965 for a second backward of a call that was replayed."""
        first = len(args) - self._tangents
        ticket = args.pop(first - 1)  # holds its memory
        tangents = args[first - 1 :]
        if int(ticket.item()) == 0:
            self._tangents_like = [t.detach().to("meta") for t in tangents]
            del tangents
            with self._random.noting_backward():
                made = self._backward(args, constants)
            self._is_warm = True
            return made
        args.clear()
        record = self._tickets.redeem(ticket)
        if record is None:
            fail(
                "FB0965",
                "what this backward needs is gone: a call that CUDA graphs ran serves one backward",
                hint="leave out retain_graph and hooks on saved tensors, or compile without "
                "cuda_graph=True",
            )
        return record.backward(tangents)

    def _record_for(self, args: list[Any], constants: tuple[Tensor, ...]) -> _Record | None:
        """The record that this call may use."""
        if self._is_off or self._is_watched() or self._tickets.is_any_out():
            return None
        copies = args[-1] if self._with_copies else None
        key = (
            tuple(arg.data_ptr() for arg in args[: self._own]),
            _settings(),
            None if copies is None else id(copies.arena),
        )
        if self._record is not None and self._record.key == key:
            self._moves = 0
            return self._record
        self._record = None
        moved, self._last_key = key != self._last_key, key
        if moved:
            self._moves += 1
        if self._moves > _MOST_MOVES:
            message = (
                "parameters lie elsewhere, or other kernels are asked for, from call to call: the "
                "step runs without CUDA graphs from here on"
            )
            self._end(message, "leave out cuda_graph=True, or keep the parameters where they are")
        elif self._is_warm and not moved:
            self._record = self._recorded(key, args, constants)
        return self._record

    def _recorded(
        self, key: object, args: list[Any], constants: tuple[Tensor, ...]
    ) -> _Record | None:
        try:
            return _Record(self, key, args, constants)
        except FBError as error:
            why = error.diagnostics[0].message
        except Exception as error:  # whatever a kernel says that cannot be recorded
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
        self._end(f"CUDA graphs cannot hold this step, which runs without them: {why}")
        return None

    def _end(self, message: str, hint: str = "leave out cuda_graph=True") -> None:
        self._is_off = True
        warnings.warn(
            render(Diagnostic("FB0966", message, hint=hint), level="warning"), stacklevel=2
        )


class _Record:
    """Both functions recorded for parameters that lie where they do."""

    def __init__(
        self, step: StepGraphs, key: object, args: list[Any], constants: tuple[Tensor, ...]
    ) -> None:
        self.key = key
        self._recorder = recorder = step.recorder
        self.arena: Arena | None = None
        copies: HostCopies | None = None
        given = len(args)
        if step._with_copies:
            given -= 1
            copies = args[-1].another()
            self.arena = copies.arena
        _check_on(recorder.device, args[:given])
        self._inputs = [*args[: step._own], *map(static_like, args[step._own : given])]
        self._static = [*range(step._own, given)]
        for at in self._static:  # refused here, where it cannot be
            fill(self._inputs[at], args[at])
        places = {id(value): at for at, value in enumerate(self._inputs)}
        random = step._random
        self._backward_first = random.taken_in_forward

        def forward() -> Any:
            behind = () if copies is None else (copies,)
            made = step._forward([*self._inputs, *behind], constants)
            if copies is not None:
                copies.join()
            return made

        with OnDevice(recorder.device), random.recording():
            made, self._replay_forward = recorder.record(forward, random.in_forward)
            made = [*made]
            results, made[: step._results] = made[: step._results], []
            self._returned = {
                at: places[id(value)] for at, value in enumerate(results) if id(value) in places
            }
            self._fresh = Fresh([None if i in self._returned else r for i, r in enumerate(results)])
            # What is saved: the caller's own tensors, and what stands for all else.
            self._saved = [places.get(id(value)) for value in made]
            _check_on(recorder.device, self._fresh.tensors)
            self._tangents = [static_like(t, recorder.device) for t in step._tangents_like]
            if copies is not None:
                made[-1] = copies
            made += self._tangents
            grads, self._replay_backward = recorder.record(
                lambda: step._backward(made, constants), random.in_backward
            )
        self._grads = Fresh(grads)
        _check_on(recorder.device, self._grads.tensors)
        self._nothing = torch.empty(0, device=recorder.device)

    def forward(self, args: list[Any]) -> list[Any]:
        self._recorder.begin(0)
        for at in self._static:
            fill(self._inputs[at], args[at])
        self._replay_forward()
        made: list[Any] = self._fresh.copies()
        for at, place in self._returned.items():
            made[at] = args[place]
        return [*made, *(self._nothing if at is None else args[at] for at in self._saved)]

    def backward(self, tangents: Sequence[Tensor]) -> list[Tensor | None]:
        for static, tangent in zip(self._tangents, tangents, strict=True):
            fill(static, tangent)
        self._recorder.begin(self._backward_first)
        self._replay_backward()
        return self._grads.copies()


def _check_on(device: torch.device, values: Sequence[Any]) -> None:
    for value in values:
        if isinstance(value, Tensor) and value.device != device:
            raise RuntimeError(f"a tensor of the step lies on {value.device}")


def _settings() -> tuple[Any, ...]:
    """Return the settings that choose kernels besides their arguments: a record keeps those that it
    was made with."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    precision = torch._C._get_fp32_precision_getter
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        precision("cuda", "matmul"),
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_bf16_reduced_precision_reduction,
        precision("cuda", "conv"),
        precision("cuda", "rnn"),
        cudnn.enabled,
        cudnn.benchmark,
        cudnn.deterministic,
    )
