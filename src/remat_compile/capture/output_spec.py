"""Options of a user on the results of a model: its loss, and what a step returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    from torch import Tensor

Loss = Union[str, int, "Callable[[Any], Tensor]", None]
Outputs = str | Sequence[str | int] | None


@dataclass(frozen=True)
class Wanted:
    """`loss` is the path of the tensor that is differentiated (`"loss"`, `"losses.total"`, `1` in
    a tuple), or a function of what the model returns: what it uses keeps its gradient. `outputs`
    are the paths of the results to be kept.
    """

    loss: Loss = None
    outputs: Outputs = None


ALL_RESULTS = Wanted()
