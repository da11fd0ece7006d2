"""Source locations in the user's model of nodes of the joint graph and errors of a capture."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import checkpoint
from torch.utils._pytree import tree_map_only

from ...device.fake_tensors import DynamicOutputShapeException, UnsupportedOperatorException
from ...ir.diagnostics import Diagnostic, FBError
from ...ir.span import Loc
from ..trace.joint import NEEDS_NUMBERS
from ..trace.module import WholeModel, has_values, unchanged
from ..trace.places import error_in_model, is_users

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')

BY_REGIONS = 'train the model by regions: torch.compile(model, backend="remat")'
CHECKPOINT = "take the checkpoint out: the plan does that"


def place_of(node: fx.Node) -> Loc | None:
    """File (base name only) and line of the user's innermost frame, and the module path."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    user = [frame for frame in frames if is_users(frame[0])]
    file, line = user[-1] if user else ("", "0")
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    module = next((str(path) for path, _ in reversed(stack.values()) if path), "")
    if not file and not module:
        return None
    return Loc(Path(file).name, int(line), module)


@contextmanager
def refused(
    code: str,
    what: str,
    model: nn.Module,
    args: tuple[Any, ...] | None = None,
    kwargs: dict[str, Any] | None = None,
    *,
    inside: Callable[..., Any] | None = None,
) -> Iterator[None]:
    """Turns whatever PyTorch or the model raises into FBError `code`, with the user's line; with
    `inside`, what is raised in a call of that function.

    FB0501 where the model raises in eager too, at the sample `(args, kwargs)`, if one is given.
    Refusals and a lack of memory pass.
    """
    try:
        yield
    except (FBError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # PyTorch raises many types, all about the user's model
        if inside is not None and not _is_inside(error, inside):
            raise
        said, hint = _cause(error)
        cause: Exception = error
        if args is not None and (own := _error_of_eager(model, args, kwargs or {})) is not None:
            code, what, cause = "FB0501", "the model itself fails on the sample", own
            said, hint = f"{type(own).__name__}: {own}".splitlines()[0], "call it in eager first"
        message = f"{what}: {error_in_model(cause, model, said)}"
        raise FBError(Diagnostic(code, message, hint=hint)) from error


def _is_inside(error: Exception, function: Callable[..., Any]) -> bool:
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is function.__code__ for frame, _ in frames)


def _error_of_eager(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Exception | None:
    """Return the error of the forward on copies of the sample and of the buffers."""
    if not has_values(model):
        return None
    try:
        with unchanged(model):
            given, named = tree_map_only(Tensor, torch.clone, (args, kwargs))
            state = {name: t.detach().clone() for name, t in model.named_buffers()}
            for name, p in model.named_parameters():  # of which no gradient is written
                state[name] = p.detach().requires_grad_(p.requires_grad)
            torch.func.functional_call(WholeModel(model), state, given, named)
    except Exception as error:  # whatever the model's Python raises
        return error
    return None


def _cause(error: Exception) -> tuple[str | None, str]:
    """Return the cause, where it is known better than `error` says it, and the way out."""
    if "_checkpoint_context_fn" in str(error):
        # PyTorch's export needs a policy on every region, if only one that saves nothing.
        context = "functools.partial(create_selective_checkpoint_contexts, [])"
        return None, f"give each torch.utils.checkpoint context_fn={context}"
    if _calls_forward_again(error):
        return "a backward of the model's own calls its forward again", CHECKPOINT
    if isinstance(error, NEEDS_NUMBERS):
        said = "its Python reads a number that it computes"
        check = "a check or a log goes under `if not torch.compiler.is_compiling()`"
        return said, f"{check}; for values stay with tensors (torch.where), or {BY_REGIONS}"
    if isinstance(error, DynamicOutputShapeException):
        return f"the size of what {error.func} gives depends on data", BY_REGIONS
    if isinstance(error, UnsupportedOperatorException):
        said = f"operator {error.func} cannot run without data"
        return said, f"give it a fake implementation (torch.library.register_fake), or {BY_REGIONS}"
    return None, f"rewrite that line with operators of PyTorch, or {BY_REGIONS}"


def _calls_forward_again(error: Exception) -> bool:
    """Return whether a backward of the model's own called a module: a checkpoint."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    is_own = [c.co_name == "backward" and is_users(c.co_filename) for c in codes]
    called = codes[is_own.index(True) :] if any(is_own) else []
    return nn.Module._call_impl.__code__ in called or checkpoint.__file__ in {
        code.co_filename for code in codes
    }
