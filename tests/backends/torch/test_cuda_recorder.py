"""What is asked of CUDA, of which there is none here: a stand-in notes the calls, in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from remat_compile.backends.torch.graphs.cuda import CudaRecorder
from remat_compile.backends.torch.graphs.hosts import OnDevice

SEED = 1234


def state(offset: int) -> Tensor:
    """Of a generator on CUDA: eight bytes of the seed, then eight of the offset."""
    held = SEED.to_bytes(8, "little") + offset.to_bytes(8, "little")
    return torch.tensor(list(held), dtype=torch.uint8)


def offset_of(held: Tensor) -> int:
    assert held[:8].tolist() == list(SEED.to_bytes(8, "little"))
    return int.from_bytes(bytes(held[8:].tolist()), "little")


@dataclass
class Cuda:
    """`torch.cuda`: a graph has the generators that were registered, and must be told of each
    before it begins."""

    calls: list[object] = field(default_factory=list)
    now: int = 0

    def __post_init__(self) -> None:
        self.default = Generator("default", self)
        self.default_generators = [self.default]

    def current_device(self) -> int:
        return 0

    def graph_pool_handle(self) -> tuple[int, int]:
        return (0, 7)

    def Stream(self, device: torch.device) -> str:
        return f"stream on {device}"

    def CUDAGraph(self) -> Graph:
        return Graph(self)

    @contextmanager
    def graph(self, graph: Graph, *, pool: Any, stream: Any, capture_error_mode: str) -> Iterator:
        self.calls.append(("begin", pool, stream, capture_error_mode))
        graph.is_open = True
        yield
        self.calls.append("end")

    def get_rng_state(self, device: torch.device) -> Tensor:
        return state(self.now)

    def memory_snapshot(self) -> list[dict[str, Any]]:
        pools = [((0, 7), 100), ((0, 8), 1000), ([0, 7], 20)]
        return [{"segment_pool_id": pool, "total_size": size} for pool, size in pools]


@dataclass
class Generator:
    name: object
    cuda: Cuda

    def graphsafe_get_state(self) -> object:
        return self.cuda.default.name

    def graphsafe_set_state(self, other: Any) -> None:
        self.name = getattr(other, "name", other)

    def set_state(self, held: Tensor) -> None:
        self.cuda.calls.append((self.name, offset_of(held)))


@dataclass
class Graph:
    cuda: Cuda
    is_open: bool = False

    def register_generator_state(self, generator: Generator) -> None:
        assert not self.is_open
        self.cuda.calls.append(("register", generator.name))

    def replay(self) -> None:
        self.cuda.calls.append("replay")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    stand_in = Cuda()
    names = iter(range(100))
    for name in dir(stand_in):
        if not name.startswith("_") and hasattr(torch.cuda, name):
            monkeypatch.setattr(torch.cuda, name, getattr(stand_in, name))
    monkeypatch.setattr(torch, "Generator", lambda device: Generator(next(names), stand_in))
    return stand_in


def test_states_of_later_calls(cuda: Cuda) -> None:
    """A forward took states 8 and 20 behind its begin. The backward draws from the second one
    twice, each time with a generator of its own (in a graph each goes on from draw to draw), and
    from one that it took itself, 4 behind its own begin."""
    recorder = CudaRecorder(torch.device("cuda"))
    recorder.noted(0, state(100), [state(108), state(120)])
    recorder.noted(2, state(300), [state(304)])
    drawn = []

    def backward() -> str:
        for _ in range(2):
            with recorder.drawing(1):
                drawn.append(cuda.default.name)
            drawn.append(cuda.default.name)
        with recorder.drawing(2):
            drawn.append(cuda.default.name)
        return "made"

    made, replay = recorder.record(backward, [1, 1, 2])
    assert made == "made"
    assert drawn == [0, "default", 1, "default", 2]
    begin = ("begin", (0, 7), "stream on cuda:0", "thread_local")
    assert cuda.calls == [*(("register", n) for n in range(3)), begin, "end"]
    cuda.calls.clear()
    for now in (500, 2**40):
        cuda.now = now
        recorder.begin(0)
        cuda.now += 1000  # the default generator goes on before the backward
        recorder.begin(2)
        replay()
        assert cuda.calls == [(0, now + 20), (1, now + 20), (2, now + 1004), "replay"]
        cuda.calls.clear()


def test_the_generator_comes_back_after_an_error(cuda: Cuda) -> None:
    recorder = CudaRecorder(torch.device("cuda", 0))

    def fails() -> None:
        with recorder.drawing(0):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        recorder.record(fails, [0])
    assert cuda.default.name == "default"


def test_more_draws_than_were_noted_are_refused(cuda: Cuda) -> None:
    recorder = CudaRecorder(torch.device("cuda", 0))

    def draws_twice() -> None:
        for _ in range(2):
            with recorder.drawing(0):
                pass

    with pytest.raises(RuntimeError, match="runs more often than in the step before"):
        recorder.record(draws_twice, [0])


def test_bytes_of_its_own_pool(cuda: Cuda) -> None:
    assert CudaRecorder(torch.device("cuda")).held_bytes() == 120


def test_what_computes_on_the_host_is_refused() -> None:
    host, other = torch.zeros(4), torch.ones(4, device="meta")
    with OnDevice(torch.device("meta")):
        _ = other + 1
        host[2:].copy_(host[:2])  # memory that was there
        with pytest.raises(RuntimeError, match="computes on the host"):
            _ = host + 1
