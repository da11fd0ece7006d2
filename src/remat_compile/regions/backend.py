"""The backend that TorchDynamo calls with every graph that it could capture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from ..capture.guards.dynamo import set_strict_guards
from ..ir.diagnostics import FBError, nearest
from ..planners.contract import makes_copies
from ..plans.options import Errors
from ..plans.request import read_request
from .region import CapturedRegion
from .session import Options, Session

DEFAULT_S = 10.0
"""Seconds for the planner of each region, where `time_limit_s` says nothing: there may be many."""

_PLANNING = ("budget", "activation_budget", "planner", "time_limit_s", "costs", "device", "grads")
_OWN = ("fallback", "report")


@dataclass(frozen=True)
class _Held:
    """The session of an options object, with what it said then: it may be changed for another
    model."""

    options: object
    said: Mapping[str, Any]
    session: Session | FBError


class _Backend:
    """Regions compiled with the same options object share its budget."""

    __name__ = "remat"

    def __init__(self) -> None:
        self._held: list[_Held] = []

    def __call__(
        self,
        graph: fx.GraphModule,
        example_inputs: Sequence[Any],
        *,
        options: Mapping[str, Any] | None = None,
        **keywords: Any,
    ) -> Callable[..., Any]:
        """Return the function that runs in place of `graph`. It is planned when it is first called,
        with real tensors.

        `options` are `budget` or `activation_budget`, `planner`, `time_limit_s` (10 for each
        region), `costs`, `device` and `grads` as in `remat_compile.compile`; `fallback=False`
        refuses what cannot be planned in place of running it in eager; `report` is called with a
        `RegionsReport` when regions were planned. Wrong ones are refused at the first call.
        TorchDynamo's guards are strict from the first call on: hooks and aliases are guarded.
        """
        set_strict_guards()
        del example_inputs  # fake where sizes are dynamic
        session = self._session_of(options, {**(options or {}), **keywords})
        if isinstance(session, FBError):
            # Dynamo would wrap it here, and swallow it with `suppress_errors`.
            return _refusing(session)
        return CapturedRegion(graph, session)

    def _session_of(self, options: object, said: Mapping[str, Any]) -> Session | FBError:
        for held in self._held:
            if held.options is options and held.said == said:
                return held.session
        made = _session(said)
        self._held.append(_Held(options, said, made))
        return made

    def reset(self) -> None:
        """Is called by `torch.compiler.reset()`."""
        self._held.clear()


remat = _Backend()
"""The backend, as the entry point `torch_dynamo_backends` names it."""


def _session(options: Mapping[str, Any]) -> Session | FBError:
    errors = Errors()
    for word in options:
        known = (*_PLANNING, *_OWN)
        if word not in known:
            message = f'backend "remat" takes no option {word}.{nearest(str(word), known)}'
            errors.add("FB0723", message, f"it takes {', '.join(known)}")
    fallback, report = options.get("fallback", True), options.get("report")
    if not isinstance(fallback, bool):
        errors.add("FB0707", f"fallback is {fallback!r}", "write True or False")
    if report is not None and not callable(report):
        errors.add("FB0707", f"report is a {type(report).__name__}", "give a function of a report")
    planning = {"costs": "measured", "time_limit_s": DEFAULT_S, "planner": "auto"}
    planning |= {word: options[word] for word in _PLANNING if word in options}
    planner = planning["planner"]
    request = read_request(errors, **planning, offload=planner != "auto")  # type: ignore[arg-type]
    if request is not None and planner != "auto" and makes_copies(request.planner):
        message = f"planner {planner} copies to the host, which regions do not"
        errors.add("FB0474", message, "take another planner, or remat_compile.compile")
    bound = None if request is None else request.budget
    if bound is not None and bound.form in ("least", "auto"):
        hint = "regions share one budget: write for example 8GiB, 50%, or range:0.5"
        errors.add("FB0450", f'budget "{bound.form}" is for the plan of a whole model', hint)
    try:
        errors.raise_if_any()
    except FBError as error:
        return error
    assert request is not None
    return Session(Options(request, fallback, report))


def _refusing(error: FBError) -> Callable[..., Any]:
    def run(*_: Any) -> Any:
        raise FBError(error.diagnostics, usage=error.usage)

    return run
