"""Options that several commands take, each declared once.

Options that belong together are one parameter of a command: a dataclass with one field for each, or
`Annotated[PlanKeywords, Planning(...)]` for options of the table in plans/options.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

import typer

from ...plans.options import OPTIONS, Errors, Option
from ...plans.source import ModelOptions

T = TypeVar("T")

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


COMPLETIONS = {"planner": known_planners, "device": known_devices}


class Planning:
    """The options of the table that a command takes, by keyword, each with its help: that of the
    table, or what it is for this command."""

    def __init__(self, *keywords: str, **helps: str):
        named = {keyword: OPTIONS[keyword].help for keyword in keywords} | helps
        self.helps = {keyword: named[keyword] for keyword in OPTIONS if keyword in named}

    def parameters(self) -> list[inspect.Parameter]:
        return [_parameter(name, OPTIONS[name], text) for name, text in self.helps.items()]

    def take(self, given: dict[str, Any]) -> dict[str, Any]:
        """The values by keyword of the Python API, out of those by parameter."""
        taken = {}
        for keyword in self.helps:
            parameter = OPTIONS[keyword].parameter or keyword
            value = given.pop(parameter)
            taken[keyword] = not value if parameter.startswith("no_") else value
        return taken


def _parameter(keyword: str, option: Option, text: str) -> inspect.Parameter:
    name = option.parameter or keyword
    is_off = name.startswith("no_")
    default = False if is_off else option.default
    declared = typer.Option(
        f"--{name.replace('_', '-')}",
        metavar=option.metavar,
        help=text,
        autocompletion=COMPLETIONS.get(keyword),
    )
    kind = option.kind | None if default is None else option.kind
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, declared]
    )


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


Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Say where defaults come from, and what took how long."),
]
NoConfig = Annotated[
    bool, typer.Option("--no-config", help="Take no defaults from a remat-compile.toml.")
]
Plain = Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but the answer.")]
COMMON: Mapping[str, Any] = {
    "ctx": typer.Context,
    "quiet": Plain,
    "verbose": Verbose,
    "no_config": NoConfig,
}


def with_all_options(
    command: Callable[..., T], begin: Callable[[typer.Context, bool], None]
) -> Callable[..., T]:
    """The command as typer reads it: each option of its groups is a parameter in place of the
    group, beside those that every command has. `begin` is called with the parsed line, and whether
    much is to be said, before the command is."""
    signature = inspect.signature(command)
    types = get_type_hints(command, include_extras=True)
    takes: dict[str, Callable[[dict[str, Any]], object]] = {}
    shown: dict[str, inspect.Parameter] = {}
    for name, parameter in signature.parameters.items():
        kind = types[name]
        planning = getattr(kind, "__metadata__", (None,))[0]
        if isinstance(planning, Planning):
            takes[name] = planning.take
            shown |= {p.name: p for p in planning.parameters()}
        elif is_dataclass(kind) and get_origin(kind) is None:
            takes[name] = lambda given, kind=kind: kind(  # type: ignore[misc]
                **{f.name: given.pop(f.name) for f in fields(kind)}
            )
            hints = get_type_hints(kind, include_extras=True)
            for f in fields(kind):
                shown[f.name] = parameter.replace(
                    name=f.name, default=f.default, annotation=hints[f.name]
                )
        else:
            shown[name] = parameter.replace(annotation=kind)
    own = set(shown)

    @wraps(command)
    def call(**given: Any) -> T:
        begin(given["ctx"], given.pop("verbose"))
        given.pop("no_config")
        given = {name: value for name, value in given.items() if name in own}
        for name, take in takes.items():
            given[name] = take(given)
        return command(**given)

    for name, kind in COMMON.items():
        default = inspect.Parameter.empty if kind is typer.Context else False
        made = inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
        )
        shown.setdefault(name, made)
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in shown.values()]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call
