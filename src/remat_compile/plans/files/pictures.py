"""Reports and pictures of plans as files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ...ir.diagnostics import Diagnostic, FBError
from .files import FileRead, write_bytes
from .outputs import check_output

if TYPE_CHECKING:
    from ...report.charts.picture import Picture

T = TypeVar("T")


def kept(
    make: Callable[[], T],
    path: str | Path | None,
    reads: Iterable[FileRead],
    write: Callable[[str | Path, T], None],
) -> T:
    """The result of `make`, written to `path` if that is given. FB0703, and FB0719 for an existing
    file of another kind."""
    if path is None:
        return make()
    check_output(path, "picture", reads)
    made = make()
    write(path, made)
    return made


def kept_picture(
    make: Callable[[], Picture], path: str | Path | None, reads: Iterable[FileRead]
) -> Picture:
    """`kept` as SVG or PNG, by the name; FB0725 for a name that is no picture's."""
    suffix = "" if path is None else Path(path).suffix
    if path is not None and suffix not in (".svg", ".png"):
        message = f"{path} is no name of a picture"
        hint = "end it in .svg or .png"
        raise FBError(Diagnostic("FB0725", message, hint=hint), usage=True)

    def write(path: str | Path, picture: Picture) -> None:
        write_bytes(path, picture.svg().encode() if suffix == ".svg" else picture.png())

    return kept(make, path, reads, write)
