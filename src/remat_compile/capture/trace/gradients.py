"""Parameters that a step trains, those that it does not reach, and sums that autograd makes."""

from __future__ import annotations

from torch import nn

from ...ir.diagnostics import Diagnostic, FBError
from ...ir.program import Binding


def lost_gradients(binding: Binding, model: nn.Module) -> tuple[Diagnostic, ...]:
    """FB0510 for trainable parameters without a gradient. FBError FB0515 where none has one."""
    lost = [
        name
        for p in binding.params
        for name in p.names[:1]
        if p.grad is None and model.get_parameter(name).requires_grad
    ]
    if not lost:
        return ()
    if all(p.grad is None for p in binding.params):
        message = f"no gradient reaches any parameter of {type(model).__name__}"
        hint = "see that what it returns depends on its parameters, outside of torch.no_grad"
        raise FBError(Diagnostic("FB0515", message, hint=hint))
    return (
        Diagnostic(
            "FB0510",
            f"no gradient reaches {', '.join(lost)}; their .grad stays None, as in eager",
            hint="remove them, or use them in the forward",
        ),
    )
