"""Guards of a model's call as one capture makes them, and the local names that they look at."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ...ir.diagnostics import Diagnostic
from .dynamo import DynamoGuards, NotCaptured, capture_guards


class LocalNames:
    """The local names with which the forward of `model` begins."""

    def __init__(self, model: nn.Module):
        forward = model.forward
        self.function: Callable[..., Any] = getattr(forward, "__func__", forward)
        self.owner = getattr(forward, "__self__", None)
        self._base = type(model)
        self._is_own = self.owner is model
        code = getattr(self.function, "__code__", None)
        self._cells = list(
            zip(code.co_freevars, self.function.__closure__ or (), strict=True)
            if code is not None
            else ()
        )
        self._signature = inspect.signature(self.function, follow_wrapped=False)
        kinds = [p.kind for p in self._signature.parameters.values()]
        self._has_rest = inspect.Parameter.VAR_POSITIONAL in kinds
        plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = self._signature.parameters
        self._names = [name for name, p in parameters.items() if p.kind in plain]
        self._known = frozenset(
            name for name, p in parameters.items() if p.kind.name.endswith(("KEYWORD", "ONLY"))
        ) - {name for name, p in parameters.items() if p.kind.name.startswith("VAR")}
        self._more = next((n for n, p in parameters.items() if p.kind.name == "VAR_KEYWORD"), None)
        self._defaults = {
            name: p.default
            for name, p in parameters.items()
            if p.default is not inspect.Parameter.empty
        }
        required = self._known - self._defaults.keys()
        self._required = tuple(required)

    def of(
        self, attributes: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """By name. `attributes` are those of the module in whose name it is called. TypeError for
        a call that Python would refuse."""
        if self._is_own:
            args = (self._with(attributes), *args)
        elif self.owner is not None:
            args = (self.owner, *args)
        names = {**self._defaults, **dict(zip(self._names, args, strict=False))}
        more = {key: value for key, value in kwargs.items() if key not in self._known}
        names.update(kwargs)
        if (
            self._has_rest
            or (more and self._more is None)
            or len(args) > len(self._names)
            or not all(name in names for name in self._required)
        ):
            bound = self._signature.bind(*args, **kwargs)
            bound.apply_defaults()
            names = dict(bound.arguments)
        elif self._more is not None:
            for key in more:
                del names[key]
            names[self._more] = more
        for name, cell in self._cells:
            names[name] = cell.cell_contents
        return names

    def _with(self, attributes: dict[str, Any]) -> object:
        """A module of the original's class with these very attributes: a drop-in is of another."""
        made = object.__new__(self._base)
        object.__setattr__(made, "__dict__", attributes)
        return made


@dataclass(frozen=True, eq=False)
class CallGuards:
    """TorchDynamo's guards, or why there are none. `changing` are attributes of modules, by path,
    that the forward itself changes."""

    names: LocalNames
    by_dynamo: DynamoGuards | None
    changing: frozenset[str] = frozenset()
    why_none: str = ""

    @property
    def needs_contract(self) -> bool:
        """Return whether the module tree is to be looked at beside: TorchDynamo saw nothing of the
        forward, or another way than that of eager."""
        return self.by_dynamo is None or self.by_dynamo.asks_compiling

    def warnings(self) -> tuple[Diagnostic, ...]:
        """FB0531 where only the contract is guarded."""
        if self.by_dynamo is not None:
            return ()
        message = (
            "the Python of the forward is not guarded, for TorchDynamo cannot trace it "
            f"({self.why_none}): what it reads beside the module tree, its tensors and the "
            "arguments is fixed at the capture"
        )
        hint = "compile again after changing an attribute, a configuration or a global"
        return (Diagnostic("FB0531", message, hint=hint),)

    def __deepcopy__(self, memo: dict[int, Any]) -> CallGuards:
        return self  # they look at what they are given


def guards_of_call(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    changing: frozenset[str] = frozenset(),
) -> CallGuards:
    """Guards of this call of `model`; the forward is traced and not run."""
    names = LocalNames(model)
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    try:
        made = capture_guards(names.function, names.owner, args, kwargs, tensors, changing)
        if not made.hold(local := names.of(vars(model), args, kwargs)):
            raise NotCaptured(f"its own guard fails: {made.reason(local)}")
    except NotCaptured as error:
        return CallGuards(names, None, changing, str(error))
    return CallGuards(names, made, changing)
