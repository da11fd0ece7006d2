"""The request of a user for a plan, checked as a whole before any work is done.

The options stand here once: `PlanKeywords` as users write them, `PlanRequest` as they are
understood. `api` and `cli` both go through `read_request`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypedDict, TypeVar, get_args

from ..costs import device_names, load_device
from ..ir.diagnostics import Diagnostic, FBError, nearest
from ..ir.wording import worded
from ..planners.contract import makes_copies
from ..planners.registry import parse_planner, parse_planners
from ..planners.workers.addresses import with_workers
from .budget import BudgetText, parse_budget, parse_budgets
from .files.files import keep_text
from .link.link import LinkText, parse_link
from .messages.asked import (
    Backend,
    Costs,
    Emitted,
    Errors,
    Fuse,
    Grads,
    JaxStyle,
)
from .messages.progress import shown

if TYPE_CHECKING:
    from ..costs import Device
    from ..planners.contract import Planner

__all__ = [
    "Backend",
    "BoundKeywords",
    "CostKeywords",
    "Costs",
    "Emitted",
    "Errors",
    "Fuse",
    "Grads",
    "JaxStyle",
    "PlanKeywords",
    "PlanRequest",
    "SweepKeywords",
    "check_choice",
    "check_fuse",
    "check_time_limit",
    "named_keywords",
    "read_request",
    "read_sweep",
]

MOST_SECONDS = 1e9
"""The longest time limit, 32 years; a thread cannot wait for ten times as long."""
USUAL_BUDGETS = "20%..100%:9"
"""The budgets of a sweep that names none, of the activations."""

T = TypeVar("T")
P = ParamSpec("P")


MEANING = {
    "budget": 'bounds all device bytes: a number of bytes, or a text such as "8GiB", "50%" (of '
    'the peak with nothing recomputed) or "range:0.5"; "least" for the fewest bytes found in time',
    "activation_budget": "bounds what comes on top of parameters, buffers, inputs and parameter "
    "gradients, in the same forms",
    "host_budget": "bounds the bytes of copies on the host, for planners that make some",
    "link": 'the bandwidth between device and host, "25GB/s" or "d2h=25GB/s,h2d=11GB/s", with '
    '"both=30GB/s", "latency=10us" and "issue=5us" where known; in place of that of the device',
    "offload": "whether planners may copy to the host, where the target has a link",
    "planner": 'a planner, or a text such as "periodic{segments=4}"',
    "workers": 'the address of a Dask cluster, "dask://host:8786", that programs of planners are '
    "solved on; the plan is the same",
    "cache": "whether a plan that was made before for the same graph is taken, and this one kept; "
    "REMAT_COMPILE_CACHE names the folder, or switches it off",
    "fuse": 'whether runs of the plan become kernels of Inductor: "none", "auto" (those measured '
    'faster) or "inductor" (all); bits may then differ from eager by rounding. "xla": what XLA '
    "computes without keeping what lies between, for JAX",
    "time_limit_s": "seconds for the planner, or for the proof where nothing is planned",
    "costs": '"measured" on this machine, as is done for a model, or by "roofline" for the '
    "device; a text keeps its own where neither is named",
    "device": "the name or the file of a device to plan for",
    "grads": '"accumulate" counts gradients that the caller already holds',
    "scope": 'for which sizes the bytes must hold: "range", "sample", or "widest", all that '
    "can be proven",
    "solver": '"z3", "cvc5" or "both"; FB0712 where its package is missing',
}
"""Meaning of each option of the public functions: `help()` shows it."""


class CostKeywords(TypedDict, total=False):
    """Options of every function that looks at costs: see `MEANING`."""

    time_limit_s: float
    costs: Costs | None
    device: str | None


class BoundKeywords(CostKeywords, total=False):
    """With a bound on the bytes of the device."""

    budget: str | int | None
    activation_budget: str | int | None


class SweepKeywords(CostKeywords, total=False):
    """Planning, whatever the budget."""

    grads: Grads | None


class PlanKeywords(BoundKeywords, SweepKeywords, total=False):
    """All of a plan."""

    host_budget: str | int | None
    planner: str | Planner
    workers: str | None
    link: str | None
    offload: bool
    cache: bool
    fuse: Fuse


@dataclass(frozen=True)
class PlanRequest:
    """A request, understood. `costs` and `grads` are None where those of the text at hand are kept
    (for a model: measured costs, fresh gradients); `device` is that of roofline costs; `host_bytes`
    and `link` take the place of the target's. `cache` says that plans on disk may be used and
    kept."""

    planner: Planner
    budget: BudgetText | None = None
    host_bytes: int | None = None
    time_limit_s: float = 60.0
    costs: Costs | None = None
    device: Device | None = None
    grads: Grads | None = None
    link: LinkText | None = None
    cache: bool = False
    fuse: Fuse = "none"


def read_request(
    errors: Errors,
    *,
    budget: str | int | None = None,
    activation_budget: str | int | None = None,
    host_budget: str | int | None = None,
    planner: str | Planner = "auto",
    time_limit_s: float = 60.0,
    costs: str | None = None,
    device: str | None = None,
    grads: str | None = None,
    link: str | None = None,
    offload: bool = True,
    cache: bool = True,
    fuse: str = "none",
    workers: str | None = None,
) -> PlanRequest | None:
    """The request, or None after adding to `errors`: FB0450 to FB0452 for budgets, FB0472, FB0474
    and FB0477 for the link, FB0707 for the rest, and those of the planner and device registries."""
    before = len(errors.diagnostics)
    bound = host = None
    if budget is not None and activation_budget is not None:
        hint = worded("give {budget} or {activation_budget}")
        errors.add("FB0452", "two budgets were given", hint)
    if budget is not None:
        bound = errors.collect(lambda: parse_budget(budget, may_be_least=True))
    if activation_budget is not None:
        bound = errors.collect(
            lambda: parse_budget(activation_budget, "activation", may_be_least=True)
        )
    if host_budget is not None:
        host = errors.collect(lambda: parse_budget(host_budget, "host"))
    check_time_limit(errors, time_limit_s)
    if not isinstance(cache, bool):
        errors.add("FB0707", f"cache is {cache!r}", "write True or False")
    if grads not in (None, "fresh", "accumulate"):
        errors.add("FB0707", f'grads is "{grads}"', "write fresh or accumulate")
    errors.collect(lambda: check_choice("way to fuse", fuse, Fuse))
    chosen = errors.collect(lambda: _read_planner(planner))
    if chosen is not None and not offload:
        asked = chosen
        chosen = errors.collect(lambda: _without_copies(asked))
    if chosen is not None and workers is not None:
        here, elsewhere = chosen, workers
        chosen = errors.collect(lambda: with_workers(here, elsewhere))
    over = None if link is None else errors.collect(lambda: parse_link(link))
    target = None if device is None else errors.collect(lambda: load_device(device))
    source = _read_costs(errors, costs, device)
    if chosen is None or len(errors.diagnostics) > before:
        return None
    return PlanRequest(
        chosen,
        bound,
        None if host is None else int(host.amount),
        time_limit_s,
        source,
        target,
        grads,  # type: ignore[arg-type]  # one of the two, or there was an error
        over,
        cache,
        fuse,  # type: ignore[arg-type]  # likewise
    )


def read_sweep(
    errors: Errors,
    budgets: str | Sequence[str | int] | None,
    activation_budgets: str | Sequence[str | int] | None,
    planners: str | Sequence[str | Planner],
) -> tuple[tuple[Planner, ...], tuple[BudgetText, ...]]:
    """The planners and the budgets of a sweep; adds to `errors` what is wrong with them."""
    if budgets is not None and activation_budgets is not None:
        errors.add("FB0452", "two lists of budgets were given", "give one of them")
    bounds: list[BudgetText] = []
    for text in _listed(budgets):
        bounds += errors.collect(lambda text=text: parse_budgets(text, "device")) or ()  # type: ignore[misc]
    if budgets is None:
        activation_budgets = activation_budgets or USUAL_BUDGETS
    for text in _listed(activation_budgets):
        bounds += errors.collect(lambda text=text: parse_budgets(text, "activation")) or ()  # type: ignore[misc]
    chosen: list[Planner] = []
    for item in [planners] if isinstance(planners, str) else planners:
        if not isinstance(item, str):
            chosen.append(item)
            continue
        keep_text("<planner>", item)
        chosen += errors.collect(lambda text=item: parse_planners(text)) or ()  # type: ignore[misc]
    return tuple(chosen), tuple(bounds)


def _listed(texts: str | Sequence[str | int] | None) -> Sequence[str | int]:
    if texts is None:
        return ()
    return (texts,) if isinstance(texts, str) else texts


def check_choice(what: str, value: object, choices: object) -> None:
    """FB0707 for a value that is not one of the Literal `choices`."""
    known = get_args(choices)
    if value not in known:
        message = f'no {what} "{value}".{nearest(str(value), known)}'
        hint = f"write {' or '.join(known)}"
        raise FBError(Diagnostic("FB0707", message, hint=hint), usage=True)


def check_fuse(fuse: Fuse, backend: Backend) -> None:
    """FB0632 for a way to fuse that is not of the backend that is to run the plan."""
    if fuse == "xla" and backend == "torch":
        message = "regions for XLA were asked for, and PyTorch runs this step"
        hint = worded("use {fuse} or inductor, or jax_step with a plan", fuse="auto")
    elif fuse == "inductor" and backend == "jax":
        message = "kernels of Inductor were asked for, and the plan is written for JAX"
        hint = worded("use {fuse}", fuse="xla")
    else:
        return
    raise FBError(Diagnostic("FB0632", message, hint=hint), usage=True)


def check_time_limit(errors: Errors, time_limit_s: float) -> None:
    """Adds FB0707 for what no clock can wait for."""
    if isinstance(time_limit_s, bool) or not isinstance(time_limit_s, int | float):
        errors.add("FB0707", f"a time limit of {time_limit_s!r}: it is a number of seconds")
    elif not time_limit_s >= 0:
        errors.add("FB0707", f"a time limit of {time_limit_s:g} s: it cannot be negative")
    elif time_limit_s > MOST_SECONDS:
        hint = f"give {MOST_SECONDS:g} s at the most"
        errors.add("FB0707", f"a time limit of {time_limit_s:g} s is too long", hint)


def _read_planner(planner: str | Planner) -> Planner:
    if not isinstance(planner, str):
        if callable(getattr(planner, "plan", None)):
            return planner
        message = f"a {type(planner).__name__} is no planner"
        hint = 'give a name with options, as in "periodic{segments=4}", or an object with `plan`'
        raise FBError(Diagnostic("FB0707", message, hint=hint), usage=True)
    # The file name that the registry's spans carry.
    keep_text("<planner>", planner)
    return parse_planner(planner)


def _without_copies(planner: Planner) -> Planner:
    """The planner with copies to the host off; FB0474 for one that cannot do without."""
    from ..planners.auto import Auto

    if isinstance(planner, Auto):
        return replace(planner, offload=False)
    if makes_copies(planner):
        message = f"{planner.name} copies to the host, which is switched off"
        hint = worded("leave {no_offload} away, or take another {planner}", planner="auto")
        raise FBError(Diagnostic("FB0474", message, hint=hint), usage=True)
    return planner


def _read_costs(errors: Errors, costs: str | None, device: str | None) -> Costs | None:
    if costs not in (None, "measured", "roofline"):
        errors.add("FB0707", f'costs are "{costs}"', "write measured or roofline")
    if costs == "measured" and device is not None:
        message = f"costs are measured on this machine, not on {device}"
        errors.add("FB0707", message, worded("use {costs} with {device}", costs="roofline"))
    if costs == "roofline" and device is None:
        hint = worded(f"{{device}} is one of {', '.join(device_names())}")
        errors.add("FB0707", "roofline costs need a device", hint)
    if costs == "measured":
        return "measured"
    return "roofline" if device is not None else None


def named_keywords(
    options: type | None = None, read: Callable[..., object] | None = None
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """For a function of users whose `**options` are those of the TypedDict `options`, which
    `read` takes with its defaults.

    A keyword that it does not take is refused with the nearest one (FB0723), and `help()` shows
    each option with its default and what it means. A `progress` that it takes is one of `shown`.
    """
    taken = () if options is None else options.__annotations__
    defaults = {} if read is None else inspect.signature(read).parameters
    unpacked = [p.replace(kind=p.KEYWORD_ONLY) for n, p in defaults.items() if n in taken]
    meaning = "\n".join(f"{p.name}: {MEANING[p.name]}" for p in unpacked)

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        own = inspect.signature(function)
        spelled = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        words = [p.name for p in (*spelled, *unpacked) if p.kind is not p.VAR_POSITIONAL]
        known = [word for word in words if word != "self"]

        @wraps(function)
        def call(*args: P.args, **keywords: P.kwargs) -> T:
            errors = Errors()
            for word in keywords:
                if word not in known:
                    message = f"{function.__name__} takes no keyword {word}.{nearest(word, known)}"
                    errors.add("FB0723", message, f"it takes {', '.join(known)}")
            errors.raise_if_any()
            if "progress" not in known:
                return function(*args, **keywords)
            with shown(keywords.get("progress")) as say:  # type: ignore[arg-type]
                return function(*args, **(keywords | {"progress": say}))  # type: ignore[arg-type]

        call.__signature__ = own.replace(parameters=(*spelled, *unpacked))  # type: ignore[attr-defined]
        call.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{meaning}".rstrip()
        return call

    return decorate
