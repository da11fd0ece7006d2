"""One architecture trained beside itself in eager, in the process at hand."""

from __future__ import annotations

import random
import re
import resource
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

BUDGETS = ("range:0.8", "range:1.0")
"""From the floor of the model (0) to what the step takes without a plan (1)."""

STEPS = 3
CODE = r"FB\d{4}"


@dataclass(frozen=True)
class Outcome:
    """What one architecture gave. `way` is "whole", "regions", "refused", "error" or "late"."""

    name: str
    origin: str
    way: str = "whole"
    budget: str = ""
    parameters: int = 0
    reason: str = ""
    codes: tuple[str, ...] = ()
    tensors: int = 0
    different: tuple[str, ...] = ()
    same_as: str = ""
    bytes: Mapping[str, int] | None = None
    time_s: float = 0.0
    versions: tuple[str, ...] = field(default=())

    @property
    def equal(self) -> bool:
        return self.way in ("whole", "regions") and not self.different

    @property
    def silent(self) -> bool:
        """Other bits without a word, an error without a code, or a bound that does not hold."""
        over = self.bytes is not None and self.bytes["measured"] > self.bytes["proven"]
        return bool(self.different and not self.same_as) or self.way == "error" or over


def sample(origin: str, name: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    import torch

    torch.manual_seed(7)
    if origin == "transformers":
        from zoo import from_transformers

        model, values = from_transformers.make(name)
        return model, (), values
    from zoo import hand_written

    model, args = hand_written.make(name)
    return model, args, {}


def results(out: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every tensor of what a model returns, under its path."""
    import torch

    if isinstance(out, torch.Tensor):
        yield path or "output", out
    elif isinstance(out, Mapping):
        for key, value in out.items():
            yield from results(value, f"{path}.{key}" if path else str(key))
    elif isinstance(out, list | tuple):
        for index, value in enumerate(out):
            yield from results(value, f"{path}[{index}]")


def own_loss(out: Any) -> Any:
    return out.get("loss") if isinstance(out, Mapping) else None


def loss_of(out: Any) -> Any:
    """The model's own loss, or one that weighs each result."""
    import torch

    if (loss := own_loss(out)) is not None:
        return loss
    trained = [t for _, t in results(out) if t.requires_grad]
    terms = [(t - 0.1 * i).square().mean() / (i + 1) for i, t in enumerate(trained)]
    return torch.stack(terms).sum()


Tensors = dict[str, Any]


def train(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensors:
    """Tensors by name: of each step results, loss, gradients and generator; then the state."""
    import numpy as np
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    tensors: Tensors = {}
    for step in range(STEPS):
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(100 + step)
        optimizer.zero_grad()
        out = model(*args, **kwargs)
        loss = loss_of(out)
        tensors |= {f"{step} result {n}": t.detach().clone() for n, t in results(out)}
        tensors[f"{step} loss"] = loss.detach().clone()
        loss.backward()
        tensors |= {f"{step} gradient {n}": p.grad for n, p in _named(model.named_parameters())}
        tensors = {n: None if t is None else t.detach().clone() for n, t in tensors.items()}
        tensors[f"{step} generator"] = torch.get_rng_state()
        optimizer.step()
    state = {"parameter": model.named_parameters(), "buffer": model.named_buffers()}
    for kind, named in state.items():
        tensors |= {f"{kind} {n}": t.detach().clone() for n, t in _named(named)}
    return tensors


def _named(named: Any) -> Iterator[tuple[str, Any]]:
    """Names as the model has them, without the prefix of `torch.compile`."""
    return ((name.removeprefix("_orig_mod."), tensor) for name, tensor in named)


def same(ours: Any, theirs: Any) -> bool:
    import torch

    if ours is None or theirs is None:
        return ours is theirs
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    ours, theirs = (t.contiguous().reshape(-1).view(torch.uint8) for t in (ours, theirs))
    return torch.equal(ours, theirs)


def compare(ours: Tensors, theirs: Tensors) -> tuple[int, tuple[str, ...]]:
    """How many were compared, and which differ. Results that were left out, which a warning
    told, are not compared."""
    names = [n for n in theirs if n in ours or " result " not in n]
    missing = object()
    different = [n for n in names if not same(ours.get(n, missing), theirs[n])]
    return len(names), (*different, *(f"only ours: {n}" for n in ours if n not in theirs))


def peak(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Bytes of a step over what is held at entry, by the profiler."""
    from remat_compile.device.memory import Mark, measure_regions

    for parameter in model.parameters():
        parameter.grad = None

    def run(mark: Mark) -> None:
        with mark("step"):
            out = model(*args, **kwargs)  # held until the end, as a training loop does
            loss_of(out).backward()

    return measure_regions(run)[1]["step"].peak_bytes_over_entry


@dataclass(frozen=True)
class Bytes:
    """Device bytes of a step, parameters and gradients among them.

    `measured` is what the bound speaks of: the step, without a loss that the caller computes
    and what autograd keeps for that. `ours` and `eager` have it in them.
    """

    proven: int
    measured: int
    ours: int
    eager: int


def memory(ours: Any, twin: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bytes:
    from remat_compile.backends.torch import measure_step
    from remat_compile.ir.graph import CALLER_KINDS
    from remat_compile.ir.semantics.simulate import Sizes

    step = ours.planned_step
    sizes = Sizes.of(step.program).anode
    held = sum(sizes[a.name] for a in step.program.graph.anodes if a.kind in CALLER_KINDS)
    proven = [p for p in step.program.proven if p.schedule == step.schedule.name][-1]
    whole, eager = (held + peak(model, args, kwargs) for model in (ours, twin))
    measured = whole
    if own_loss(ours(*args, **kwargs)) is None:
        for parameter in ours.parameters():
            parameter.grad = None
        measured = measure_step(ours, args, kwargs, loss=loss_of).measured_bytes
    return Bytes(proven.device_bytes, measured, whole, eager)


def compiled(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any]:
    """The drop-in under the first of the budgets for which `dtr`, which is greedy, has a plan."""
    import remat_compile
    from remat_compile import FBError

    for share in BUDGETS[:-1]:
        try:
            return share, remat_compile.compile(model, args, kwargs, budget=share, planner="dtr")
        except FBError as error:
            if error.diagnostics[0].code != "FB0466":
                raise
    share = BUDGETS[-1]
    return share, remat_compile.compile(model, args, kwargs, budget=share, planner="dtr")


def processor_s() -> float:
    """Of this process and those it started."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, who))


def run_one(origin: str, name: str) -> Outcome:
    import torch
    from torch._dynamo.exc import TorchDynamoException

    from remat_compile import FBError

    (model, args, kwargs), (twin, *_) = sample(origin, name), sample(origin, name)
    count = sum(p.numel() for p in twin.parameters())
    theirs = train(twin, args, kwargs)
    outcome = Outcome(name, origin, parameters=count)

    def ended(**made: Any) -> Outcome:
        merged = {**asdict(outcome), **made, "time_s": processor_s()}
        return Outcome(**merged)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            share, ours = compiled(model, args, kwargs)
            tensors, different = compare(train(ours, args, kwargs), theirs)
            return ended(
                codes=codes(caught),
                budget=share,
                tensors=tensors,
                different=different,
                bytes=asdict(memory(ours, twin, args, kwargs)),
            )
        except FBError as error:
            reason = said(error)
        caught.clear()
        (model, args, kwargs) = sample(origin, name)
        reports: list[Any] = []
        options = {"activation_budget": "100%", "planner": "dtr", "report": reports.append}
        by_regions = torch.compile(model, backend="remat", options=options)
        try:
            actual = train(by_regions, args, kwargs)
        except FBError as error:
            return ended(way="refused", reason=f"{reason}; by regions: {said(error)}")
        except TorchDynamoException as error:
            first = " ".join(str(error).split())[:120]
            return ended(way="refused", reason=f"{reason}; TorchDynamo refuses it too: {first}")
        tensors, different = compare(actual, theirs)
        same_as = pytorch_that_gives(actual, origin, name) if different else ""
    regions = reports[-1].regions if reports else ()
    planned = sum(region.status == "planned" for region in regions)
    way = "regions" if planned else "refused"
    counted = f"{planned} of {len(regions)} regions planned"
    return ended(
        way=way,
        reason=f"{reason}; {counted}",
        same_as=same_as,
        codes=codes(caught),
        tensors=tensors,
        different=different,
    )


def pytorch_that_gives(actual: Tensors, origin: str, name: str) -> str:
    """The backend of PyTorch's own under which `torch.compile` gives these bits, where one does:
    the difference from eager is then that of TorchDynamo or of AOTAutograd."""
    import torch

    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        model, args, kwargs = sample(origin, name)
        theirs = train(torch.compile(model, backend=backend), args, kwargs)
        if not compare(actual, theirs)[1]:
            return f'torch.compile(backend="{backend}")'
    return ""


def said(error: Any) -> str:
    """The first diagnostic with its code, in one line."""
    first = error.diagnostics[0]
    return f"{first.code}: {' '.join(first.message.split())}"


def codes(caught: list[warnings.WarningMessage]) -> tuple[str, ...]:
    return tuple(sorted({c for w in caught for c in re.findall(CODE, str(w.message))}))
