"""Checks of output paths: never a file that is read, or that we did not write."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from zipfile import BadZipFile, ZipFile

from ...ir.diagnostics import Diagnostic, FBError
from ...report.charts.frontier import SWEEP_MARK
from ...report.subject import MARK
from ..source import ModelOptions, file_of, is_program
from ..sweep.cells import CELL_FIELDS
from .files import STREAM, FileRead, check_writable
from .recorded import is_bare_name

if TYPE_CHECKING:
    from ...ir.program import Header

__all__ = [
    "FileRead",
    "Kind",
    "check_code",
    "check_output",
    "files_of_model",
    "files_of_plan",
    "values_beside",
]

Kind = Literal["plan", "python", "values", "tensors", "sweep", "picture", "pipeline", "schedule"]
"""Kinds of files that are written: a program in text form, code, the `.npz` file beside it or the
`.pt` file that it is compared with, a sweep; a report, a trace or a graph; rows of a pipeline;
its passes as CSV."""

HEADS: Mapping[Kind, re.Pattern[bytes]] = {
    "plan": re.compile(rb"(?:\xef\xbb\xbf)?(?:\s|//[^\n]*\n)*fbir [0-9]+\s"),
    "python": re.compile(
        rb'"""One training step of @[^\n]+\n(?:[^\n]+\n)*\n'
        rb"Planned by (?:[^\n]*\n)*?(?:[^\n]*, g|G)enerated by remat-compile [0-9]\S*\.\n"
    ),
    "sweep": re.compile(
        rb'%s\n|\{\n "baseline": \{\n  "peak_bytes": [0-9]+,|<!doctype html>\n<html lang="en">\n'
        rb'<head>\n<meta charset="utf-8">\n<meta name="generator" content="%s">'
        % (",".join(CELL_FIELDS).encode(), SWEEP_MARK.encode())
    ),
    "picture": re.compile(
        rb'(?:<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        rb'<meta name="generator" content="%s">|<!-- %s -->\n<svg |// %s\ndigraph '
        rb'|\{"otherData":\{"generator":"%s"|\x89PNG.{33}tEXtSoftware\0%s'
        rb"|\x80\x04\x95.{8}\}\x94\(\x8c\tgenerator\x94\x8c\x1a%s\x94)" % ((MARK.encode(),) * 6),
        re.DOTALL,
    ),
    "tensors": re.compile(rb"\x80\x02}q\x00\(X\x1a\x00\x00\x00%sq\x01}" % MARK.encode()),
    "pipeline": re.compile(rb'(?:\s|#[^\n]*\n)*pipeline [0-9]+ by "'),
    "schedule": re.compile(rb"[0-9]+F[0-9]+,[0-9]+[FB][0-9]+[,\n]"),
    "values": re.compile(rb"(?:\w+\|[^|]*\|\w+\.npy\n)+"),
}
"""Beginnings of our files; of tensors and values, the pickle and the names of the entries."""
HEAD_BYTES = 1 << 16


def files_of_model(
    spec: str, options: ModelOptions | None = None, *, device: str | None = None
) -> tuple[FileRead, ...]:
    """Return the files that are read for a MODEL: its file, its weights, the sample, the device's
    file."""
    files = [FileRead(Path(file_of(spec)), "the model itself", is_plan=is_program(spec))]
    if options is not None and options.sample is not None:
        files.append(FileRead(Path(options.sample), "the sample of the inputs"))
    if device is not None and any(part in device for part in ("/", "\\", ".toml")):
        files.append(FileRead(Path(device), "the file of the device"))
    return tuple(files)


def files_of_plan(path: str | Path, header: Header) -> tuple[FileRead, ...]:
    """A plan's own file, and the model that it records, if that lies beside it."""
    files = [FileRead(Path(path), "the plan itself", is_plan=True)]
    name = "" if header.source is None else file_of(header.source)
    beside = Path(path).parent / name if is_bare_name(name) else None
    files.append(FileRead(beside, "the model that the plan records", header.sha256))
    return tuple(files)


def check_output(
    output: str | Path, kind: Kind, reads: Iterable[FileRead], *, all_known: bool = True
) -> None:
    """FB0703 where `output` cannot be written or is one of the files `reads`, FB0719 where it
    is a file of another kind. A plan may take the place of a plan.

    Before a plan has been read, not all files are known (`all_known`): then only the first
    is asked, and both again later.
    """
    check_writable(output)
    path = Path(os.path.realpath(output))
    if str(output) == STREAM or not path.is_file():
        return
    held = tuple(reads)
    for read in (*held, *_weights(held, path)):
        if read.is_at(path) and not (kind == "plan" and read.is_plan):
            message = f"cannot write {output}: it is {read.what}"
            hint = "nothing that is read is written over; name another file"
            raise FBError(Diagnostic("FB0703", message, hint=hint), usage=True)
    if all_known and path.stat().st_size and not _is_ours(path, kind):
        message = f"{output} exists, and remat-compile did not write it"
        hint = "name another file, or remove it first"
        raise FBError(Diagnostic("FB0719", message, hint=hint), usage=True)


def check_code(
    output: str | Path, reads: Iterable[FileRead], *, has_values: bool, all_known: bool = True
) -> None:
    """`check_output` for code and, with `has_values`, for the values beside it."""
    check_output(output, "python", reads, all_known=all_known)
    if has_values:
        check_output(values_beside(output), "values", reads, all_known=all_known)


def values_beside(module: str | Path) -> Path:
    """The `.npz` file that belongs to a JAX module."""
    return Path(module).with_suffix(".npz")


def _weights(reads: Iterable[FileRead], output: Path) -> Iterator[FileRead]:
    """The files in which ONNX models beside the output keep their weights."""
    for read in reads:
        model = read.path
        if model is None or model.suffix != ".onnx" or not model.is_file():
            continue
        # They lie in the folder of the model: elsewhere nothing need be read.
        if output.is_relative_to(model.resolve().parent):
            for file in _external_files(model):
                yield FileRead(file, f"the weights of {read.what}")


def _external_files(model: Path) -> tuple[Path, ...]:
    try:
        from ...capture.onnx.file.load import external_files
    except ImportError:  # without the extra, the model itself cannot be read either
        return ()
    return external_files(model)


def _is_ours(path: Path, kind: Kind) -> bool:
    """Return whether what is to be written may take the place of an existing file: one of its kind,
    that was written by us, or of a plan, in its language. Nothing is unpickled."""
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    try:
        if kind == "tensors":
            with ZipFile(path) as archive:
                pickles = (n for n in archive.namelist() if n.endswith("/data.pkl"))
                head = archive.read(next(pickles, ""))
        elif kind == "values":
            with ZipFile(path) as archive:
                head = "".join(f"{name}\n" for name in archive.namelist()).encode()
            return HEADS[kind].fullmatch(head) is not None
    except (BadZipFile, KeyError, OSError, ValueError, RuntimeError, NotImplementedError):
        return False
    return HEADS[kind].match(head) is not None
