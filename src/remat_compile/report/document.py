"""One HTML file that needs nothing else: its frame, its tables, its charts.

Text that stands in it is escaped once: by `html.escape` in the body, by `_json` where a script
reads it; the scripts set it as text. The page's own policy forbids it every connection.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from . import MARK
from .library import vega

POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'"
)
Cell = str | int


def document(
    title: str, body: str, data: dict[str, object], *scripts: str, generator: str = MARK
) -> str:
    """The page as text: `data["charts"]` are drawn, `scripts` of this folder run after that; its
    head says who made it (`generator`, which has the mark in it). FB0712 where the library
    that draws is missing."""
    source = files(__package__)
    css, *code = (
        source.joinpath(name).read_text(encoding="utf-8")
        for name in ("page.css", "charts.js", *scripts)
    )
    script = "\n".join((vega(), *code))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="{generator}">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>
{css}</style>
</head>
<body>
{body}
<script type="application/json" id="data">{_json(data)}</script>
<script type="module">
{script}</script>
</body>
</html>
"""


def _json(data: object) -> str:
    """JSON that may stand inside of a script element: nothing in it ends one."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def chart(name: str, label: str) -> str:
    """Where the chart `name` is drawn."""
    return f'<div class="chart" id="chart-{name}" role="img" aria-label="{escape(label)}"></div>'


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Numbers are bytes or counts and stand on the right, exact."""
    heads = "".join(f'<th scope="col">{escape(h)}</th>' for h in head)
    lines = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{heads}</tr></thead>"
        f"<tbody>{lines}</tbody></table></div>"
    )


def _cell(value: Cell) -> str:
    if isinstance(value, int):
        return f'<td class="n">{value}</td>'
    return f"<td>{escape(value)}</td>"
