"""Pictures as files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import IO

from ..ir.diagnostics import Diagnostic, FBError
from ..report.picture import Picture
from .files import FileRead, write_together
from .outputs import check_output

__all__ = ["check_picture", "write_bytes", "write_picture"]


def check_picture(path: str | Path, reads: Iterable[FileRead]) -> None:
    """FB0725 for a name that is no picture's; FB0703 and FB0719."""
    if Path(path).suffix not in (".svg", ".png"):
        message = f"{path} is no name of a picture"
        hint = "end it in .svg or .png"
        raise FBError(Diagnostic("FB0725", message, hint=hint), usage=True)
    check_output(path, "picture", reads)


def write_picture(picture: Picture, path: str | Path) -> None:
    write_bytes(picture.svg().encode() if Path(path).suffix == ".svg" else picture.png(), path)


def write_bytes(data: bytes, path: str | Path) -> None:
    """The whole file or none of it. FB0703."""

    def write(file: IO[bytes]) -> None:
        file.write(data)

    write_together({path: write})
