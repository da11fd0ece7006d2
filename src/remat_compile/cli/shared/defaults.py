"""Defaults of options from `remat-compile.toml` or the `[tool.remat-compile]` of a pyproject.toml.

The nearest such file counts, from the working folder upwards. It holds figures and names of what is
installed; what names a model, a file to write, code to run, or another machine (whose answers can
run code) is no setting of it.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from ...ir.diagnostics import Diagnostic, FBError, nearest
from ...ir.span import Span
from ...plans.options import OPTIONS, Backend, Solver
from .terminal import Format

if TYPE_CHECKING:
    from typer import Context

IGNORED = "REMAT_COMPILE_NO_CONFIG"
"""The environment variable that says to look for no such file."""
OWN, SHARED = "remat-compile.toml", "pyproject.toml"
SECTION = "tool", "remat-compile"
LISTS = ("planners", "devices")
COMMANDS = (
    *("plan", "verify", "show", "report", "explain", "diff", "run", "import-plan", "sweep"),
    *LISTS,
)


@dataclass(frozen=True, slots=True)
class Setting:
    """An option that may stand in a file, with the type of its values; outside of the table of a
    command it is for all of `commands`, unless it is `own`."""

    kind: Any
    commands: tuple[str, ...]
    own: bool = False

    def refusal(self, value: object) -> str:
        """Return the fault of a value; empty for nothing."""
        if words := get_args(self.kind):
            return "" if value in words else f"must be one of {', '.join(words)}"
        is_number = self.kind is float and type(value) is int
        return "" if is_number or type(value) is self.kind else f"must be {NAMES[self.kind]}"


NAMES = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
SETTINGS: Mapping[str, Setting] = {
    (option.parameter or name).replace("_", "-"): Setting(option.kind, option.commands)
    for name, option in OPTIONS.items()
    if option.commands
} | {
    "threads": Setting(int, ("plan", "run")),
    **dict.fromkeys(("budgets", "activation-budgets", "planners"), Setting(str, ("sweep",), True)),
    "solver": Setting(Solver, ("verify",), own=True),
    "backend": Setting(Backend, ("run",), own=True),
    "repeats": Setting(int, ("run",), own=True),
    "format": Setting(Format, ("verify", "show", "explain", "diff", "run", *LISTS), own=True),
    "quiet": Setting(bool, COMMANDS),
    "verbose": Setting(bool, COMMANDS),
}
"""By the name of the option."""


@dataclass(frozen=True)
class Defaults:
    """Values of a command by parameter, and where in the file each stands."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Span] = field(default_factory=dict)

    def used(self, context: Context) -> list[str]:
        """A line for each of them that the command line has not said otherwise."""
        return [
            f"--{name.replace('_', '-')} {_worded(value)} (default of {self.places[name]})"
            for name, value in self.values.items()
            if not was_given(context, name)
        ]


def was_given(context: Context, *parameters: str) -> bool:
    """Return whether the command line itself says any of them."""
    sources = (context.get_parameter_source(name) for name in parameters)
    return any(source is not None and source.name == "COMMANDLINE" for source in sources)


def _worded(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_defaults(command: str, words: Sequence[str]) -> Defaults:
    """Return the defaults of the nearest file for a command that is given `words`. FB0726 for a
    file that cannot be read, and for what it says that is no setting."""
    options = words[: words.index("--")] if "--" in words else words
    if "--no-config" in options or os.environ.get(IGNORED):
        return Defaults()
    try:
        found = _nearest(Path.cwd())
    except FileNotFoundError:  # the working folder is gone
        found = None
    return Defaults() if found is None else _settings_for(command, found)


@dataclass(frozen=True)
class _File:
    """A file with settings: its text, our table in it, and the names that lead to that."""

    path: Path
    text: str
    table: object
    inside: tuple[str, ...]

    def place(self, command: str | None, key: str) -> Span:
        """Where a key or table stands, as its line is usually written; else the first line."""
        outer = (*self.inside, *((command,) if command else ()))
        inner = (*outer, *((key,) if key else ()))
        header: tuple[str, ...] = ()
        pattern = re.compile(rf"(\s*)[\"']?{re.escape(key)}[\"']?\s*[=.]")
        for number, line in enumerate(self.text.split("\n"), 1):
            if match := re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line):
                header = tuple(re.sub(r"[\s\"']", "", match[1]).split("."))
                if header == inner:
                    return Span(number, 1, len(line) + 1, _shown(self.path))
            elif header == outer and (at := pattern.match(line)):
                return Span(number, at.end(1) + 1, at.end(), _shown(self.path))
        return Span(1, 1, 1, _shown(self.path))


def _nearest(start: Path) -> _File | None:
    for folder in (start, *start.parents):
        for name, section in ((OWN, ()), (SHARED, SECTION)):
            path = folder / name
            if not os.path.isfile(path):  # no folder that may not be looked into raises
                continue
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                if section:
                    continue
                reason = getattr(error, "strerror", None) or str(error)
                raise _refused(f"cannot read {_shown(path)}: {reason}", None) from None
            if not all(part in text for part in section):
                continue  # of other tools, whatever stands in it
            table: Any = _parsed(path, text)
            for part in section:
                table = table.get(part, {}) if isinstance(table, dict) else {}
            if table or not section:
                return _File(path, text, table, section)
    return None


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        at = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
        line, column = (int(at[1]), int(at[2])) if at else (1, 1)
        message = f"no TOML: {re.sub(r' [(]at .*', '', str(error))}"
        raise _refused(message, Span(line, column, column + 1, _shown(path))) from None


def _refused(message: str, place: Span | None) -> FBError:
    hint = f"mend the file, or give --no-config (or {IGNORED}=1) to leave it aside"
    return FBError(Diagnostic("FB0726", message, place, hint=hint), usage=True)


def _shown(path: Path) -> str:
    """Short where it lies in the working folder."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.parent == here else path)


def _settings_for(command: str, file: _File) -> Defaults:
    if not isinstance(file.table, dict):
        raise _refused(f"{'.'.join(file.inside)} must be a table", file.place(None, ""))
    tables = {k: v for k, v in file.table.items() if isinstance(v, dict) and k in COMMANDS}
    entries = [(None, k, v) for k, v in file.table.items() if k not in tables]
    # What is said for one command comes last, and counts.
    entries += [(owner, k, v) for owner, table in tables.items() for k, v in table.items()]
    errors: list[Diagnostic] = []
    made = Defaults()
    for owner, key, value in entries:
        place = file.place(owner, key)
        if problem := _problem(owner, key, value):
            errors += _refused(problem, place).diagnostics
        elif command in ((owner,) if owner else SETTINGS[key].commands):
            if key == "device" and value.endswith(".toml"):
                value = str(file.path.parent / value)  # named from the folder of this file
            parameter = key.replace("-", "_")
            made.values[parameter], made.places[parameter] = value, place
    if errors:
        raise FBError(errors, usage=True)
    return made


def _problem(command: str | None, key: str, value: object) -> str:
    setting = SETTINGS.get(key)
    if setting is None:
        if isinstance(value, dict):
            return f"there is no command {key}.{nearest(key, COMMANDS)}"
        return f"{key} is no setting.{nearest(key, SETTINGS)}"
    if command is not None and command not in setting.commands:
        return f"{key} is no setting of {command}"
    if command is None and setting.own:
        where = " or ".join(f"[{name}]" for name in setting.commands[:3])
        return f"{key} stands in the table of a command, such as {where}"
    if wrong := setting.refusal(value):
        return f"{key} {wrong}"
    if key in ("planner", "planners") and _names_workers(str(value)):
        return f"{key} names workers, which only the command line may"
    return ""


def _names_workers(planners: str) -> bool:
    from ...planners.spelling.text import option_names, parse_list

    try:
        return any("workers" in option_names(planner) for planner in parse_list(planners))
    except FBError:
        return False  # told when it is read for planning
