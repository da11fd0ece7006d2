"""No output lands on a file that the command or the plan reads, or that we did not write."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal, assert_never
from zipfile import BadZipFile, ZipFile

from ..ir.diagnostics import Diagnostic, FBError
from ..report.charts.frontier import SWEEP_MARK
from .files import STREAM, FileRead, check_writable
from .model_source import ModelOptions, file_of, is_program
from .recorded import is_bare_name

if TYPE_CHECKING:
    from ..ir.program import Header

__all__ = [
    "FileRead",
    "Kind",
    "check_code",
    "check_output",
    "files_of_model",
    "files_of_plan",
    "values_beside",
]

Kind = Literal["plan", "python", "values", "tensors", "sweep", "picture"]
"""What is written: a program in text form, code, the `.npz` file beside it or the `.pt` file that
it is compared with, a sweep; a report, a trace or a graph."""

MARK = b"enerated by remat-compile"
"""What the docstring of generated code says, and the head of a picture."""
HEAD_BYTES = 1 << 16


def files_of_model(
    spec: str, options: ModelOptions | None = None, *, device: str | None = None
) -> tuple[FileRead, ...]:
    """What is read for a MODEL: its file, its weights, the sample, the device's file."""
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
    if all_known and path.stat().st_size and not _is_ours(path, Path(output).suffix, kind):
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
        from ..frontends.onnx.load import external_files
    except ImportError:  # without the extra, the model itself cannot be read either
        return ()
    return external_files(model)


def _is_ours(path: Path, suffix: str, kind: Kind) -> bool:
    """Whether what is to be written may take the place of an existing file: it is named as
    what is written, or was written by us."""
    match kind:
        case "plan":
            return suffix == ".fbir" or _first_words(path).startswith(b"fbir ")
        case "sweep":
            head = _head(path)
            table = head.startswith(b"planner,")
            page = SWEEP_MARK.encode() in head
            return table or page or (b'"baseline"' in head and b'"cells"' in head)
        case "python" | "picture":
            # A `.py` file by hand may be the only one there is.
            return MARK in _head(path)
        case "values":
            try:
                with ZipFile(path) as archive:
                    return all(name.count("|") == 2 for name in archive.namelist())
            except (BadZipFile, OSError):
                return False
        case "tensors":
            return _holds_a_step(path)
        case _:
            assert_never(kind)


def _holds_a_step(path: Path) -> bool:
    """Whether `torch.save` wrote tensors by the kinds of a step into this file; nothing of it is
    unpickled."""
    try:
        with ZipFile(path) as archive:
            pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            text = b"".join(archive.read(name) for name in pickles)
    except (BadZipFile, OSError, ValueError, RuntimeError, NotImplementedError):
        return False
    return all(kind in text for kind in (b"param", b"arg", b"output", b"grad"))


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


def _first_words(path: Path) -> bytes:
    """The first line that is neither empty nor a comment."""
    lines = (line.strip() for line in _head(path).split(b"\n"))
    return next((line for line in lines if line and not line.startswith(b"//")), b"")
