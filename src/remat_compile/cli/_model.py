"""Options of an ONNX model that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

from .._options import Errors
from .._sources import ModelOptions

__all__ = ["Dim", "Sample", "TrainBn", "Trainable", "read_model_options"]

Dim = Annotated[
    list[str] | None, typer.Option(metavar="NAME=N", help="Size of a dynamic dimension (ONNX).")
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
