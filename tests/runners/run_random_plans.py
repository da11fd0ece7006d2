"""Executes random proven plans of small models and compares each with eager.

`python tests/runners/run_random_plans.py --plans 500` prints a table and exits with 1 on any
failure: a plan that is refuted, code that differs from its plan when read back, a crash, a bit
that differs from eager, or more bytes than were proven. Every second plan copies to the host and
back.

With `--backend jax` what JAX computes is compared with PyTorch's own step in float64, within the
tolerance of generated modules. Its bytes are XLA's, and are not compared. XLA compiles each plan: a
second or so.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from helpers.execution.random_runs import Outcome, Tally, missing_kinds, run_all, run_all_in_jax


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("torch", "jax", "both"), default="torch")
    parser.add_argument("--plans", type=int, help="of each backend: 60 for PyTorch, 24 for JAX")
    parser.add_argument("--seed", type=int, default=0, help="of the first plan of each model")
    parser.add_argument("--keep", type=Path, help="directory for the plans that fail")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    bad = False
    if given.backend != "jax":
        bad |= _report("PyTorch", run_all, given.plans or 60, given)
    if given.backend != "torch":
        bad |= _report("JAX", run_all_in_jax, given.plans or 24, given)
    return 1 if bad else 0


def _report(
    backend: str,
    run: Callable[[int, int, Path | None], tuple[Tally, list[Outcome]]],
    count: int,
    given: argparse.Namespace,
) -> bool:
    """Prints the table of a backend; says whether anything is wrong."""
    start = time.perf_counter()
    tally, failures = run(count, given.seed, given.keep)
    print(f"{backend}:\n\n{tally.table()}\n\n{time.perf_counter() - start:.0f} s")
    missing = missing_kinds(tally.having)
    if missing and count >= 60:
        print(f"no plan has: {', '.join(missing)}", file=sys.stderr)
    return bool(failures) or (bool(missing) and count >= 60)


if __name__ == "__main__":
    sys.exit(main())
