"""Plans, proves and runs the CNNs that the package `onnx` carries, beside ordinary autograd.

    python tests/runners/run_onnx_models.py [NAME ...] [--write docs/notes/onnx_models.md]

Ends with 1 where a bit differs, or where a step takes more bytes than were proven.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import warnings
from pathlib import Path

import onnx
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.onnx.light import BUDGET, LEAST, LIGHT, Outcome, run_light

MIB = 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(LIGHT))
    parser.add_argument("--budget", help="share of activations; 60% where a plan has it")
    parser.add_argument("--planner", default="dtr")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    if unknown := set(given.names) - set(LIGHT):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    warnings.simplefilter("ignore")
    rows, failed = [], 0
    print("\n".join(HEAD))
    for name in given.names or LIGHT:
        outcome = run_light(name, given.budget, given.planner)
        failed += not outcome.holds
        rows.append(row(outcome))
        print(rows[-1], flush=True)
    if given.write is not None:
        text = page(rows, given.budget, given.planner)
        given.write.write_text(text, encoding="utf-8")
    return 1 if failed else 0


HEAD = (
    "| model | parameters | activations | planned | proven | measured | equal to autograd | "
    "planning and proof |",
    "|" + "---|" * 8,
)


def row(outcome: Outcome) -> str:
    """A row of the table."""
    report = outcome.report
    sizes = (
        outcome.unplanned_activation_bytes,
        outcome.activation_bytes,
        outcome.proven_bytes,
        report.measured_bytes,
    )
    equal = f"{report.tensors} tensors" if report.bit_equal else f"no: {report.max_difference:.1e}"
    return (
        f"| {outcome.name} | {outcome.parameters:,} | "
        + " | ".join(f"{size / MIB:.2f} MiB" for size in sizes)
        + f" | {equal} | {outcome.planning_s:.0f} s |"
    )


def page(rows: list[str], budget: str | None, planner: str) -> str:
    """The page."""
    least = ", ".join(f"{share} for {name}" for name, share in LEAST.items())
    share = budget or f"{BUDGET} ({least}, where one operator works on more than that)"
    lines = [
        "# Models, from the file to a step",
        "",
        f"Written by `tests/runners/run_onnx_models.py` on {datetime.date.today()} with onnx "
        f"{onnx.__version__} and torch {torch.__version__} on the CPU, one thread.",
        "",
        "## The `light` CNNs of the package `onnx`",
        "",
        "Files of opset 9 without weights, at their own size (one image of 224 x 224), everything "
        f"trained. `{planner}` plans each for {share} of its activations. Outputs, gradients and "
        "buffers of one step are compared in every bit with autograd. `proven` and `measured` "
        "include parameters and gradients.",
        "",
        *HEAD,
        *rows,
        "",
        "## Transformers",
        "",
        "The gradients of 18 architectures of `transformers`, exported with `export_trainable`, "
        "against the original models: [onnx_gradients.md](onnx_gradients.md), written by "
        "`benchmarks/onnx_gradients.py`.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
