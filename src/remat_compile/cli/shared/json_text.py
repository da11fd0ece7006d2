"""Output for programs (`--format json`): one object, as `docs/reference/cli.md` has it."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Annotated, Any, Literal

import typer

from ...version import __version__
from .terminal import echo

FormatOption = Annotated[
    Literal["text", "json"], typer.Option("--format", help="json: one object, for programs.")
]


def print_object(command: str, **values: object) -> None:
    """The object of a command: `command` and `version` first, then `values`."""
    made = {"command": command, "version": __version__} | {k: _plain(v) for k, v in values.items()}
    echo(*json.dumps(made, indent=1, allow_nan=False).split("\n"))


def _plain(value: object) -> Any:
    """Data classes as objects of their fields, other sequences as lists, numbers that are not
    finite as texts (JSON has none); the rest as it is."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return value
