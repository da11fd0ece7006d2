"""Models that look into their data, and what trains them beside eager, region by region."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.training import assert_bit_equal, train_steps
from remat_compile.regions import RegionsReport, remat

WIDTH = 24

# TorchDynamo empties the processor's caches for each region, which takes a tenth of a second: it
# writes into a log how long its guards take.
torch._dynamo.guards.profile_guard_manager = lambda *_: 0.0  # type: ignore[attr-defined]


class Stack(nn.Module):
    """Linear layers with dropout and batch normalisation."""

    def __init__(self, depth: int = 3, drop: float = 0.1) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.norm = nn.BatchNorm1d(WIDTH)
        self.drop = nn.Dropout(drop)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        out: Tensor = self.norm(self.drop(x))
        return out


class Branch(nn.Module):
    """Goes one of two ways, by what the data say."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Stack(), Stack()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x * self.scale if x[0, 0] > 0 else x - 1
        out: Tensor = self.second(x)
        return out


class Loop(nn.Module):
    """One block, once for each item of a list, with a print in between."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Stack()

    def forward(self, x: Tensor, names: list[str]) -> Tensor:
        for name in names:
            x = self.block(x)
            print(name, end=" ")
        return x


class Matching(nn.Module):
    """Pairs predictions with targets by a search on lists, as detection models do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Stack()
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        boxes = self.head(self.body(x))
        costs = torch.cdist(boxes.detach(), targets).tolist()
        free = set(range(len(costs)))
        pairs = []
        for target in range(len(costs[0])):
            best = min(sorted(free), key=lambda row: costs[row][target])
            free.discard(best)
            pairs.append(best)
        matched = boxes[torch.tensor(pairs)]
        loss: Tensor = F.l1_loss(matched, targets) + boxes.square().mean()
        return loss


class Speech(nn.Module):
    """A convolutional recogniser with its CTC loss inside, lengths by `tolist`."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Conv1d(8, WIDTH, 3, padding=1)
        self.body = Stack(4, 0.0)
        self.head = nn.Linear(WIDTH, 6)

    def forward(self, x: Tensor, targets: Tensor, lengths: Tensor) -> Tensor:
        frames = F.gelu(self.front(x)).transpose(1, 2)
        batch, time, width = frames.shape
        frames = self.body(frames.reshape(-1, width)).view(batch, time, width)
        logits = F.log_softmax(self.head(frames), -1).transpose(0, 1)
        times: Any = (time,) * batch  # both may be tuples, whatever the signature says
        ends: Any = tuple(lengths.tolist())
        return F.ctc_loss(logits, targets, times, ends, reduction="mean")


def branch() -> tuple[nn.Module, tuple[Any, ...]]:
    return Branch(), (torch.randn(256, WIDTH),)


def loop() -> tuple[nn.Module, tuple[Any, ...]]:
    return Loop(), (torch.randn(256, WIDTH, requires_grad=True), ["a", "b", "c"])


def matching() -> tuple[nn.Module, tuple[Any, ...]]:
    return Matching(), (torch.randn(256, WIDTH), torch.randn(5, 4))


def speech() -> tuple[nn.Module, tuple[Any, ...]]:
    return Speech(), (torch.randn(2, 8, 20), torch.randint(1, 6, (2, 4)), torch.tensor([4, 3]))


FACTORIES: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "branch": branch,
    "loop": loop,
    "matching": matching,
    "speech": speech,
}


def seeded(factory: Callable[[], tuple[nn.Module, tuple[Any, ...]]]) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return factory()


def compiled(model: nn.Module, reports: list[RegionsReport], **options: Any) -> Any:
    chosen = {"planner": "dtr", "report": reports.append, **options}
    return torch.compile(model, backend=remat, options=chosen)


def trained(
    model: nn.Module, args: tuple[Any, ...], steps: int = 3, **options: Any
) -> list[RegionsReport]:
    """Trains a copy of the model in eager and the model compiled, and compares the bits."""
    twin = copy.deepcopy(model)
    reports: list[RegionsReport] = []
    ours = train_steps(compiled(model, reports, **options), args, steps=steps)
    theirs = train_steps(twin, args, steps=steps)
    named = ours.steps[0].grads
    assert all(name.startswith("_orig_mod.") for name in named)
    assert_bit_equal(_without_prefix(ours), theirs)
    return reports


def _without_prefix(record: Any) -> Any:
    def bare(held: Any) -> Any:
        return {name.removeprefix("_orig_mod."): value for name, value in held.items()}

    steps = tuple(
        type(s)(s.outputs, bare(s.grads), s.input_grads, s.rng_after_forward, s.rng_after_backward)
        for s in record.steps
    )
    return type(record)(steps, bare(record.params), bare(record.buffers))
