"""`transformers.Trainer` within a budget: `callbacks=[hf.Callback(budget="8GiB")]`."""

from __future__ import annotations

from typing import Any, Unpack

from torch import nn
from transformers import TrainerCallback

from .api import OnChange, compile_in_place
from .plans.options import PlanKeywords


class Callback(TrainerCallback):  # type: ignore[misc]
    """Plans the Trainer's model at its first batch, with the options of `remat_compile.compile`.

    Each further kind of batch (another length, other keys) is planned once, or what `on_change`
    says; pad to few lengths. Evaluation runs in eager. After the training the model is as before.
    Wrong options are refused here.
    """

    def __init__(self, *, on_change: OnChange = "replan", **options: Unpack[PlanKeywords]) -> None:
        self._chosen: dict[str, Any] = {"on_change": on_change, **options}
        compile_in_place(nn.Linear(1, 1), **self._chosen)  # refuses wrong options now

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Trainer has placed and wrapped the model by now."""
        compile_in_place(kwargs["model"], **self._chosen)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        from .backends.torch.in_place import release

        release(kwargs["model"])
