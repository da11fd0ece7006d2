"""Trains architectures beside themselves in eager, bit for bit, and writes the table.

    python benchmarks/models.py [NAME ...] [--state FILE] [--write docs/models.md]

Each architecture runs in a process of its own, with a time limit. What `--state` already
holds of the same versions is not run again, so a run that was cut short goes on where it
stopped. The architectures of `transformers` need that package, which the tests do not.

A model is made twice from one seed by its own constructor. One is handed to `compile` as it
is, under a budget between its floor and what it takes unplanned; where that is refused, to
`torch.compile(backend="remat")`. Both train three steps from equal random states. Compared in
every bit: each result, the loss, each gradient, each parameter and buffer, and the state of
the generator. A fourth step is measured by PyTorch's profiler.

Ends with 1 where a bit differs or an error has no code, where a step takes more than was
proven, or where fewer than 95 of 100 architectures are equal.
"""

from __future__ import annotations

import datetime
import json
import multiprocessing
import random
import resource
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

LIMIT_S = 900.0
"""For one architecture by the clock, on a machine that may do other things."""

BUDGETS = ("range:0.8", "range:1.0")
"""From the floor of the model (0) to what the step takes without a plan (1)."""

KNOWN = {
    "hubert": "its masks are NumPy's, which TorchDynamo draws with PyTorch",
    "nystromformer": "its attention adds a mask of all positions to scores of landmarks; in eager "
    "transformers leaves out a mask of ones, under any tracing it does not",
    "wav2vec2": "its masks are NumPy's, which TorchDynamo draws with PyTorch",
}
"""Why bits differ or a model is refused, where that was looked into."""

STEPS = 3
ENOUGH = 0.95
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
    told: tuple[str, ...] = ()
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


# In the process of one architecture.


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


Found = dict[str, Any]


def train(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Found:
    """Tensors by name: of each step results, loss, gradients and generator; then the state."""
    import numpy as np
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    found: Found = {}
    for step in range(STEPS):
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(100 + step)
        optimizer.zero_grad()
        out = model(*args, **kwargs)
        loss = loss_of(out)
        found |= {f"{step} result {n}": t.detach().clone() for n, t in results(out)}
        found[f"{step} loss"] = loss.detach().clone()
        loss.backward()
        found |= {f"{step} gradient {n}": p.grad for n, p in _named(model.named_parameters())}
        found = {n: None if t is None else t.detach().clone() for n, t in found.items()}
        found[f"{step} generator"] = torch.get_rng_state()
        optimizer.step()
    state = {"parameter": model.named_parameters(), "buffer": model.named_buffers()}
    for kind, named in state.items():
        found |= {f"{kind} {n}": t.detach().clone() for n, t in _named(named)}
    return found


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


def compare(ours: Found, theirs: Found) -> tuple[int, tuple[str, ...]]:
    """How many were compared, and which differ. Results that were left out, which a warning
    told, are not compared."""
    names = [n for n in theirs if n in ours or " result " not in n]
    missing = object()
    different = [n for n in names if not same(ours.get(n, missing), theirs[n])]
    return len(names), (*different, *(f"only ours: {n}" for n in ours if n not in theirs))


def peak(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Bytes of a step over what is held at entry, by the profiler."""
    from remat_compile._torch.alloc import Mark, measure_regions

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
                told=codes(caught),
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
            found = train(by_regions, args, kwargs)
        except FBError as error:
            return ended(way="refused", reason=f"{reason}; by regions: {said(error)}")
        except TorchDynamoException as error:
            first = " ".join(str(error).split())[:120]
            return ended(way="refused", reason=f"{reason}; TorchDynamo refuses it too: {first}")
        tensors, different = compare(found, theirs)
        same_as = pytorch_that_gives(found, origin, name) if different else ""
    regions = reports[-1].regions if reports else ()
    planned = sum(region.status == "planned" for region in regions)
    way = "regions" if planned else "refused"
    counted = f"{planned} of {len(regions)} regions planned"
    return ended(
        way=way,
        reason=f"{reason}; {counted}",
        same_as=same_as,
        told=codes(caught),
        tensors=tensors,
        different=different,
    )


def pytorch_that_gives(found: Found, origin: str, name: str) -> str:
    """The backend of PyTorch's own under which `torch.compile` gives these bits, where one does:
    the difference from eager is then that of TorchDynamo or of AOTAutograd."""
    import torch

    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        model, args, kwargs = sample(origin, name)
        theirs = train(torch.compile(model, backend=backend), args, kwargs)
        if not compare(found, theirs)[1]:
            return f'torch.compile(backend="{backend}")'
    return ""


def said(error: Any) -> str:
    """The first diagnostic with its code, in one line."""
    first = error.diagnostics[0]
    return f"{first.code}: {' '.join(first.message.split())}"


def codes(caught: list[warnings.WarningMessage]) -> tuple[str, ...]:
    import re

    return tuple(sorted({c for w in caught for c in re.findall(CODE, str(w.message))}))


# In the process that starts them.


def _import_everything() -> None:
    """What every child needs, once. (PyTorch may be forked until it has run a backward.)"""
    import importlib

    importlib.import_module("remat_compile.driver.dynamo")
    importlib.import_module("remat_compile.frontends.torch_export")
    if any(package.startswith("transformers") for package in versions()):
        importlib.import_module("transformers").AutoModelForCausalLM  # noqa: B018 (loads modules)


def versions() -> tuple[str, ...]:
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for package in ("torch", "transformers"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return tuple(found)


def in_own_process(origin: str, name: str) -> Outcome:
    """Forked off this process, which has imported everything and run nothing."""
    began = time.monotonic()
    fork = multiprocessing.get_context("fork")
    receiving, sending = fork.Pipe(duplex=False)
    child = fork.Process(target=_report, args=(sending, origin, name))
    child.start()
    sending.close()
    reason = "" if receiving.poll(LIMIT_S) else f"not done within {LIMIT_S:.0f} s"
    way = "late" if reason else "error"
    if not reason:
        try:
            made: Outcome | str = receiving.recv()
        except EOFError:
            made = "the process died"
        if isinstance(made, Outcome):
            child.join()
            return made
        reason = made
    child.kill()
    child.join()
    return Outcome(name, origin, way, reason=reason, time_s=time.monotonic() - began)


def _report(sending: Any, origin: str, name: str) -> None:
    try:
        sending.send(run_one(origin, name))
    except Exception as error:
        traceback.print_exc()
        first = (str(error).strip().splitlines() or [""])[0][:300]
        sending.send(f"{type(error).__name__}: {first}")


def architectures() -> list[tuple[str, str]]:
    from zoo import from_transformers, hand_written

    zoos = {"hand-written": hand_written, "transformers": from_transformers}
    return [(origin, name) for origin, zoo in zoos.items() for name in zoo.ARCHITECTURES]


def read_state(path: Path | None) -> dict[tuple[str, str], Outcome]:
    """The outcomes that were written, those of other versions left out."""
    if path is None or not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    outcomes = [Outcome(**json.loads(line)) for line in lines]
    return {(o.origin, o.name): o for o in outcomes if tuple(o.versions) == versions()}


def row(o: Outcome) -> str:
    share = of_eager = "–"
    if o.bytes is not None:
        share = f"{o.bytes['measured'] / o.bytes['proven']:.3f}"
        of_eager = f"{o.bytes['ours'] / o.bytes['eager']:.2f}"
    bits = f"{o.tensors} equal" if o.equal else "–"
    if o.different:
        bits = f"**{len(o.different)} of {o.tensors} differ**, {o.different[0]} first"
        if o.same_as:
            bits += f"; all equal to PyTorch's own `{o.same_as}`"
    way = {"late": "out of time", "error": "**error**"}.get(o.way, o.way)
    told = ", ".join(o.told)
    known = "" if o.equal else KNOWN.get(o.name, "")
    parts = (known, o.reason.replace("|", "/")[:240], told)
    note = "; ".join(part for part in parts if part)
    cells = (
        o.name,
        o.origin,
        f"{o.parameters:,}",
        f"{o.time_s:.0f} s",
        way,
        o.budget or "–",
        share,
        of_eager,
    )
    return "| " + " | ".join((*cells, bits, note)) + " |"


def page(outcomes: list[Outcome]) -> str:
    equal = sum(o.equal for o in outcomes)
    whole = sum(o.equal and o.way == "whole" for o in outcomes)
    silent = [o.name for o in outcomes if o.silent]
    shares = sorted(o.bytes["measured"] / o.bytes["proven"] for o in outcomes if o.bytes)
    counted = (
        f"**{equal} of {len(outcomes)} are equal in every bit** ({whole} as one planned step, "
        f"{equal - whole} by regions); {len(outcomes) - equal} are not, with what is known of it "
        "in their rows. "
        f"Differences without a reason: {', '.join(silent) or 'none'}. "
        f"{len(architectures()) - len(outcomes)} more in `benchmarks/zoo` were not run."
    )
    if shares:
        counted += (
            f" Measured over proven: {shares[0]:.3f} to {shares[-1]:.3f}, "
            f"median {shares[len(shares) // 2]:.3f}."
        )
    head = "| model | from | parameters | time | status | budget | measured/proven | of eager | "
    head += "bits | note |"
    lines = [
        "# Architectures, trained beside themselves",
        "",
        f"Written by `benchmarks/models.py` on {datetime.date.today()} with "
        f"{', '.join(versions())}, float32, on the CPU, one thread.",
        "",
        "Each model comes from its own constructor with a small configuration and random weights, "
        "in train mode, with nothing switched off: caches, dropout, layer drop and the choice of "
        "attention are its own. Two of it are made from one seed. One is handed to `compile` as "
        "it is, with the planner `dtr` and the budget of its row (between the floor of the step, "
        "0, and what it takes unplanned, 1; the first for which `dtr` has one); the other is the "
        "original in eager. Both train three steps of SGD with momentum. "
        "Compared in every bit: results, loss, every gradient, every parameter and buffer, the "
        "state of the generator.",
        "",
        counted,
        "",
        "* **time**: seconds of the processor for capture, costs, plan, proof, and the steps of "
        "both, without imports.",
        "* **status**: `whole`, one planned and proven step; `regions`, refused as a whole and "
        "trained by `torch.compile(model, backend=\"remat\")`; `refused`, in neither way.",
        "* **measured/proven**: bytes of a step by PyTorch's profiler, over the proven bound, "
        "parameters and gradients in both. It may not be more than 1. **of eager** is over what "
        "the original takes.",
        "* **note**: why a model is not planned as a whole, and the codes of the warnings that a "
        "user sees (`remat-compile explain CODE` says what they mean).",
        "",
        head,
        "|---|---|--:|--:|---|---|--:|--:|---|---|",
        *(row(o) for o in outcomes),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main(
    names: Annotated[list[str] | None, typer.Argument(help="All of them without any.")] = None,
    state: Annotated[Path | None, typer.Option(help="Outcomes, one a line; goes on there.")] = None,
    write: Annotated[Path | None, typer.Option(help="Write the page.")] = None,
    run: Annotated[bool, typer.Option(help="Run what the state does not hold.")] = True,
) -> None:
    """Trains architectures beside themselves in eager."""
    everything = architectures()
    wanted = [(o, n) for o, n in everything if not names or n in names or f"{o}/{n}" in names]
    if names and not wanted:
        raise typer.BadParameter(f"no such model; there are {', '.join(n for _, n in everything)}")
    known = {} if names else read_state(state)
    here = versions()
    outcomes = []
    if run:
        _import_everything()
    for origin, name in wanted:
        outcome = known.get((origin, name))
        if outcome is None and not run:
            continue
        if outcome is None:
            made = asdict(in_own_process(origin, name)) | {"versions": here}
            outcome = Outcome(**made)
            if state is not None:
                with state.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(outcome)) + "\n")
        outcomes.append(outcome)
        print(row(outcome), flush=True)
    if write is not None:
        write.write_text(page(outcomes), encoding="utf-8")
    equal = sum(o.equal for o in outcomes)
    if any(o.silent for o in outcomes) or equal < ENOUGH * len(outcomes):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
