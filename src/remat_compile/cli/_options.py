"""Options that several commands take, each declared once; and those of an ONNX model, read."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from ..driver.model_source import ModelOptions
from ..driver.request import Errors

__all__ = [
    "SIZE",
    "Costs",
    "Device",
    "Dim",
    "Grads",
    "Model",
    "Output",
    "PlanFile",
    "Quiet",
    "Sample",
    "Schedule",
    "TrainBn",
    "Trainable",
    "TrustSource",
    "read_model_options",
]

SIZE = "8GiB, 500MB, 50% of the peak with nothing recomputed, or range:0.5"

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A .onnx or .pt2 file, file.py:factory (returns the model and its sample "
        "arguments), a .fbir file to plan again, or - for one on standard input.",
    ),
]
PlanFile = Annotated[str, typer.Argument(metavar="PLAN.fbir", help="- for standard input.")]
Output = Annotated[
    str | None,
    typer.Option("-o", "--output", metavar="FILE", help="Where to write; - is standard output."),
]
Schedule = Annotated[
    str | None, typer.Option(metavar="NAME", help="Which schedule of the file (the last).")
]
Costs = Annotated[
    Literal["measured", "roofline"] | None,
    typer.Option(help="Measured on this machine (default), or estimated for --device."),
]
Device = Annotated[str | None, typer.Option(metavar="NAME", help="See remat-compile devices.")]
Grads = Annotated[
    Literal["fresh", "accumulate"] | None,
    typer.Option(help="Whether the caller already holds gradients (accumulate)."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table.")]

Dim = Annotated[
    list[str] | None, typer.Option(metavar="NAME=N", help="Size of a dynamic dimension (ONNX).")
]
TrustSource = Annotated[
    bool,
    typer.Option("--trust-source", help="Load the Python or .pt2 file that the plan names."),
]
Sample = Annotated[
    str | None, typer.Option(metavar="FILE.npz", help="Sample inputs by name (ONNX).")
]
TrainBn = Annotated[bool, typer.Option("--train-bn", help="Batch normalisations train (ONNX).")]
Trainable = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="Which initialisers train, as in blocks.* (ONNX)."),
]


def read_model_options(
    errors: Errors, dims: Dim, sample: Sample, train_bn: bool, trainable: Trainable
) -> ModelOptions:
    """The options of an ONNX model; adds FB0707 to `errors`."""
    sizes: dict[str, str] = {}
    for text in dims or ():
        name, _, size = text.rpartition("=")
        if not name or not size:
            errors.add("FB0707", f'cannot read --dim "{text}"', "write for example --dim batch=8")
        elif name in sizes:
            errors.add("FB0707", f"--dim {name} is given twice")
        sizes[name] = size
    return ModelOptions(sizes, sample, train_bn, tuple(trainable or ()))
