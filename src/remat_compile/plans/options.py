"""The options of planning, each stated once for Python, the command line and files of defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypedDict, TypeVar, get_args

from ..ir.diagnostics import Diagnostic, FBError, nearest
from .messages.progress import shown

if TYPE_CHECKING:
    from ..planners.contract import Planner
    from ..verifier import Choice, Scope

T = TypeVar("T")
P = ParamSpec("P")

Costs = Literal["measured", "roofline"]
Grads = Literal["fresh", "accumulate"]
Backend = Literal["torch", "jax"]
Solver = Literal["z3", "cvc5", "both"]
Fuse = Literal["none", "auto", "inductor", "xla"]
"""Runs of a plan become kernels of PyTorch (those that are measured faster, or all that can), or
regions as XLA computes them."""
Codecs = Literal["none", "lossless", "linear", "all"]
"""Values that are kept for the backward may be packed: where every bit of the gradients stays;
beside these what the gradients of weights alone are linear in; or all."""
Emitted = Literal["torch", "jax", "trace", "dot"]
"""Targets that a plan can be written for: code of a backend, a trace for Perfetto, a graph for
Graphviz."""
JaxStyle = Literal["explicit", "annotated", "annotated-nearest"]

SIZE = "8GiB, 500MB, 50% of the peak with nothing recomputed, or range:0.5"
SIZE_OR_LEAST = f"{SIZE}; least for the fewest bytes that are found in time"
PLANNING = ("plan", "sweep", "import-plan")


@dataclass(frozen=True, slots=True)
class Option:
    """An option as each place has it.

    `default` and `meaning` are those of the Python API, the rest of the command line: `help` (none
    for an option that is only of Python), the `parameter` where it is not the keyword, `metavar`,
    and the type of its values. A file may set its default for the `commands`.
    """

    default: object
    meaning: str
    help: str = ""
    metavar: str | None = None
    kind: Any = str
    commands: tuple[str, ...] = ()
    parameter: str | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The values of an option that takes few."""
        return get_args(self.kind)


OPTIONS = {
    "budget": Option(
        None,
        'bounds all device bytes: a number of bytes, or a text such as "8GiB", "50%" (of the peak '
        'with nothing recomputed) or "range:0.5"; "least" for the fewest bytes found in time, '
        '"auto" for what the device has free',
        f"Bound on all device bytes: {SIZE_OR_LEAST}; auto for what the device has free.",
        "SIZE",
        commands=("plan", "import-plan"),
    ),
    "activation_budget": Option(
        None,
        "bounds what comes on top of parameters, buffers, inputs and parameter gradients, in the "
        "same forms",
        "Bound on what comes on top of parameters, buffers, inputs and gradients.",
        "SIZE",
        commands=("plan", "import-plan"),
    ),
    "host_budget": Option(
        None,
        "bounds the bytes of copies on the host, for planners that make some",
        "Bound on copies on the host, in bytes: 64GiB.",
        "SIZE",
        commands=("plan",),
    ),
    "link": Option(
        None,
        'the bandwidth between device and host, "25GB/s" or "d2h=25GB/s,h2d=11GB/s", with '
        '"both=30GB/s", "latency=10us" and "issue=5us" where known; in place of that of the device',
        "Bandwidth to and from the host: 25GB/s, or d2h=25GB/s,h2d=11GB/s,both=30GB/s.",
        "RATE",
        commands=("plan",),
    ),
    "offload": Option(
        True,
        "whether planners may copy to the host, where the target has a link",
        "Copy nothing to the host.",
        kind=bool,
        commands=("plan",),
        parameter="no_offload",
    ),
    "planner": Option(
        "auto",
        'a planner, or a text such as "periodic{segments=4}"',
        'See remat-compile planners; options as "periodic{segments=4}".',
        commands=("plan",),
    ),
    "workers": Option(
        None,
        'the address of a Dask cluster, "dask://host:8786", that programs of planners are solved '
        "on; the plan is the same",
        "Solve programs on a Dask cluster: dask://HOST:PORT. The plan is the same.",
        "ADDRESS",
    ),
    "time_limit_s": Option(
        60.0,
        "seconds for all of it: the planner has what capture, costs and proof leave, and a tenth "
        "at least; a proof that is begun goes on for up to a minute",
        "For all of it. The planner has what is left, and a tenth at least.",
        "SECONDS",
        float,
        (*PLANNING, "verify"),
        "time_limit",
    ),
    "horizon": Option(
        1000,
        "steps that the plan is for: `auto` searches no longer than could be saved over so many",
        "Steps that the plan is for: auto searches no longer than they could gain.",
        "STEPS",
        int,
        ("plan",),
    ),
    "keep": Option(
        None,
        "modules, by patterns of their paths as in `blocks.0` or `blocks.*.attn`, whose operators "
        "run once and whose activations stay on the device: nothing is copied to the host then",
        "Modules whose activations stay on the device, as in blocks.0 or blocks.*.attn.",
        "PATTERN",
        list[str],
    ),
    "never_recompute": Option(
        None,
        "modules, by such patterns, whose forward operators run once, such as the routing of "
        "experts",
        "Modules whose operators run once, such as blocks.*.router.",
        "PATTERN",
        list[str],
    ),
    "cache": Option(
        True,
        "whether a plan that was made before for the same graph is taken, and this one kept; "
        "REMAT_COMPILE_CACHE names the folder, or switches it off",
    ),
    "fuse": Option(
        "none",
        'whether runs of the plan become kernels of Inductor: "none", "auto" (those measured '
        'faster) or "inductor" (all); bits may then differ from eager by rounding. "xla": what '
        "XLA computes without keeping what lies between, for JAX",
        "Run parts of the plan as kernels of Inductor: those measured faster (auto), or all that "
        "can. Bits may differ by rounding. With --emit jax, auto is xla: what XLA computes without "
        "keeping what lies between.",
        kind=Fuse,
        commands=("plan",),
    ),
    "codecs": Option(
        "none",
        'whether values that are kept for the backward may be packed: "lossless" packs masks of a '
        "byte into bits where the plan is faster within the budget then; every bit of the "
        'gradients stays. With `lossy`, "linear" also packs inputs of products that give gradients '
        'of weights, which stay unbiased, and "all" whatever a codec takes',
        "Pack what is kept for the backward, where that is faster within the budget: masks into "
        "bits (lossless: gradients keep every bit), with --lossy also operands of gradients of "
        "weights (linear: they stay unbiased), or all.",
        kind=Codecs,
        commands=("plan",),
    ),
    "lossy": Option(
        None,
        'the lossy codec of `codecs="linear"` or "all", as "int8" or "int4{seed=7}": loss, outputs '
        "and buffers keep every bit, gradients do not. None allows no plan with such codecs",
        "The lossy codec for --codecs linear or all: int8, int4, int4{seed=7}, fp8. The loss keeps "
        "every bit, gradients do not.",
        "CODEC",
    ),
    "costs": Option(
        None,
        '"measured" on this machine, as is done for a model, or by "roofline" for the device; a '
        "text keeps its own where neither is named",
        "Measured on this machine (default), or estimated for --device.",
        kind=Costs,
        commands=PLANNING,
    ),
    "device": Option(
        None,
        "the name or the file of a device to plan for",
        "See remat-compile devices.",
        "NAME",
        commands=PLANNING,
    ),
    "grads": Option(
        None,
        '"accumulate" counts gradients that the caller already holds',
        "Whether the caller already holds gradients (accumulate).",
        kind=Grads,
        commands=("plan", "sweep"),
    ),
    "scope": Option(
        "widest",
        'for which sizes the bytes must hold: "range", "sample", or "widest", all that can be '
        "proven",
    ),
    "allow_lossy": Option(
        False, "whether lossy codecs may make gradients approximate; what they change is named then"
    ),
    "solver": Option("z3", '"z3", "cvc5" or "both"; FB0712 where its package is missing'),
}
"""By the keyword of the Python API."""


class CostKeywords(TypedDict, total=False):
    """Keywords of every function that looks at costs."""

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


class LadderKeywords(BoundKeywords, total=False):
    """Of each plan of a ladder."""

    host_budget: str | int | None
    planner: str | Planner
    workers: str | None
    horizon: int
    keep: str | Sequence[str] | None
    never_recompute: str | Sequence[str] | None
    link: str | None
    offload: bool
    cache: bool


class PlanKeywords(LadderKeywords, SweepKeywords, total=False):
    """All of a plan."""

    fuse: Fuse
    codecs: Codecs
    lossy: str | None


class ProofKeywords(TypedDict, total=False):
    """Keywords of a proof."""

    time_limit_s: float
    scope: Scope
    solver: Choice
    allow_lossy: bool


class Errors:
    """Collects refusals, so that the user sees all of them at once."""

    def __init__(self) -> None:
        self.diagnostics: list[Diagnostic] = []

    def collect(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except FBError as error:
            self.diagnostics += error.diagnostics
            return None

    def add(self, code: str, message: str, hint: str | None = None) -> None:
        self.diagnostics.append(Diagnostic(code, message, hint=hint))

    def raise_if_any(self) -> None:
        """Raises what was collected, as wrong usage."""
        if self.diagnostics:
            raise FBError(self.diagnostics, usage=True)


def named_keywords(options: type | None = None) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """For a function of users whose `**options` are those of the TypedDict `options`.

    A keyword that it does not take is refused with the nearest one (FB0723), and `help()` shows
    each option with its default and what it means. A `progress` that it takes is one of `shown`.
    """
    types = {} if options is None else inspect.get_annotations(options)
    unpacked = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=option.default,
            annotation=types[name].__forward_arg__,
        )
        for name, option in OPTIONS.items()
        if name in types
    ]
    meaning = "\n".join(f"{p.name}: {OPTIONS[p.name].meaning}" for p in unpacked)

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
