"""Trains architectures beside themselves in eager, bit for bit, and writes the results.

    python benchmarks/models.py [NAME ...] [--state FILE] [--write docs/notes/models.md]

`--write` also writes the rows to `benchmarks/results/models.csv`.

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

import json
import multiprocessing
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from _beside_eager import Outcome, run_one
from _models_page import page, row, table

LIMIT_S = 900.0
"""For one architecture by the clock, on a machine that may do other things."""

ENOUGH = 0.95
ROWS = Path(__file__).parent / "results" / "models.csv"


def _import_everything() -> None:
    """What every child needs, once. (PyTorch may be forked until it has run a backward.)"""
    import importlib

    importlib.import_module("remat_compile.regions")
    importlib.import_module("remat_compile.capture.torch")
    if any(package.startswith("transformers") for package in versions()):
        importlib.import_module("transformers").AutoModelForCausalLM  # noqa: B018 (loads modules)


def versions() -> tuple[str, ...]:
    from importlib.metadata import PackageNotFoundError, version

    installed = []
    for package in ("torch", "transformers"):
        try:
            installed.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return tuple(installed)


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


def main(
    names: Annotated[list[str] | None, typer.Argument(help="All of them without any.")] = None,
    state: Annotated[Path | None, typer.Option(help="Outcomes, one a line; goes on there.")] = None,
    write: Annotated[Path | None, typer.Option(help="Write the page and the rows.")] = None,
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
        print(" | ".join(row(outcome)), flush=True)
    if write is not None:
        left_out = len(everything) - len(outcomes)
        write.write_text(page(outcomes, here, left_out), encoding="utf-8")
        ROWS.write_text(table(outcomes), encoding="utf-8")
    equal = sum(o.equal for o in outcomes)
    if any(o.silent for o in outcomes) or equal < ENOUGH * len(outcomes):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
