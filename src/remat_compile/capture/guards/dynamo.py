"""TorchDynamo's guards for one call of a model: the only file that touches their private interface.

A planned step repeats operators and none of the Python that chose them. TorchDynamo, which traces
that Python, notes each value that the trace depends on (attributes, containers, globals, closures,
defaults, types, hooks) and checks them in C++. `capture_guards` keeps these guards and throws the
graph away: what runs is traced by AOTAutograd, the way that eager goes.

Some changes pass TorchDynamo's guards and are checked here: a method put into a class, hooks of all
modules, environment variables where the traced code names them, and the content of tensors and
arrays that its graph takes as inputs and a step has as constants. One remains: 0.0 that turns -0.0.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as of_modules
from torch.utils._python_dispatch import _disable_current_modes

from ..trace.lock import unlogged
from ..trace.places import LIBRARIES

CANARY = {
    "fullgraph_capture": ("mod", "args", "kwargs"),
    "build_guards": ("self", "code"),
}
"""Leading parameters of PyTorch's functions, as in 2.13."""
STRICT = (
    "skip_nnmodule_hook_guards",
    "skip_tensor_guards_with_matching_dict_tags",
    "skip_no_tensor_aliasing_guards_on_parameters",
    "assume_dunder_attributes_remain_unchanged",
)
"""Settings of TorchDynamo that leave guards out while they are true."""
GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)
_COMPILING = frozenset(("is_compiling", "is_dynamo_compiling", "is_torchdynamo_compiling"))
_ENVIRONMENT = frozenset(("environ", "getenv"))
_OURS = frozenset(("GLOBAL_STATE", "SHAPE_ENV"))
# Checked by the step itself, for settings that operators depend on; threads are not among these.
_KEY = re.compile(r"\[['\"]?([^\]'\"]+)['\"]?\]|\.(\w+)|^(\w+)")
_HOLDERS = frozenset(("_modules", "_parameters", "_buffers", "__dict__"))
_TEXTS = {
    "check_torch_function_mode_stack": "a mode of torch functions (a default device) is on or off",
    "CURRENT_DEVICE": "the default device is another",
    "saved_tensors_hooks": "hooks on saved tensors are on or off",
}
"""Guards that PyTorch has no words for."""
_SOURCE = re.compile(r"[LG]\[[^\]]+\](?:\.\w+|\[[^\]]+\])*")


class NotCaptured(Exception):
    """TorchDynamo has no guards for the call; the text says why."""


@dataclass(frozen=True, eq=False)
class DynamoGuards:
    """Guards on the local names of one call of a forward.

    `asks_compiling` says that the traced code asks whether it is being compiled: these guards are
    then of another way through the model than that of eager.
    """

    manager: Any
    methods: tuple[tuple[type, str, object], ...]
    inputs: tuple[tuple[str, CodeType, Any], ...]
    global_names: dict[str, Any]
    environment: Mapping[Any, Any] | None
    global_hooks: tuple[tuple[int, ...], ...]
    asks_compiling: bool
    owner: str = "self"

    def hold(self, local_names: dict[str, Any]) -> bool:
        """Return whether all that the capture read is as it was."""
        if self.manager.check(local_names):
            return not self._unseen(local_names)
        if not torch._C._len_torch_dispatch_stack():
            return False
        # The guard of a tensor asks for its dispatch keys, and a dispatch mode adds some.
        with _disable_current_modes():
            return bool(self.manager.check(local_names)) and not self._unseen(local_names)

    def reason(self, local_names: dict[str, Any]) -> str:
        """The first guard that fails, by the user's names, with its line."""
        with _disable_current_modes():
            failure = self.manager.check_verbose(local_names)
        if not failure.result:
            return _in_words(failure.verbose_code_parts, failure.user_stack, self.owner)
        return self._unseen(local_names)

    def _unseen(self, local_names: dict[str, Any]) -> str:
        """Return the change that TorchDynamo's guards do not look at."""
        for kind, name, then in self.methods:
            if getattr(kind, name, None) is not then:
                return f"{kind.__name__}.{name} was replaced"
        if self.inputs:
            scope = _scope(local_names, self.global_names)
            for name, source, content in self.inputs:
                if not _is_content(eval(source, scope), content):
                    return f"{name} was replaced or written to"
        if self.global_hooks != global_hooks():
            return "hooks of all modules were added or removed"
        if self.environment is not None and self.environment != _environment():
            return "the environment variables changed"
        return ""


def set_strict_guards() -> None:
    """TorchDynamo leaves no guard out from here on: hooks, tensors and aliases are guarded."""
    for name, value in _strict().items():
        setattr(torch._dynamo.config, name, value)


def capture_guards(
    function: Callable[..., Any],
    owner: object | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    own: Sequence[Tensor] = (),
    changing: frozenset[str] = frozenset(),
) -> DynamoGuards:
    """The guards of `function(owner, *args, **kwargs)`, traced and not run.

    The metadata of the tensors `own` and what stands at the paths `changing` is not guarded.
    NotCaptured where TorchDynamo does not trace the call as one graph, or has another interface
    than the one known here.
    """
    if not isinstance(function, FunctionType):
        raise NotCaptured(f"the forward is a {type(function).__name__}, not a function")
    try:
        from torch._dynamo.convert_frame import GraphCaptureOutput, fullgraph_capture
        from torch._dynamo.utils import dynamo_timed, get_metrics_context
        from torch._dynamo.variables.torch_function import torch_function_mode_stack_state_mgr
    except ImportError as error:
        raise NotCaptured(f"this PyTorch has other guards ({error})") from error
    for known in (fullgraph_capture, GraphCaptureOutput.build_guards):
        names = tuple(inspect.signature(known).parameters)
        if names[: len(CANARY[known.__name__])] != CANARY[known.__name__]:
            raise NotCaptured(f"this PyTorch has another {known.__name__}")
    called = function if owner is None else MethodType(function, owner)
    try:
        with (
            unlogged(),
            _capturing(),
            get_metrics_context(),
            dynamo_timed("fullgraph_capture"),
            torch_function_mode_stack_state_mgr,
            torch.enable_grad(),
        ):
            made = fullgraph_capture(called, args, kwargs).graph_capture_output
            scope = _scope(made.output_graph.local_scope, made.output_graph.global_scope)
            guards = made.output_graph.guards
            chosen = _Chosen(guards, scope, owner, own, changing, _owner_name(function))
            with torch_function_mode_stack_state_mgr.temp_restore_stack():
                manager = made.build_guards(function.__code__).guard_manager
    except Exception as error:  # whatever TorchDynamo raises on Python that it does not trace
        raise NotCaptured(_first_line(error)) from error
    codes = list(made.traced_code)
    read = {name for code in codes for name in code.co_names}
    return DynamoGuards(
        manager,
        tuple(_methods(chosen.kinds, frozenset(codes))),
        tuple(chosen.inputs),
        function.__globals__,
        _environment() if read & _ENVIRONMENT else None,
        global_hooks(),
        bool(read & _COMPILING),
        _owner_name(function),
    )


def user_name(source: str, owner: str = "self") -> str:
    """`layers.0.p` for `L['self']._modules['layers']._modules['0'].p`; `owner` is the name of the
    module in its forward."""
    keys = [a or b or c for a, b, c in _KEY.findall(source)][1:]
    if keys and (keys[0] == owner or keys[0].startswith("__import_")):
        keys = keys[1:]
    return ".".join(key for key in keys if key not in _HOLDERS) or "the model"


def _strict() -> dict[str, bool]:
    import torch._dynamo  # not loaded with PyTorch

    return {name: False for name in STRICT if hasattr(torch._dynamo.config, name)}


@contextmanager
def _capturing() -> Iterator[None]:
    """Inside, guards are strict and each value is a constant; what TorchDynamo knows of sizes stays
    as it was. What a forward logs or prints is left out, for nothing of the graph runs."""
    from torch._dynamo import pgo

    strict = _strict()
    config = torch._dynamo.config
    levels = ("debug", "info", "warning", "error", "warning_once", "warning_advice", "info_once")
    loggers = (getattr(logging.Logger, name, None) for name in levels)
    silent = {function for function in loggers if function is not None}
    settings: dict[str, Any] = {**strict, "allow_rnn": True, "capture_scalar_outputs": True}
    settings |= {"automatic_dynamic_shapes": False, "specialize_float": True}
    settings["ignore_logging_functions"] = {*silent, print, warnings.warn}
    known = {name: value for name, value in settings.items() if hasattr(config, name)}
    sizes = pgo.get_code_state()
    before = deepcopy(dict(sizes))
    try:
        with config.patch(known):
            yield
    finally:
        sizes.clear()
        sizes.update(before)


class _Chosen:
    """Leaves out `guards` that are not for this step. Of the rest: the types of what is guarded,
    and inputs of TorchDynamo's graph that a step has as constants, which are tensors and arrays
    that are no argument, parameter or buffer (by name, expression and content)."""

    def __init__(
        self,
        guards: Any,
        scope: dict[str, Any],
        owner: object,
        own: Sequence[Tensor],
        changing: frozenset[str],
        name_of_owner: str,
    ):
        self.kinds: dict[type, None] = {}
        self.inputs: list[tuple[str, CodeType, Any]] = []
        arguments = set(map(id, own))
        state: set[int] = set()
        if isinstance(owner, nn.Module):
            state.update(map(id, (*owner.parameters(), *owner.buffers())))
        for guard in [*guards]:
            source = str(guard.name)
            try:
                value = eval(source, scope) if source else None
            except Exception:  # of a source that is no expression
                value = None
            name = user_name(source, name_of_owner) if source else ""
            is_changed = any(name == path or name.startswith(f"{path}.") for path in changing)
            kind = guard.create_fn_name()
            if kind in _OURS or id(value) in arguments or is_changed:
                guards.inner.discard(guard)
                continue
            if kind == "TENSOR_MATCH" and id(value) not in state:
                code = compile(source, "<guard>", "eval")
                self.inputs.append((name, code, _content(value)))
            self.kinds[type(value)] = None


def _scope(local_names: dict[str, Any], global_names: dict[str, Any]) -> dict[str, Any]:
    """Return the scope in which the expressions of TorchDynamo's sources are evaluated."""
    return {"L": local_names, "G": global_names, "___from_numpy": _itself}


def _itself(value: Any) -> Any:
    return value


def _content(value: Any) -> Any:
    """Return the content of an input: of a tensor its version, of arrays and numbers of NumPy the
    bits."""
    if isinstance(value, Tensor):
        return value, value._version
    if hasattr(value, "tobytes"):
        return type(value), value.dtype, value.shape, value.tobytes()
    return type(value), value


def _is_content(value: Any, then: Any) -> bool:
    if isinstance(then[0], Tensor):
        return value is then[0] and value._version == then[1]
    return bool(_content(value) == then)


def _methods(
    kinds: Mapping[type, None], codes: frozenset[CodeType]
) -> Iterator[tuple[type, str, object]]:
    """Methods of guarded objects that were traced."""
    for kind in kinds:
        names = {name: None for base in kind.__mro__ for name in vars(base)}
        for name in names:
            function = inspect.getattr_static(kind, name)
            if isinstance(function, FunctionType) and function.__code__ in codes:
                yield kind, name, function


def _environment() -> dict[str, str]:
    return dict(os.environ)


def global_hooks() -> tuple[tuple[int, ...], ...]:
    """Handles of the hooks that run around every module, which TorchDynamo does not guard."""
    return tuple([tuple(vars(of_modules)[name]) for name in GLOBAL_HOOKS])


def _owner_name(function: FunctionType) -> str:
    return next(iter(function.__code__.co_varnames), "self")


def _in_words(parts: Sequence[str], stack: Any, owner: str) -> str:
    text = " ".join(str(parts[0] if parts else "a guard fails").split("#")[0].split())
    text = _SOURCE.sub(lambda source: user_name(source[0], owner), text.replace("___", ""))
    for sign, words in _TEXTS.items():
        if sign in text:
            return words
    if text.startswith("tensor '"):
        return text.replace("'", "").partition(". Guard failed on a parameter")[0].removesuffix(".")
    frames = [f for f in stack or () if not f.filename.startswith(LIBRARIES)]
    frame = frames[-1] if frames else None
    place = f" ({Path(frame.filename).name}:{frame.lineno})" if frame is not None else ""
    return f"{text} no longer holds{place}"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
