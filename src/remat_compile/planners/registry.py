"""Planners by name: found by entry point, read from and written as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from typing import Any

from ..ir.diagnostics import Diagnostic, FBError, fail, nearest
from .contract import Planner
from .spelling.options import WHERE, default_of, read_options
from .spelling.text import PlannerText, format_value, parse_list, parse_text, span_of

GROUP = "remat_compile.planners"
"""The entry point group that planners register in."""

_OWN = "remat-compile"


@dataclass(frozen=True)
class PlannerInfo:
    """A registered planner that is not loaded yet: `target` is `module:Class`."""

    name: str
    target: str
    package: str

    @property
    def is_own(self) -> bool:
        """True if this package ships it."""
        return self.package == _OWN

    def load(self) -> type[Planner]:
        """The planner's class. FB0406 when it does not load or is not a planner."""
        try:
            loaded = EntryPoint(self.name, self.target, GROUP).load()
        except Exception as error:  # a plug-in may raise anything at all
            raise self._refusal(f"{type(error).__name__}: {error}") from error
        if not (isinstance(loaded, type) and hasattr(loaded, "__dataclass_fields__")):
            raise self._refusal("it is not a dataclass")
        if not callable(getattr(loaded, "plan", None)) or getattr(loaded, "name", "") != self.name:
            raise self._refusal(f'it has no plan method, or its name is not "{self.name}"')
        return loaded

    def _refusal(self, why: str) -> FBError:
        who = f'planner "{self.name}" ({self.target} of {self.package})'
        hint = f"repair or uninstall {self.package}"
        return FBError(Diagnostic("FB0406", f"{who} cannot be loaded: {why}", hint=hint))


def available() -> dict[str, PlannerInfo]:
    """Every registered planner by name, sorted; none of them is imported for this.

    Where two packages register a name, this package's own planner wins.
    """
    infos: dict[str, PlannerInfo] = {}
    for info in registered():
        if info.name not in infos or info.is_own:
            infos[info.name] = info
    return dict(sorted(infos.items()))


def registered() -> tuple[PlannerInfo, ...]:
    """All of GROUP. A package is asked for its name once: that reads its metadata."""
    points = entry_points(group=GROUP)
    packages = {id(point.dist): point.dist for point in points}
    names = {
        key: "an unknown package" if package is None else package.name
        for key, package in packages.items()
    }
    return tuple(PlannerInfo(point.name, point.value, names[id(point.dist)]) for point in points)


def own() -> dict[str, PlannerInfo]:
    """Planners of this package, found without a look at other packages; empty if the package is
    not installed."""
    try:
        points = distribution(_OWN).entry_points
    except PackageNotFoundError:
        return {}
    return {p.name: PlannerInfo(p.name, p.value, _OWN) for p in points.select(group=GROUP)}


Known = Mapping[str, PlannerInfo]


def _load(name: str, known: Known, column: int) -> type[Planner]:
    """The class of a planner, of `known` or else registered. FB0401 for an unknown name (with
    the nearest one)."""
    if name not in known:
        known = {**available(), **known}
    if name not in known:
        message = f'there is no planner "{name}".{nearest(name, known)}'
        hint = f"planners: {', '.join(known)}"
        fail("FB0401", message, span_of(column, len(name)), hint=hint, usage=True)
    return known[name].load()


def parse_planner(text: str, more: Known | None = None) -> Planner:
    """A planner from its text form, e.g. `periodic{segments=4}`: a registered one, or of `more`.

    Raises FBError with all that is wrong at once: FB0401 unknown planner, FB0402 text
    that cannot be read, FB0403 unknown option, FB0404 value of the wrong type or out of
    range, FB0405 options that contradict each other, FB0406 plug-in that does not load.
    """
    return _build(parse_text(text), {**own(), **(more or {})})


def parse_planners(text: str) -> tuple[Planner, ...]:
    """Planners from a text such as `auto, periodic{segments=4}`; raises as `parse_planner`."""
    known = own()
    planners: list[Planner] = []
    problems: list[Diagnostic] = []
    for parsed in parse_list(text):
        try:
            planners.append(_build(parsed, known))
        except FBError as error:
            problems += error.diagnostics
    if problems:
        raise FBError(problems, usage=True)
    return tuple(planners)


def _build(parsed: PlannerText, known: Known) -> Planner:
    cls: Any = _load(parsed.name, known, parsed.column)
    options, problems = read_options(cls, parsed, lambda inner: _build(inner, known))
    if problems:
        raise FBError(problems, usage=True)
    planner: Planner = cls(**options)
    return planner


def format_planner(planner: Planner, *, where: bool = False) -> str:
    """The text form: options that differ from their defaults, in order of declaration.

    `parse_planner` gives back an equal planner; but for options that say where it works and
    change no plan, which are told with `where` only.
    """
    options = ", ".join(_changed(planner, where))
    return f"{planner.name}{{{options}}}" if options else planner.name


def _changed(planner: Any, where: bool) -> Iterator[str]:
    for f in fields(planner):
        value = getattr(planner, f.name)
        if value != default_of(f) and (where or not f.metadata.get(WHERE)):
            yield f"{f.name}={format_option(value, where=where)}"


def format_option(value: object, *, where: bool = False) -> str:
    """A value of an option as `parse_planner` reads it: a planner, a list, or a plain value."""
    if isinstance(value, tuple):
        return f"[{', '.join(format_option(item, where=where) for item in value)}]"
    if hasattr(value, "plan") and hasattr(value, "__dataclass_fields__"):
        return format_planner(value, where=where)  # type: ignore[arg-type]
    return format_value(value)
