"""Reports and pictures of plans, and pictures as files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from ...ir.diagnostics import Diagnostic, FBError
from ...report.charts.picture import Picture
from .files import FileRead, write_text, write_together
from .outputs import check_output

if TYPE_CHECKING:
    from ...report.charts.picture import ChartName
    from ...report.subject import Subject


def page_of(subject: Subject, path: str | Path | None, reads: Iterable[FileRead]) -> str:
    """The HTML page, written to `path` if that is given. FB0703, FB0712 and FB0719."""
    from ...report.page import page

    if path is not None:
        check_output(path, "picture", reads)
    text = page(subject)
    if path is not None:
        write_text(path, text)
    return text


def chart_of(
    subject: Subject, chart: ChartName, path: str | Path | None, reads: Iterable[FileRead]
) -> Picture:
    """One chart, written to `path` if that is given. FB0725 as well."""
    from ...report.charts.picture import picture_of_plan

    if path is not None:
        check_picture(path, reads)
    picture = picture_of_plan(subject, chart)
    if path is not None:
        write_picture(picture, path)
    return picture


def snapshot_of(subject: Subject, path: str | Path | None, reads: Iterable[FileRead]) -> bytes:
    """The pickled memory snapshot, written to `path` if that is given. FB0703 and FB0719."""
    from ...report.snapshot import snapshot

    if path is not None:
        check_output(path, "picture", reads)
    made = snapshot(subject)
    if path is not None:
        _write_bytes(made, path)
    return made


def text_of(subject: Subject, kind: Literal["trace", "dot"]) -> str:
    """Return the simulation, as a trace (Chrome, Perfetto) or as a graph."""
    if kind == "trace":
        from ...report.trace import trace_json

        return trace_json(subject)
    from ...report.dot import dot

    return dot(subject)


def check_picture(path: str | Path, reads: Iterable[FileRead]) -> None:
    """FB0725 for a name that is no picture's; FB0703 and FB0719."""
    if Path(path).suffix not in (".svg", ".png"):
        message = f"{path} is no name of a picture"
        hint = "end it in .svg or .png"
        raise FBError(Diagnostic("FB0725", message, hint=hint), usage=True)
    check_output(path, "picture", reads)


def write_picture(picture: Picture, path: str | Path) -> None:
    _write_bytes(picture.svg().encode() if Path(path).suffix == ".svg" else picture.png(), path)


def _write_bytes(data: bytes, path: str | Path) -> None:
    """The whole file or none of it. FB0703."""

    def write(file: IO[bytes]) -> None:
        file.write(data)

    write_together({path: write})
