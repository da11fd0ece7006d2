"""A chart that stands still: in a notebook, or as an SVG or PNG file."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from typing import Literal

from ...ir.diagnostics import Diagnostic, FBError
from .. import MARK
from ..library import converter
from ..subject import Subject
from .charts import charts, stretch_moments
from .drawing import Spec
from .frontier import Frontier, frontier_spec

ChartName = Literal["memory", "streams", "lives", "operators"]
CHARTS: tuple[ChartName, ...] = ("memory", "streams", "lives", "operators")
WIDTH = 720
"""Pixels."""
VEGA_LITE = "6.4"


@dataclass(frozen=True)
class Picture:
    """`spec` is Vega-Lite with its data. FB0712 from the methods where the library is missing."""

    spec: Spec

    def svg(self) -> str:
        text = str(converter().vegalite_to_svg(json.dumps(self.spec), vl_version=VEGA_LITE))
        return text.replace("<svg ", f"<!-- {MARK} -->\n<svg ", 1)

    def png(self) -> bytes:
        made = converter().vegalite_to_png(json.dumps(self.spec), VEGA_LITE, scale=2)
        return _marked(bytes(made))

    def _repr_svg_(self) -> str:
        return self.svg()

    def __repr__(self) -> str:
        return "Picture(...)"


def _marked(png: bytes) -> bytes:
    """With the mark as a text chunk after the header, which takes 33 bytes."""
    chunk = b"tEXtSoftware\0" + MARK.encode()
    size, check = len(chunk) - 4, zlib.crc32(chunk)
    return png[:33] + size.to_bytes(4) + chunk + check.to_bytes(4) + png[33:]


def picture_of_plan(subject: Subject, chart: str) -> Picture:
    """FB0725 for a chart that there is not, or not without times."""
    made = charts(subject, stretch_moments(subject))
    if chart not in made:
        known = ", ".join(made)
        message = f'the plan has no chart "{chart}"'
        if chart in CHARTS:
            message += ": it holds no times"
        raise FBError(Diagnostic("FB0725", message, hint=f"ask for one of {known}"), usage=True)
    return Picture(_still(made[chart]))


def picture_of_frontier(frontier: Frontier) -> Picture:
    return Picture(_still(frontier_spec(frontier)))


def _still(spec: Spec) -> Spec:
    return {**_without_hover(spec), "width": WIDTH, "background": "white"}


def _without_hover(spec: Spec) -> Spec:
    """Nobody hovers over a picture: no texts with each rectangle, which are most of an SVG."""
    stripped: Spec = {}
    for key, value in spec.items():
        match key, value:
            case "encoding", dict():
                stripped[key] = {
                    channel: what for channel, what in value.items() if channel != "tooltip"
                }
            case "mark", dict():
                stripped[key] = {**value, "tooltip": None, "aria": False}
            case "layer", list():
                stripped[key] = [_without_hover(part) for part in value]
            case _:
                stripped[key] = value
    return stripped
