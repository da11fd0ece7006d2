"""Kernels that an earlier process made, so that a start neither imports nor runs Inductor.

They lie in a folder of Inductor's own cache (`TORCHINDUCTOR_CACHE_DIR`), which holds code that is
run by whoever reads it: entries of the cache of plans stay data, and name nothing here. A kernel is
looked up by its function, the layouts of its arguments, and all that Inductor's code depends on.
What is read is code of this user's: a folder or a file that another one owns or may write to is
not looked at, and neither is a library whose bytes are not those that were kept.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import platform
import re
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from ....version import __version__
from .generated import Generated, generated, has_usual_settings

__all__ = ["KeptKernels", "kept_kernels"]

FORMAT = 1
VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
FOLDER = "remat-compile"
PREFIXES = ("TORCH", "PYTORCH", "ATEN", "OMP", "GOMP", "KMP", "CXX", "CPP", "CFLAGS")
MOST_BYTES = 64 * 2**20
"""Of one file."""


@dataclass(frozen=True)
class KeptKernels:
    """One text per kernel in `folder`, and its libraries by the digest of their bytes."""

    folder: Path

    def load(self, function: str) -> Callable[[list[Tensor]], Sequence[Tensor]] | None:
        """The kernel of a function with its layouts, as text; None where none can be used."""
        if not has_usual_settings() or not self._is_own():
            return None
        try:
            held = json.loads(_read(self._path(function)))
            match held:
                case {"function": str(of), "call": str(call), "libraries": dict(libraries)}:
                    if of != function:
                        return None
                    files = {name: self._library(digest) for name, digest in libraries.items()}
                    return Generated(call, files).load()
        except (OSError, ValueError, ImportError, RecursionError):
            pass
        return None

    def keep(self, function: str, compiled: object) -> None:
        """Writes what Inductor made of the function; nothing where that is more than can be kept,
        is kept already, or where the folder cannot be written or belongs to others."""
        made = generated(compiled) if has_usual_settings() else None
        if made is None:
            return
        with suppress(OSError):  # the next start compiles it again
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._is_own():
                self._write(function, made)

    def _write(self, function: str, made: Generated) -> None:
        libraries = {}
        for name, path in made.libraries.items():
            code = path.read_bytes()
            libraries[name] = hashlib.sha256(code).hexdigest()
            _write(self.folder / f"{libraries[name]}.so", code)
        held = {"function": function, "call": made.call, "libraries": libraries}
        _write(self._path(function), json.dumps(held).encode())

    def _path(self, function: str) -> Path:
        what = json.dumps([FORMAT, __version__, function, _around()])
        return self.folder / f"{hashlib.sha256(what.encode()).hexdigest()}.json"

    def _library(self, digest: object) -> Path:
        """ValueError where it is not the file that was kept."""
        if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
            raise ValueError("a library has no digest")
        path = self.folder / f"{digest}.so"
        if hashlib.sha256(_read(path)).hexdigest() != digest:
            raise ValueError("a library was changed")
        return path

    def _is_own(self) -> bool:
        """Whether nobody else may put a file there, or another folder in its place."""
        if os.name != "posix":
            return False
        try:
            own, around = self.folder.lstat(), self.folder.parent.stat()
        except OSError:
            return False
        mine = all(s.st_uid in (os.getuid(), 0) for s in (own, around))
        return mine and stat.S_ISDIR(own.st_mode) and not (own.st_mode | around.st_mode) & 0o022


def kept_kernels() -> KeptKernels:
    """Those of Inductor's cache of this user."""
    named = os.environ.get(VARIABLE)
    return KeptKernels((Path(named).absolute() if named else _usual_folder()) / FOLDER)


def _usual_folder() -> Path:
    """As `torch._inductor.runtime.cache_dir_utils` has it, whose import takes a second."""
    try:
        name = getpass.getuser()
    except (KeyError, ImportError, OSError):
        name = f"uid_{os.getuid()}" if hasattr(os, "getuid") else "unknown_user"
    return Path(tempfile.gettempdir()) / f"torchinductor_{re.sub(r'[/:*?<>|]', '_', name)}"


def _around() -> list[object]:
    """What generated code and its libraries depend on beside the function."""
    variables = sorted(
        (name, value)
        for name, value in os.environ.items()
        if name.startswith(PREFIXES) and name != VARIABLE
    )
    return [
        *(torch.__version__, torch.version.git_version, torch.__file__),
        *(sys.version, sysconfig.get_config_var("SOABI")),
        *(platform.system(), platform.machine(), _cpu(), torch.backends.cpu.get_cpu_capability()),
        *(torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), variables),
    ]


@cache
def _cpu() -> list[str]:
    """Its model, and the instructions that it has here."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    kinds = ("model name", "flags", "Features", "CPU part")
    return [next((line for line in lines if line.startswith(kind)), "") for kind in kinds]


def _read(path: Path) -> bytes:
    """ValueError for what is no file of this user's alone."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | os.O_NONBLOCK)
    with open(handle, "rb") as file:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode) or state.st_uid not in (os.getuid(), 0):
            raise ValueError("it is no file of this user's")
        if state.st_mode & 0o022 or state.st_size > MOST_BYTES:
            raise ValueError("others may write to it, or it is too large")
        return file.read(MOST_BYTES)


def _write(path: Path, code: bytes) -> None:
    """Whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.parent)  # for this user alone
    try:
        with open(handle, "wb") as file:
            file.write(code)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
