"""The text that names workers: another engine for them is one file and one line here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import field, fields, is_dataclass, replace
from typing import Any

from ...ir.diagnostics import Diagnostic, FBError
from ..contract import Planner
from ..spelling.options import WHERE

ENGINES = {"dask": f"{__package__}.dask_workers:DaskWorkers"}
"""Classes by the scheme of their addresses, loaded when asked for."""
_ADDRESS = re.compile(r"(?P<scheme>\w+)://(?:\[[0-9a-fA-F:]+\]|[^\s/\[\]:]+):\d{1,5}")
_NAME = "workers"


def where_it_runs() -> Any:
    """The field of the option that names workers."""
    return field(default=None, metadata={WHERE: True})


def wrong_address(workers: str | None, **_: object) -> Iterator[tuple[str, str]]:
    """As `check_options`: what is wrong with the text."""
    if workers is None:
        return
    read = _ADDRESS.fullmatch(workers)
    if read is None or read["scheme"] not in ENGINES:
        known = " or ".join(f"{scheme}://HOST:PORT" for scheme in ENGINES)
        yield _NAME, f'must be {known}, not "{workers}"'


def given_workers(planner: Planner, address: str | None) -> Planner:
    """The planner, and those among its options, with these workers where it has use for some."""
    if address is None or not is_dataclass(planner):
        return planner
    changed: dict[str, Any] = {}
    for f in fields(planner):
        value = getattr(planner, f.name)
        if f.metadata.get(WHERE):
            changed[f.name] = address
        elif isinstance(value, tuple) and all(callable(getattr(p, "plan", None)) for p in value):
            changed[f.name] = tuple(given_workers(p, address) for p in value)
        elif callable(getattr(value, "plan", None)):
            changed[f.name] = given_workers(value, address)
    return replace(planner, **changed) if changed else planner


def with_workers(planner: Planner, address: str) -> Planner:
    """As `given_workers`. FB0404 for an address that is none, FB0729 for a planner that gives no
    work away."""
    check_address(address)
    given = given_workers(planner, address)
    if given == planner:
        name = getattr(planner, "name", type(planner).__name__)
        message = f"{name} gives no work to workers elsewhere"
        hint = "take auto, hiremate or rockmate, or leave the workers away"
        raise FBError(Diagnostic("FB0729", message, hint=hint), usage=True)
    return given


def check_address(address: str) -> None:
    """FB0404 for an address that is none."""
    for name, message in wrong_address(address):
        raise FBError(Diagnostic("FB0404", f"{name} {message}"), usage=True)
