"""Plans architectures on the command line and runs the plans: both are to end with 0.

    python benchmarks/models_cli.py [NAME ...] [--state FILE] [--planner dtr]

`remat-compile FILE.py:make -o p.fbir`, then `remat-compile run p.fbir --model FILE.py:make`, each
in a process of its own forked off this one. Without names, all that results/models.csv has as
planned whole. What `--state` holds as done is not run again. Ends with 1 where one of them does not
end with 0.
"""

from __future__ import annotations

import csv
import io
import json
import multiprocessing
import tempfile
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from models import LIMIT_S, _import_everything, architectures

ROWS = Path(__file__).parent / "results" / "models.csv"
FACTORY = """import sys
sys.path.insert(0, {folder!r})
from _beside_eager import sample

def make():
    return sample({origin!r}, {name!r})
"""


def planned_whole() -> set[tuple[str, str]]:
    with ROWS.open(encoding="utf-8", newline="") as file:
        return {
            (row["from"], row["model"]) for row in csv.DictReader(file) if row["status"] == "whole"
        }


def plan_and_run(sending: Any, origin: str, name: str, planner: str) -> None:
    """Sends "", or the command that failed with what it said."""
    from remat_compile.cli import main

    with tempfile.TemporaryDirectory() as folder:
        file, plan = Path(folder, "net.py"), str(Path(folder, "p.fbir"))
        made = FACTORY.format(folder=str(Path(__file__).parent), origin=origin, name=name)
        file.write_text(made, encoding="utf-8")
        model = f"{file}:make"
        commands = (
            [model, "-o", plan, "-q", "--planner", planner],
            ["run", plan, "--model", model, "-q", "--repeats", "1"],
        )
        for words in commands:
            said = io.StringIO()
            with redirect_stdout(said), redirect_stderr(said):
                code = main(words)
            if code:
                lines = [x for x in said.getvalue().splitlines() if "error[" in x or "grad" in x]
                text = " ".join(lines) or said.getvalue()
                sending.send(f"{words[0].rpartition('/')[2]}: exit {code}: {text[:300]}")
                return
    sending.send("")


def outcome(origin: str, name: str, planner: str) -> str:
    """What went wrong; "" where nothing did."""
    fork = multiprocessing.get_context("fork")
    receiving, sending = fork.Pipe(duplex=False)
    child = fork.Process(target=plan_and_run, args=(sending, origin, name, planner))
    child.start()
    sending.close()
    try:
        late = not receiving.poll(LIMIT_S)
        return f"not done within {LIMIT_S:.0f} s" if late else str(receiving.recv())
    except EOFError:
        return "the process died"
    finally:
        child.kill()
        child.join()


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Those planned whole without.")] = None,
    state: Annotated[Path | None, typer.Option(help="Outcomes, one a line; goes on there.")] = None,
    planner: Annotated[str, typer.Option(help="As on the command line.")] = "store-all",
) -> None:
    """Plans and runs architectures on the command line."""
    whole = planned_whole()
    wanted = [(o, n) for o, n in architectures() if (n in names if names else (o, n) in whole)]
    if not wanted:
        raise typer.BadParameter("no such model")
    done: dict[str, str] = {}
    if state is not None and state.exists():
        lines = state.read_text(encoding="utf-8").splitlines()
        done = {name: wrong for name, wrong in map(json.loads, lines) if not wrong}
    _import_everything()
    failed = 0
    for origin, name in wanted:
        began = time.monotonic()
        wrong = done.get(name)
        if wrong is None:
            wrong = outcome(origin, name, planner)
            if state is not None:
                with state.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([name, wrong]) + "\n")
        failed += bool(wrong)
        print(f"{origin} {name} | {time.monotonic() - began:.0f} s | {wrong or 'ok'}", flush=True)
    print(f"{len(wanted) - failed} of {len(wanted)} end with 0")
    if failed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
