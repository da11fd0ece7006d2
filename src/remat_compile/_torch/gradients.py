"""Parameters that a step trains, those that it does not reach, and sums that autograd makes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

from torch import nn

from ..ir.diagnostics import Diagnostic, FBError
from ..ir.program import Binding

__all__ = ["lost_gradients", "sums_behind"]

_SEVERAL = 3
"""Terms whose sum rounds by their order."""


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


def sums_behind(
    views: Sequence[str | None], binding: Binding, summed: Container[str], *, of_own: bool = False
) -> tuple[Diagnostic, ...]:
    """FB0529 for what is given and returned in so many views that the sum of their gradients, which
    autograd makes behind the step, may round otherwise than in eager.

    `views` has the parameter or argument that each result is a view of.
    """
    arguments = binding.arguments
    grads = {p.name: p.grad for p in binding.params if p.grad is not None}
    grads |= {arguments[place].name: grad for place, grad in binding.input_grads}
    own = {name: 1 + (grad in summed) for name, grad in grads.items()}
    paths = {p.name: p.names[0] for p in binding.params} | {a.name: a.path for a in arguments}
    terms = Counter(views)
    many = [
        p for name, p in paths.items() if terms[name] and terms[name] + own.get(name, 0) >= _SEVERAL
    ]
    many += ["a tensor that the forward makes"] if of_own else []
    if not many:
        return ()
    message = (
        f"several results are views of {', '.join(many)}: the sum of their gradients may "
        "round otherwise than in eager"
    )
    hint = "return one of the views, or clone() them in the model"
    return (Diagnostic("FB0529", message, hint=hint),)
