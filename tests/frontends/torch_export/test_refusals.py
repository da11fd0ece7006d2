"""What a stranger's model meets: a code, the line, and what to do, for each kind of model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import remat_compile
from remat_compile import FBError

X = torch.linspace(-1, 1, 48).reshape(6, 8)


class Net(nn.Module):
    e: nn.Module

    def __init__(self, **held: Any) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        for name, value in held.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    part: nn.Module
    k: Tensor


class Refusal(NamedTuple):
    """The smallest input of one kind: what is said of it, and whether its line is named."""

    code: str
    says: str
    has_line: bool = True


CASES: dict[type[nn.Module], tuple[Refusal, Callable[[type[Any]], nn.Module], tuple[Any, ...]]] = {}


def refused(
    code: str, says: str, *args: Any, has_line: bool = True, **held: Any
) -> Callable[[type[nn.Module]], type[nn.Module]]:
    def add(kind: type[nn.Module]) -> type[nn.Module]:
        CASES[kind] = Refusal(code, says, has_line), lambda k: k(**held), args or (X,)
        return kind

    return add


# -- tensors that are not dense --------------------------------------------------------


@refused("FB0902", "k is a sparse_coo tensor", has_line=False, k=torch.eye(6).to_sparse())
class SparseBuffer(Net):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm(self.k, self.a(x))


@refused("FB0902", "args[1] is a sparse_coo tensor", X, torch.eye(6).to_sparse(), has_line=False)
class SparseArgument(Net):
    def forward(self, x: Tensor, k: Tensor) -> Tensor:
        return torch.sparse.mm(k, self.a(x))


@refused("FB0902", "is a sparse_coo tensor")
class SparseInside(Net):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sparse.mm((x @ x.t()).to_sparse(), self.a(x))  # here


@refused("FB0902", "is a sparse_coo tensor", torch.arange(6), e=nn.Embedding(8, 8, sparse=True))
class SparseGradient(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.a(self.e(x))  # here


NESTED = torch.nested.nested_tensor([X[:2], X[2:3]], layout=torch.jagged)


@refused("FB0902", "args[0] is a jagged tensor", NESTED, has_line=False)
class NestedArgument(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.a(x).values()


@refused("FB0501", "PyTorch cannot capture the forward")
class NestedInside(Net):
    def forward(self, x: Tensor) -> Tensor:
        jagged = torch.nested.nested_tensor([x[:2], x[2:3]], layout=torch.jagged)  # here
        return self.a(jagged).values()


# -- state that the first call makes ---------------------------------------------------


@refused("FB0513", "part (LazyLinear) makes its parameters", has_line=False, part=nn.LazyLinear(8))
class Lazy(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.part(self.a(x))


@refused("FB0513", "makes buffer bias on its first call", has_line=False)
class BufferOfFirstCall(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is None:
            self.register_buffer("bias", torch.arange(8.0))
        return self.a(x) + self.bias


# -- code that no capture sees ---------------------------------------------------------


@refused(
    "FB0507", "part (RecursiveScriptModule) is TorchScript", has_line=False,
    part=torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.Tanh())),
)  # fmt: skip
class Scripted(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.part(self.a(x))


@refused(
    "FB0507", "part (TopLevelTracedModule) is TorchScript", has_line=False,
    part=torch.jit.trace(nn.Linear(8, 8), X),
)  # fmt: skip
class Traced(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.part(self.a(x))


@refused("FB0501", "its Python reads a number that it computes")
class Branches(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return h if h.sum() > 0 else h * 2  # here


@refused("FB0501", "depends on data")
class SizeOfData(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.a(x[x.sum(1) > 0])  # here


@refused("FB0501", "PyTorch cannot capture the forward of ByNumpy")
class ByNumpy(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + torch.from_numpy(self.a(x).detach().numpy() * 2)  # here


@refused("FB0501", "PyTorch cannot capture the forward of InAThread", has_line=False)
class InAThread(Net):
    def forward(self, x: Tensor) -> Tensor:
        made: list[Tensor] = []
        thread = threading.Thread(target=lambda: made.append(self.a(x)))
        thread.start()
        thread.join()
        return made[0]


@refused("FB0501", "PyTorch cannot capture the forward of BackwardInside")
class BackwardInside(Net):
    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x).sum()
        h.backward(retain_graph=True)  # here
        return h


# -- the model's own mistakes ----------------------------------------------------------


@refused("FB0501", "the model itself fails on the sample: ValueError: no luck")
class Raises(Net):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("no luck")  # here


@refused("FB0501", "the model itself fails on the sample: RuntimeError: The size of tensor a")
class WrongShape(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + torch.ones(5)  # here


# -- effects ---------------------------------------------------------------------------


@refused("FB0508", "the forward writes to args[0]")
class WritesArgument(Net):
    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)  # here
        return self.a(x)


@refused("FB0508", "the forward writes to parameter a.weight")
class WritesParameter(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.a.weight.mul_(0.9)  # here
        return self.a(x)


@refused("FB0512", "the forward sets the state of PyTorch's random numbers")
class Seeds(Net):
    def forward(self, x: Tensor) -> Tensor:
        torch.manual_seed(0)  # here
        return F.dropout(self.a(x), 0.5)


@refused("FB0512", "the forward sets the state of PyTorch's random numbers")
class Forks(Net):
    """Whose results are equal once: it draws the same numbers in each step."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.random.fork_rng():  # here
            noise = torch.randn(6, 8)
        return self.a(x) + noise


# -- checkpoints of the model's own ----------------------------------------------------

BATCH_NORM = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))


@refused("FB0512", "the forward checkpoints a part that writes to a buffer", part=BATCH_NORM)
class CheckpointedBatchNorm(Net):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.part, self.a(x), use_reentrant=False)  # here


@refused(
    "FB0511", "a backward of the model's own calls its forward", has_line=False, part=BATCH_NORM
)
class CheckpointedAgain(Net):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.part, self.a(x), use_reentrant=True)


class _OwnCheckpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: nn.Module, x: Tensor) -> Tensor:
        ctx.part = part
        ctx.save_for_backward(x)
        with torch.no_grad():
            return part(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            made = ctx.part(x)  # here
        torch.autograd.backward(made, gradient)
        return None, x.grad


@refused(
    "FB0511",
    "a backward of the model's own calls a module",
    has_line=False,
    part=nn.Linear(8, 8),
)
class CheckpointedByHand(Net):
    def forward(self, x: Tensor) -> Tensor:
        return _OwnCheckpoint.apply(self.part, self.a(x))


def planned(model: nn.Module, args: tuple[Any, ...]) -> nn.Module:
    return remat_compile.compile(
        model, args, activation_budget="100%", planner="store-all", progress=False, cache=False
    )


@pytest.mark.parametrize("kind", CASES)
def test_each_kind_is_refused_with_its_line_and_a_way_out(kind: type[nn.Module]) -> None:
    expected, make, args = CASES[kind]
    given = tuple(arg.clone() if arg.layout is torch.strided else arg for arg in args)
    with pytest.raises(FBError) as error:
        planned(make(kind), given)
    (diagnostic,) = error.value.diagnostics
    assert (diagnostic.code, diagnostic.hint is not None) == (expected.code, True)
    assert expected.says in diagnostic.message
    assert "github" not in str(error.value)
    if expected.has_line:
        lines = Path(__file__).read_text().splitlines()
        named = diagnostic.message.rpartition("test_refusals.py:")[2]
        assert "# here" in lines[int(named.split(")")[0].split()[0]) - 1]


def _forward_mode(step: nn.Module) -> None:
    with forward_ad.dual_level():
        step(forward_ad.make_dual(X, X))


def _grad(step: nn.Module) -> None:
    def loss(held: dict[str, Tensor]) -> Tensor:
        made: Tensor = torch.func.functional_call(step, held, (X,))
        return made.sum()

    torch.func.grad(loss)({name: p.detach() for name, p in step.named_parameters()})


OTHER_DERIVATIVES: dict[str, Callable[[nn.Module], object]] = {
    "vmap": lambda step: torch.vmap(step)(X[None]),
    "jvp": lambda step: torch.func.jvp(step, (X,), (X,)),
    "grad": _grad,
    "forward mode": _forward_mode,
}


@pytest.mark.parametrize("how", OTHER_DERIVATIVES)
def test_a_planned_step_has_one_forward_and_one_backward(how: str) -> None:
    step = planned(nn.Sequential(nn.Linear(8, 8), nn.Tanh()), (X,))
    with pytest.raises(FBError) as error:
        OTHER_DERIVATIVES[how](step)
    assert [d.code for d in error.value.diagnostics] == ["FB0949"]
    step(X).sum().backward()
