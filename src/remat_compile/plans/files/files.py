"""Files and streams: read whole, written aside and renamed; `-` means the standard streams."""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import IO, TextIO

from ...ir.diagnostics import Diagnostic, FBError
from ...ir.terminal import printable_lines

STREAM = "-"
"""The name under which the command line knows standard input and standard output."""


Writer = Callable[[IO[bytes]], object]
"""Puts something into a file."""

_kept: dict[str, str] = {}
_closed: set[str] = set()


@dataclass(frozen=True, slots=True)
class FileRead:
    """A file that must not be written over, and what it is. With `sha256`, any file of that
    content is taken for it, wherever it lies; `is_plan` marks a text that a later plan may
    replace."""

    path: Path | None
    what: str
    sha256: str | None = None
    is_plan: bool = False

    def is_at(self, output: Path) -> bool:
        """Return whether `output`, which exists, is this file, by whatever name or link."""
        if self.path is not None and self.path.exists() and output.samefile(self.path):
            return True
        return self.sha256 is not None and sha256_of(output) == self.sha256


def fill_closed_streams() -> None:
    """Puts the null device where standard streams are closed (`>&-`). Else the next file that is
    opened takes their number, and what a library prints is written into it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        _closed.add(name)
        null = os.open(os.devnull, os.O_RDWR)
        try:
            os.fstat(number)
        except OSError:
            os.dup2(null, number)
        if name != "stdin":
            setattr(sys, name, os.fdopen(null, "w"))


def keep_text(name: str, text: str) -> None:
    """Keeps a text that lies in no file, for messages that show a line of it."""
    _kept[name] = text


def text_of(name: str) -> str | None:
    """The text that a span's file name means: kept, or a readable file; else None."""
    if name in _kept:
        return _kept[name]
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, ValueError):
        return None


def read_text(path: str | Path) -> str:
    """The text of a file, or of standard input for `-`. FB0701 where it cannot be read."""
    if str(path) == STREAM:
        if sys.stdin is None:
            raise FBError(Diagnostic("FB0701", "standard input is closed"), usage=True)
        with _readable("standard input"):
            _set_utf8(sys.stdin)
            keep_text(STREAM, sys.stdin.read())
        return _kept[STREAM]
    with _readable(path):
        return Path(path).read_text(encoding="utf-8")


def sha256_of(path: str | Path) -> str:
    """The sha256 of a file's bytes, in hexadecimal. FB0701 where it cannot be read."""
    with _readable(path), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _readable(path: str | Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise FBError(Diagnostic("FB0701", f"no file {path}"), usage=True) from None
    except UnicodeDecodeError:
        message = f"{path} is not a text file"
        raise FBError(Diagnostic("FB0701", message), usage=True) from None
    except ValueError as error:
        raise FBError(Diagnostic("FB0701", f"cannot read {path!r}: {error}"), usage=True) from None
    except OSError as error:
        message = f"cannot read {path}: {error.strerror or error}"
        raise FBError(Diagnostic("FB0701", message), usage=True) from None


def check_writable(path: str | Path) -> None:
    """FB0703 where a file could not be written; asked before any long work starts."""
    if str(path) == STREAM:
        if "stdout" in _closed:
            raise _unwritable("standard output", "it is closed")
        return
    if _is_device(path):
        return
    if "\0" in str(path):
        raise _unwritable(repr(path), "embedded null byte")
    target = Path(os.path.realpath(path))
    if os.path.islink(path) and not target.exists():
        raise _unwritable(path, "it is a link to what is not there")
    if target.is_dir():
        raise _unwritable(path, "it is a directory")
    if not target.parent.is_dir():
        raise _unwritable(path, f"there is no directory {Path(path).parent}")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise _unwritable(path, "the directory is not writable")


def write_text(path: str | Path, text: str) -> None:
    """Writes a whole file or none of it: aside, then renamed. `-` is standard output.

    Links are followed; devices and pipes are written to directly. FB0703 where it fails.
    """
    check_writable(path)
    if str(path) == STREAM:
        _to_standard_output(text)
        return
    target = Path(os.path.realpath(path))
    try:
        if _is_device(path):
            Path(path).write_text(text, encoding="utf-8")
        else:
            replace_text(target, text)
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from None


def _to_standard_output(text: str) -> None:
    stream = sys.stdout
    if stream.isatty():
        # For eyes, not for a file: what the text holds must not act on the terminal.
        shown = printable_lines(text.split("\n"))
        encoding = stream.encoding or "utf-8"
        text = shown.encode(encoding, "backslashreplace").decode(encoding)
    else:
        _set_utf8(stream)
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _unwritable("standard output", error.strerror or str(error)) from None


def _set_utf8(stream: TextIO) -> None:
    """Texts are UTF-8 wherever they lie, whatever the locale says of streams."""
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(encoding="utf-8")


def _is_device(path: str | Path) -> bool:
    """Return whether a path leads to a device or a pipe. (What `/dev/stdout` links to may have no
    path of its own.)"""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def write_together(writers: Mapping[str | Path, Writer]) -> None:
    """Writes several files, all of them or none: each aside, then all renamed.

    What was there before is put back where a rename fails. FB0703 where that happens.
    """
    for name in writers:
        check_writable(name)
    aside: list[tuple[str, Path]] = []
    done: list[tuple[Path, str | None]] = []
    path: str | Path = ""
    try:
        for path, write in writers.items():
            target = Path(os.path.realpath(path))
            aside.append((_write_aside(target, write), target))
        for made, target in aside:
            path = target
            old = f"{made}.old" if target.exists() else None
            if old is not None:
                os.link(target, old)
            done.append((target, old))
            os.replace(made, target)
    except BaseException as error:
        for target, old in reversed(done):
            if old is None:
                target.unlink(missing_ok=True)
            else:
                os.replace(old, target)
        for made, _ in aside:
            Path(made).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _unwritable(path, error.strerror or str(error)) from None
        raise
    for _, old in done:
        if old is not None:
            os.unlink(old)


def write_bytes(path: str | Path, data: bytes) -> None:
    """Writes a whole file or none of it. FB0703."""
    write_together({path: lambda file: file.write(data)})


def replace_text(target: Path, text: str, mode: int | None = None) -> None:
    """Writes a text aside and renames it; with the rights `mode` from the start, where that is
    given. OSError where that fails."""
    made = _write_aside(target, text_writer(text), mode)
    try:
        os.replace(made, target)
    except BaseException:
        os.unlink(made)
        raise


def text_writer(text: str) -> Writer:
    """For `write_together`: puts the text into a file."""
    return lambda file: file.write(text.encode())


def _write_aside(target: Path, write: Writer, mode: int | None = None) -> str:
    """A file beside `target` with what `write` puts in it; gone again where that fails."""
    if mode is None:
        mode = target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~_umask()
    handle, aside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, mode)
    except BaseException:
        os.unlink(aside)
        raise
    return aside


def _umask() -> int:
    # The mask can only be read by setting it.
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _unwritable(path: str | Path, why: str) -> FBError:
    return FBError(Diagnostic("FB0703", f"cannot write {path}: {why}"), usage=True)
