"""Options of an ONNX model that several commands take."""

from __future__ import annotations

from .._options import Errors
from .._sources import ModelOptions

__all__ = ["read_model_options"]


def read_model_options(
    errors: Errors, dims: list[str], sample: str | None, train_bn: bool
) -> ModelOptions:
    """`--dim NAME=N`, `--sample` and `--train-bn`; adds FB0707 to `errors`."""
    sizes: dict[str, int] = {}
    for text in dims:
        name, _, size = text.rpartition("=")
        if not name or not size.isdecimal() or int(size) == 0:
            errors.add("FB0707", f'cannot read --dim "{text}"', "write for example --dim batch=8")
        elif name in sizes:
            errors.add("FB0707", f"--dim {name} is given twice")
        else:
            sizes[name] = int(size)
    return ModelOptions(sizes, sample, train_bn)
