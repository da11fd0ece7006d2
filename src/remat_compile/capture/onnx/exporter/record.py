"""The record of an export, which says about training what the numbers do not: frozen parameters,
ties between parameters, cut gradients and padding rows.

`export_trainable` writes a `TrainingRecord` into the model's metadata. What concerns one node
stands in the text of the PyTorch call that `torch.onnx.export` leaves with every node.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ....ir.diagnostics import Diagnostic, FBError

FX_NODE = "pkg.torch.onnx.fx_node"
"""Node metadata: the text of the PyTorch call that a node comes from."""

TRAINING = "remat_compile.training"
"""Model metadata: a `TrainingRecord` as JSON."""

STRAIGHT_THROUGH = "remat_compile.straight_through"
"""Model metadata, "yes": rounding to integers counts as the identity in gradients."""

_EMBEDDING = re.compile(
    r"aten\.embedding\.default\]\(args = \(%\w+, %\w+(?:, (-?\d+))?(?:, (True|False))?"
)


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """Names of parameters that are not trained, and of those that are another one."""

    frozen: tuple[str, ...] = ()
    ties: Mapping[str, str] = field(default_factory=dict)
    """Name of a parameter -> name under which the file holds it."""
    cuts: bool = True
    """True where every place that stops a gradient is in the file."""

    def text(self) -> str:
        """As it stands in the file."""
        return json.dumps(asdict(self))


def training_record(model: Any) -> TrainingRecord | None:
    """Return the record that `export_trainable` wrote, or None. Raises FB0619 where it cannot be
    read."""
    text = next((p.value for p in model.metadata_props if p.key == TRAINING), None)
    if text is None:
        return None
    try:
        given = json.loads(text)
        frozen, ties = [str(name) for name in given["frozen"]], dict(given["ties"])
        if not all(isinstance(name, str) for pair in ties.items() for name in pair):
            raise ValueError("a tie is no pair of names")
        return TrainingRecord(tuple(frozen), ties, bool(given["cuts"]))
    except (ValueError, KeyError, TypeError) as error:
        message = f'the metadata "{TRAINING}" cannot be read: {type(error).__name__} {error}'
        hint = "export the model again with export_trainable"
        raise FBError(Diagnostic("FB0619", message, hint=hint)) from None


@dataclass(frozen=True, slots=True)
class Origin:
    """Effect of a node's PyTorch call on gradients, beyond what the ONNX operator says."""

    detached: bool = False
    padding_row: int | None = None
    """The row of an embedding that gets no gradient (PyTorch's `padding_idx`)."""
    scaled_by_frequency: bool = False


_PLAIN = Origin()


def origin_of(node: Any) -> Origin:
    """Read from the text of the node's PyTorch call."""
    if node.op_type not in ("Identity", "Gather"):
        return _PLAIN
    text = next((p.value for p in node.metadata_props if p.key == FX_NODE), "")
    if node.op_type == "Identity":
        return Origin(detached=True) if "aten.detach." in text else _PLAIN
    match = _EMBEDDING.search(text)
    if match is None:
        return _PLAIN
    row = int(match.group(1) or -1)
    return Origin(
        padding_row=None if row == -1 else row, scaled_by_frequency=match.group(2) == "True"
    )
