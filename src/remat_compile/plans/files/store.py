"""JSON values on disk, by kind and key, for later processes: written whole, checked when read.

A file that is damaged, of another owner, or writable by others is not used: `find` says so with one
warning (FB0959), and the caller makes the value again.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ...ir.diagnostics import Diagnostic, FBError
from .files import replace_text

Value = TypeVar("Value")

VARIABLE = "REMAT_COMPILE_CACHE"
"""The environment variable with the folder of the store; `off` for none."""

# limits: of all files together (the least recently used go first), and of one file
MOST_BYTES = 256 * 2**20
MOST_FILE_BYTES = 64 * 2**20


def user_store() -> Store | None:
    """The store of this user, where the environment does not switch it off."""
    named = os.environ.get(VARIABLE, "").strip()
    if named.lower() in ("off", "0", "no", "false", "none"):
        return None
    if named:
        return Store(Path(named).expanduser())
    try:
        return Store(_user_caches() / "remat-compile" / "plans")
    except RuntimeError:  # nobody's home
        return None


def _user_caches() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


@dataclass(frozen=True)
class Store:
    """One file per kind and key in `folder`; several processes may read and write at once."""

    folder: Path
    most_bytes: int = MOST_BYTES

    def path(self, kind: str, key: str) -> Path:
        return self.folder / f"{key}.remat-{kind}"

    def get(self, kind: str, key: str) -> Any:
        """The value that was put. ValueError for another file, OSError where there is none."""
        path = self.path(kind, key)
        held = json.loads(_read(path))
        with suppress(OSError):  # of another owner, on a disk that is read only, or gone by now
            os.utime(path)
        match held:
            case {"key": str(named), "sha256": str(known), "value": value}:
                if named != key:
                    raise ValueError("it is of another key")
                if known != digest(json.dumps(value)):
                    raise ValueError("it was changed or cut short")
                return value
        raise ValueError("it is no file of the cache")

    def put(self, kind: str, key: str, value: Any) -> tuple[Diagnostic, ...]:
        """Writes a value that JSON can express, and makes room for it; FB0959 where it cannot."""
        held = {"key": key, "sha256": digest(json.dumps(value)), "value": value}
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_text(self.path(kind, key), json.dumps(held), mode=0o600)
            self._make_room()
        except OSError as error:
            message = f"cannot write to {self.folder}: {error.strerror or error}"
            return (_warning(message, f"name a folder that can be written in {VARIABLE}"),)
        return ()

    def find(
        self, kind: str, key: str, read: Callable[[Any], Value]
    ) -> tuple[Value | None, tuple[Diagnostic, ...]]:
        """The result of `read` on the value; None where there is none, and FB0959 where the file
        or its value cannot be used (`read` raises ValueError or FBError)."""
        try:
            return read(self.get(kind, key)), ()
        except OSError:  # `put` tells of a folder that cannot be used
            return None, ()
        except (ValueError, RecursionError, FBError) as error:
            return None, self.unused(kind, key, _first_line(error))

    def unused(self, kind: str, key: str, why: str) -> tuple[Diagnostic, ...]:
        """FB0959: the file is not used."""
        message = f"{self.path(kind, key)} is not used: {why}"
        return (_warning(message, "it is made and written again"),)

    def _make_room(self) -> None:
        entries = []
        for path in self.folder.glob("*.remat-*"):  # also those that a writer left half-done
            try:
                state = path.stat()
            except OSError:  # another process removed it
                continue
            entries.append((state.st_mtime_ns, state.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self.most_bytes:
                return
            path.unlink(missing_ok=True)
            total -= size


def _read(path: Path) -> bytes:
    """The bytes of a regular file that only this user, or root, can have written."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0))
    with open(handle, "rb") as file:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode):  # a pipe would never end
            raise ValueError("it is no file")
        if hasattr(os, "getuid") and state.st_uid not in (os.getuid(), 0):
            raise ValueError("it belongs to somebody else")
        if os.name == "posix" and state.st_mode & 0o022:
            raise ValueError("others may write to it")
        if state.st_size > MOST_FILE_BYTES:
            raise ValueError(f"it has {state.st_size} bytes")
        return file.read(MOST_FILE_BYTES)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _first_line(error: BaseException) -> str:
    if isinstance(error, FBError):
        return f"{error.diagnostics[0].code}: {error.diagnostics[0].message}"
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _warning(message: str, hint: str) -> Diagnostic:
    return Diagnostic("FB0959", f"cache of plans: {message}", hint=hint)
