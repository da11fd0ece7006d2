"""The request of a user for a plan, checked as a whole before any work is done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Unpack, cast, get_args

from ..costs import device_names, load_device
from ..ir.diagnostics import Diagnostic, FBError, nearest
from ..ir.wording import worded
from ..planners.contract import makes_copies
from ..planners.registry import parse_planner, parse_planners
from ..planners.workers.addresses import with_workers
from .budget import BudgetText, parse_budget, parse_budgets
from .files.files import keep_text
from .link.link import LinkText, parse_link
from .lossy import LossyCodec, read_lossy_codec
from .options import OPTIONS, Backend, Codecs, Costs, Errors, Fuse, Grads, PlanKeywords

if TYPE_CHECKING:
    from ..costs import Device
    from ..planners.contract import Planner

MOST_SECONDS = 1e9
"""The longest time limit, 32 years; a thread cannot wait for ten times as long."""
USUAL_BUDGETS = "20%..100%:9"
"""The budgets of a sweep that names none, of the activations."""

DEFAULTS = cast(PlanKeywords, {k: OPTIONS[k].default for k in PlanKeywords.__annotations__})


@dataclass(frozen=True)
class PlanRequest:
    """A request, understood. `costs` and `grads` are None where those of the text at hand are kept
    (for a model: measured costs, fresh gradients); `device` is that of roofline costs; `host_bytes`
    and `link` take the place of the target's. `cache` says that plans on disk may be used and
    kept. `run_once` are patterns of modules whose forward runs once."""

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
    codecs: Codecs = "none"
    run_once: tuple[str, ...] = ()
    lossy: LossyCodec | None = None


def read_request(errors: Errors, **options: Unpack[PlanKeywords]) -> PlanRequest | None:
    """The request, or None after adding to `errors`: FB0450 to FB0452 for budgets, FB0472, FB0474
    and FB0477 for the link, FB0707 for the rest, and those of the planner and device registries."""
    asked = DEFAULTS | options
    before = len(errors.diagnostics)
    bound = read_bound(errors, asked["budget"], asked["activation_budget"])
    host = link = device = None
    if (size := asked["host_budget"]) is not None:
        host = errors.collect(lambda: int(parse_budget(size, "host").amount))
    check_time_limit(errors, asked["time_limit_s"])
    wishes = [_read_patterns(errors, word, asked[word]) for word in ("keep", "never_recompute")]
    horizon = asked["horizon"]
    if isinstance(horizon, bool) or not isinstance(horizon, int) or horizon < 1:
        errors.add("FB0488", f"horizon is {horizon!r}", "write a number of steps, as in 1000")
    if not isinstance(asked["cache"], bool):
        errors.add("FB0707", f"cache is {asked['cache']!r}", "write True or False")
    if asked["grads"] not in (None, *get_args(Grads)):
        errors.add("FB0707", f'grads is "{asked["grads"]}"', "write fresh or accumulate")
    errors.collect(lambda: check_choice("way to fuse", asked["fuse"], Fuse))
    errors.collect(lambda: check_choice("family of codecs", asked["codecs"], Codecs))
    if asked["codecs"] != "none" and asked["fuse"] != "none":
        message = "fused plans keep every value as it is, and codecs are to pack some"
        hint = worded("leave {fuse} or {codecs} away")
        errors.add("FB0479", message, hint)
    lossy = errors.collect(lambda: read_lossy_codec(asked["lossy"], asked["codecs"]))
    planner = errors.collect(lambda: _chosen_planner(asked))
    if (rate := asked["link"]) is not None:
        link = errors.collect(lambda: parse_link(rate))
    if (name := asked["device"]) is not None:
        device = errors.collect(lambda: load_device(name))
    costs = _read_costs(errors, asked["costs"], name)
    if planner is None or len(errors.diagnostics) > before:
        return None
    return PlanRequest(
        planner,
        bound,
        host,
        asked["time_limit_s"],
        costs,
        device,
        asked["grads"],
        link,
        asked["cache"],
        asked["fuse"],
        asked["codecs"],
        tuple(dict.fromkeys(pattern for patterns in wishes for pattern in patterns)),
        lossy,
    )


def read_bound(
    errors: Errors, budget: str | int | None, activation_budget: str | int | None
) -> BudgetText | None:
    """The budget of a plan. Adds FB0450 to FB0452."""
    if budget is not None and activation_budget is not None:
        hint = worded("give {budget} or {activation_budget}")
        errors.add("FB0452", "two budgets were given", hint)
    bound = None
    if budget is not None:
        bound = errors.collect(lambda: parse_budget(budget, may_be_least=True))
    if activation_budget is not None:
        bound = errors.collect(
            lambda: parse_budget(activation_budget, "activation", may_be_least=True)
        )
    return bound


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


def _chosen_planner(asked: PlanKeywords) -> Planner:
    """The planner, without copies and with a horizon and workers where that was asked for."""
    planner = _read_planner(asked["planner"])
    from ..planners.auto import Auto  # behind the refusal of a name

    if not asked["offload"] or asked["keep"]:
        planner = _without_copies(planner)
    if isinstance(planner, Auto) and asked["horizon"] != DEFAULTS["horizon"]:
        planner = replace(planner, horizon=asked["horizon"])
    workers = asked["workers"]
    return planner if workers is None else with_workers(planner, workers)


def _read_patterns(errors: Errors, word: str, given: object) -> Sequence[str]:
    """The patterns of modules of one option; adds FB0489 for what is no list of texts."""
    patterns = [given] if isinstance(given, str) else given or ()
    if isinstance(patterns, list | tuple) and all(p and isinstance(p, str) for p in patterns):
        return patterns
    hint = 'write patterns of module paths, as in ["blocks.0", "blocks.*.router"]'
    errors.add("FB0489", f"{word} is {given!r}", hint)
    return ()


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
        hint = worded(
            "leave {no_offload} and {keep} away, or take another {planner}", planner="auto"
        )
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
