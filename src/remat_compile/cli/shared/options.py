"""Options that several commands take, each declared once.

Those that belong together are a dataclass: a parameter of that type stands for all of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from ...plans.messages.asked import (
    Costs,
    Errors,
    Grads,
)
from ...plans.source import ModelOptions

T = TypeVar("T")

SIZE = "8GiB, 500MB, 50% of the peak with nothing recomputed, or range:0.5"
SIZE_OR_LEAST = f"{SIZE}; least for the fewest bytes that are found in time"

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A .onnx or .pt2 file, file.py:factory (returns the model and its sample "
        "arguments), a .fbir file to plan again, or - for one on standard input.",
    ),
]
PlanFile = Annotated[str, typer.Argument(metavar="PLAN.fbir", help="- for standard input.")]
Output = Annotated[
    str | None,
    typer.Option("-o", "--output", metavar="FILE", help="Where to write; - is standard output."),
]
ScheduleOption = Annotated[
    str | None, typer.Option(metavar="NAME", help="Which schedule of the file (the last).")
]
GradsOption = Annotated[
    Grads | None,
    typer.Option(help="Whether the caller already holds gradients (accumulate)."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no table.")]
TrustSource = Annotated[
    bool,
    typer.Option("--trust-source", help="Load the Python or .pt2 file that the plan names."),
]


def known_planners(incomplete: str) -> list[str]:
    """Return the words with which a shell completes `--planner`."""
    from ...planners.registry import available

    return [name for name in available() if name.startswith(incomplete)]


def known_devices(incomplete: str) -> list[str]:
    """Return the words with which a shell completes `--device`."""
    from ...costs import device_names

    return [name for name in device_names() if name.startswith(incomplete)]


@dataclass(frozen=True)
class CostOptions:
    """Where times and bytes come from."""

    costs: Annotated[
        Costs | None,
        typer.Option(help="Measured on this machine (default), or estimated for --device."),
    ] = None
    device: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="See remat-compile devices.", autocompletion=known_devices
        ),
    ] = None


@dataclass(frozen=True)
class OnnxOptions:
    """Options for what an ONNX model leaves open."""

    dim: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=N",
            help="Size of a dynamic dimension by name, or by place: x[2]=48 (ONNX).",
        ),
    ] = None
    input: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Fix an input to a value (ONNX)."),
    ] = None
    sample: Annotated[
        str | None, typer.Option(metavar="FILE.npz", help="Sample inputs by name (ONNX).")
    ] = None
    train_bn: Annotated[
        bool, typer.Option("--train-bn", help="Batch normalisations train (ONNX).")
    ] = False
    trainable: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Which initialisers train, as in blocks.* (ONNX)."),
    ] = None

    def read(self, errors: Errors) -> ModelOptions:
        """The options, understood; adds FB0707 to `errors`."""
        sizes = _pairs("--dim", self.dim, "batch=8", errors)
        inputs = _pairs("--input", self.input, "sr=16000", errors)
        patterns = tuple(self.trainable or ())
        return ModelOptions(sizes, inputs, self.sample, self.train_bn, patterns)


def _pairs(option: str, given: list[str] | None, example: str, errors: Errors) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given or ():
        name, _, value = text.rpartition("=")
        if not name or not value:
            errors.add("FB0707", f'cannot read {option} "{text}"', f"write {option} {example}")
        elif name in pairs:
            errors.add("FB0707", f"{option} {name} is given twice")
        pairs[name] = value
    return pairs


def grouped(command: Callable[..., T]) -> Callable[..., T]:
    """The command with every option of its groups as a parameter of its own, in place."""
    signature = inspect.signature(command)
    types = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {n: kind for n, kind in types.items() if is_dataclass(kind)}

    @wraps(command)
    def call(**given: object) -> T:
        for name, group in groups.items():
            given[name] = group(**{f.name: given.pop(f.name) for f in fields(group)})
        return command(**given)

    shown: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name not in groups:
            shown.append(parameter.replace(annotation=types[name]))
            continue
        hints = get_type_hints(groups[name], include_extras=True)
        for f in fields(groups[name]):
            own = parameter.replace(name=f.name, default=f.default, annotation=hints[f.name])
            shown.append(own)
    shown = [p.replace(kind=p.KEYWORD_ONLY) for p in shown]
    call.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return call


Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Say where defaults come from, and what took how long."),
]
NoConfig = Annotated[
    bool, typer.Option("--no-config", help="Take no defaults from a remat-compile.toml.")
]
Plain = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but the answer.")]


def with_common(
    command: Callable[..., T], begin: Callable[[typer.Context, bool], None]
) -> Callable[..., T]:
    """The command with the options that every one has; `begin` is called with the parsed line, and
    whether much is to be said, before the command is."""
    signature = inspect.signature(command, eval_str=True)
    own = [p.replace(kind=p.KEYWORD_ONLY) for p in signature.parameters.values()]
    has = set(signature.parameters)

    @wraps(command)
    def call(**given: Any) -> T:
        begin(given["ctx"], given.pop("verbose"))
        given.pop("no_config")
        return command(**{name: value for name, value in given.items() if name in has})

    def option(name: str, kind: object) -> inspect.Parameter:
        default = inspect.Parameter.empty if kind is typer.Context else False
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
        )

    common = {"ctx": typer.Context, "quiet": Plain, "verbose": Verbose, "no_config": NoConfig}
    own += [option(name, kind) for name, kind in common.items() if name not in has]
    call.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    return call
